"""Evaluations and checkpoints."""

from harness import make, train

train(make(steps=240, eval_strategy="steps", eval_steps=40, save_strategy="steps", save_steps=60))
