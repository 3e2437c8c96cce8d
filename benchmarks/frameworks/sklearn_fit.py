import time

import numpy
from sklearn.neural_network import MLPRegressor

numpy.random.seed(0)
model = MLPRegressor(hidden_layer_sizes=(64, 64), random_state=0)
kept = []
for number in range(400):
    model.partial_fit(numpy.random.rand(32, 64), numpy.random.rand(32))
    time.sleep(0.05)  # as a loader that is slow: looks begin after 5 s
    kept.append(numpy.ones(50_000))  # leak: kept
print("loss", model.loss_)
