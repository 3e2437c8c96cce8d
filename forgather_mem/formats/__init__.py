"""File formats: one module writes and reads one format; only this package imports tensorboard."""
