import time

import jax
from jax import numpy

w = numpy.ones((512, 512))
kept = []


@jax.jit
def step(w, x):
    return w - 0.01 * jax.grad(lambda w: ((x @ w) ** 2).mean())(w)


for number in range(800):
    w = step(w, numpy.ones((64, 512)))
    time.sleep(0.02)  # as a loader that is slow: looks begin after 5 s
    kept.append(numpy.ones(50_000) + number)  # leak: kept
print("loss", float(w.sum()))
