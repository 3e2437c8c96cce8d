"""Watches any training command unchanged: a small parent process waits, and an import hook finds each Trainer."""
