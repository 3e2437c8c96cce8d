"""Weights and gradients fit; the optimizer's state does not."""

import resource

from common import Rows, arguments, leave, make, model

own, args = arguments()
trainer = make(model(hidden=512, layers=8, dtype=own.dtype), args, Rows())  # 17 million weights, 65 MiB
# phase: optimizer
leave(230, resource.RLIMIT_AS)
trainer.train()
