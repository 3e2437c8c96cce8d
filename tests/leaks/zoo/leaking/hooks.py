"""A forward hook more at every step."""

# held: Net.inner._forward_hooks
# leaks: model.inner.register_forward_hook(hook)
# mended: model.inner.register_forward_hook(hook).remove()
# bytes: 24000

import torch
from harness import make, train
from transformers import TrainerCallback


class Watch(TrainerCallback):
    def on_step_begin(self, args, state, control, model=None, **kwargs):
        seen = torch.zeros(6000)

        def hook(module, inputs, output):
            seen[0] = 1.0

        model.inner.register_forward_hook(hook)


train(make([Watch()], steps=160))
