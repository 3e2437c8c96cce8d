"""A line in the log at every step."""

from harness import make, train

train(make(logging_steps=1))
