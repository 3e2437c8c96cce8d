"""A training that runs out of memory at its longest batch, on a GPU or (`--use_cpu True`) on the host.

It takes all of TrainingArguments, as users' scripts do: benchmarks/device.py applies the first advice to it.
"""

import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "ooms" / "scripts"))
from common import Rows, arguments, leave, make, model

own, args = arguments(per_device_train_batch_size=8, max_steps=20)
lengths = [32 + 8 * (number % 37) for number in range(8 * 15)] + [2400] * 8 + [40] * 40
trainer = make(model(vocabulary=2048), args, Rows(lengths, 168, vocabulary=2048, longest=own.max_length))
if args.use_cpu:
    leave(240)
else:
    total = torch.cuda.mem_get_info()[1]
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 240 * 2**20) / total)
trainer.train()
