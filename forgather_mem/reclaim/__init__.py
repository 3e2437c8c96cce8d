"""Memory back outside a training: release, clean up, retry with a smaller batch."""
