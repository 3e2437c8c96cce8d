"""A loop that is planned where it stands; its stage and phases are a Trainer's, too."""
