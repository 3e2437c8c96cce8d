"""Callbacks about the training itself: progress, logs, text, gradients."""
