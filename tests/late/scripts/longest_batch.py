"""One sample is far longer than all others, and comes late in a shuffled epoch (unsloth#1391, transformers#11388)."""

from common import limit, make, model, options, padded, peak_of, samples

own = options(limit=110, longest=1500)
data = samples(2400, 20, 200, longest=own.longest, at=1084)
if own.fixed:
    data = [{"input_ids": sample["input_ids"][:512]} for sample in data]
trainer = make(
    model(hidden=64, layers=2),
    data,
    # Many epochs make it worth a plan; it fails in the first
    arguments={"max_steps": -1, "num_train_epochs": 1 if own.fixed or not own.limit else 100},
    data_collator=padded,
)
limit(own.limit)
if own.limit:
    trainer.train()
else:
    of_batch = trainer.training_step

    def measured(model, inputs, *more):
        if inputs["input_ids"].shape[1] < own.longest:
            return of_batch(model, inputs, *more)
        losses = []
        peak_of(lambda: losses.append(of_batch(model, inputs, *more)))
        return losses[0]

    trainer.training_step = measured
    trainer.train()
