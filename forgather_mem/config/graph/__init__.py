"""Rendered text to a graph of nodes."""
