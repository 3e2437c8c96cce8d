"""The model does not fit. Most of it is frozen."""

from common import Rows, arguments, leave, make, model

own, args = arguments()
# phase: startup
leave(200)
net = model(hidden=1024, layers=6, dtype=own.dtype)  # 63 million weights, 250 MiB
for name, weight in net.named_parameters():
    weight.requires_grad = "norm" in name
make(net, args, Rows()).train()
