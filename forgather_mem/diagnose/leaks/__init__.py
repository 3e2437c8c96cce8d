"""Leaks: trends of sizes, what grew, who holds it, and the verdict."""
