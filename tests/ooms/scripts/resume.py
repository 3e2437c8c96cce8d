"""A checkpoint's weights are in memory beside the model while they are loaded. Most of them are frozen."""

import gc
import resource
from pathlib import Path

from common import Rows, arguments, leave, make, model
from transformers import AutoModelForCausalLM


def frozen(net):
    for name, weight in net.named_parameters():
        weight.requires_grad = "norm" in name
    return net


own, args = arguments(save_strategy="steps", save_steps=2, max_steps=3)
make(frozen(model(hidden=1024, layers=6)), args, Rows()).train()
checkpoint = str(Path(args.output_dir) / "checkpoint-2")
args.save_strategy = "no"
resumes = args.resume_from_checkpoint != "False"
net = model(hidden=1024, layers=6) if resumes else AutoModelForCausalLM.from_pretrained(checkpoint)
trainer = make(frozen(net), args, Rows())
gc.collect()
# phase: resume
leave(160, resource.RLIMIT_AS)
trainer.train(resume_from_checkpoint=checkpoint if resumes else None)
