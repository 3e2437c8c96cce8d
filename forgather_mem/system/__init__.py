"""The kernel, the allocator, this process and its ranks: read, never interpreted."""
