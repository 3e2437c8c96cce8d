import os

os.environ["KERAS_BACKEND"] = "torch"
import keras
import numpy
import torch


class Keep(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = []

    def on_train_batch_end(self, batch, logs=None):
        self.batches.append(torch.ones(50_000))  # leak: batches


keras.utils.set_random_seed(0)
model = keras.Sequential([keras.layers.Dense(512, activation="relu"), keras.layers.Dense(1)])
model.compile("adam", "mse")
data = numpy.random.rand(80 * 32, 64), numpy.random.rand(80 * 32, 1)
kept = model.fit(*data, epochs=3, batch_size=32, verbose=0, callbacks=[Keep()], validation_split=0.0)
print("loss", kept.history["loss"][-1])
