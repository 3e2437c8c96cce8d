"""How is any training command watched, unchanged? A small parent waits; a hook meets the Trainer where it is made."""
