"""A loop of a script's own, planned where it stands."""
