"""Graphs of torch's autograd: which operation made what, how old they are, and which are in vain."""
