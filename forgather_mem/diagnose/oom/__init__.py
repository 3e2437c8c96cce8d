"""Out of memory: recognised, explained, and what would have fitted."""
