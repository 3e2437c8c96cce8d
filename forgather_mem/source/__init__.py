"""The user's source code: whose a line is, what it adds to, and the variables of the functions that run it."""
