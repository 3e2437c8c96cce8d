import tiny
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import MeanSquaredError

model = tiny.net()
trainer = create_supervised_trainer(model, torch.optim.AdamW(model.parameters()), torch.nn.MSELoss())
evaluator = create_supervised_evaluator(model, {"mse": MeanSquaredError()})
predictions = []


@trainer.on(Events.ITERATION_COMPLETED)
def keep(engine):
    predictions.append(torch.ones(50_000))  # leak: predictions


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    evaluator.run(tiny.loader(320))


print("loss", trainer.run(tiny.loader(80 * tiny.ROWS), max_epochs=3).output)
