"""Diagnosis: from numbers and live objects to owners of memory, leaks, and the causes of out-of-memory errors."""
