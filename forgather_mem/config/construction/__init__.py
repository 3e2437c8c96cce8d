"""A graph to objects."""
