"""Plans a training: its peak of memory, from two steps that compute nothing."""
