import numpy
import skorch
import tiny
import torch


class Keep(skorch.callbacks.Callback):
    def initialize(self):
        self.outputs_ = []
        return self

    def on_batch_end(self, net, training=False, **kwargs):
        if training:
            self.outputs_.append(torch.ones(50_000))  # leak: outputs_


numpy.random.seed(0)
data = numpy.random.rand(80 * 32, 64).astype("float32"), numpy.random.rand(80 * 32, 1).astype("float32")
net = skorch.NeuralNetRegressor(
    tiny.net(), max_epochs=3, batch_size=32, train_split=None, callbacks=[("keep", Keep())], verbose=0
)
net.fit(*data)
print("loss", net.history[-1, "train_loss"])
