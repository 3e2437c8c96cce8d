"""Nothing special."""

from harness import make, train

train(make())
