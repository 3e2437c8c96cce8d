"""A forked child that acts on nothing outside: its files, its memory, and what libraries do behind Python."""
