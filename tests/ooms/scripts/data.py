"""A collator makes something large from a long sample."""

import numpy as np
import torch
from common import Rows, arguments, leave, make, model, pad

own, args = arguments(per_device_train_batch_size=8, max_steps=12)


def collate(rows):
    batch = pad(rows)
    shape = (*batch["input_ids"].shape, 4096)
    one_hot = np.zeros(shape, dtype=np.float32)  # phase: data
    np.put_along_axis(one_hot, batch["input_ids"].numpy()[:, :, None], 1, axis=2)
    weight = torch.from_numpy(one_hot.sum((0, 1)))
    batch["input_ids"] = batch["input_ids"] + 0 * int(weight[0])
    return batch


lengths = [32 + 8 * (number % 37) for number in range(79)] + [4000] + [40] * 16
trainer = make(model(), args, Rows(lengths, 96, longest=own.max_length), collator=collate)
leave(400)
trainer.train()
