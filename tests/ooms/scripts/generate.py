"""Texts are written while the training goes on, from too many prompts at once."""

import torch
from common import Rows, arguments, leave, make, model
from transformers import TrainerCallback

own, args = arguments(max_steps=4)


class Writes(TrainerCallback):
    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step == 2:
            prompts = torch.randint(0, 256, (1024, 64))
            for some in prompts.split(own.rows or len(prompts)):
                # phase: generate
                model.generate(some, max_new_tokens=own.max_new_tokens or 8, do_sample=False, pad_token_id=0)


trainer = make(model(hidden=256, layers=4), args, Rows(), callbacks=[Writes()])
leave(400)
trainer.train()
