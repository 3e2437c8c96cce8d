"""One batch is much longer than all before."""

from common import Rows, arguments, leave, make, model

own, args = arguments(per_device_train_batch_size=8, max_steps=20)
lengths = [32 + 8 * (number % 37) for number in range(8 * 15)] + [2400] * 8 + [40] * 40
trainer = make(model(vocabulary=2048), args, Rows(lengths, 168, longest=own.max_length))
# phase: forward
leave(240)
trainer.train()
