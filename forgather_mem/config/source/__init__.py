"""Template files: found, read, and turned into Jinja source."""
