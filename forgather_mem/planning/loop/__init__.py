"""A loop that is planned where it stands; its phases are a Trainer's, too."""
