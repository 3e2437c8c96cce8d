"""File formats: writing and reading of one format in one module; tensorboard is imported in here only."""
