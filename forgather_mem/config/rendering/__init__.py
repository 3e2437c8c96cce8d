"""Jinja source to text, in a sandbox, with every value from outside tracked."""
