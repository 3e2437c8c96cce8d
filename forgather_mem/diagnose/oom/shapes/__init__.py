"""The shapes of batches and tensors, and what they take."""
