"""What changed between runs: which part of memory, in which phase, and which setting explains it."""
