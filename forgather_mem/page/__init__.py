"""The page: one picture of where the memory of a run went, for a file, a server and TensorBoard."""
