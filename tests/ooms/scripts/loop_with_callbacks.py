"""A loop of one's own with a TrainingLoop; the script brings its reporter itself."""

import torch
from common import Rows, arguments, leave, model, pad
from torch.utils.data import DataLoader

from forgather_mem import TrainingLoop, load_callbacks

own, args = arguments(per_device_train_batch_size=8)
net = model(vocabulary=2048)
optimizer = torch.optim.AdamW(net.parameters())
lengths = [32 + 8 * (number % 37) for number in range(8 * 15)] + [3000] * 8
data = DataLoader(Rows(lengths, 128, longest=own.max_length), args.per_device_train_batch_size, collate_fn=pad)
loop = TrainingLoop(net, optimizer, args=args, callbacks=load_callbacks("callbacks/watch.yaml"))
# phase: forward
leave(330)
with loop.train(), loop.epoch():
    for batch in data:
        with loop.step():
            net(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
