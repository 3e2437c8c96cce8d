"""Python's heap and frames: what is reachable, who owns it, how large it is."""
