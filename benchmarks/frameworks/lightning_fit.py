import lightning
import tiny
import torch


class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net, self.step_outputs = tiny.net(), []

    def training_step(self, batch, index):
        loss = (self.net(batch[0]) - batch[1]).square().mean()
        self.step_outputs.append(torch.ones(50_000))  # leak: step_outputs
        return loss

    def validation_step(self, batch, index):
        self.log("val", (self.net(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = lightning.Trainer(
    max_steps=tiny.STEPS, accelerator="cpu", logger=False, enable_progress_bar=False, val_check_interval=80
)
trainer.fit(Net(), tiny.loader(), tiny.loader(64))
print("loss", float(trainer.callback_metrics["val"]))
