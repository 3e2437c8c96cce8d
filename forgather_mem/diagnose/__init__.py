"""What do the numbers and the live objects mean? From them to owners of memory, leaks, and out-of-memory errors."""
