import pytorch_lightning
import tiny
import torch


class Gan(pytorch_lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.automatic_optimization = False
        self.tells = tiny.net()  # seeds what follows
        self.makes = torch.nn.Linear(64, 64)

    def training_step(self, batch, index):
        first, second = self.optimizers()
        for optimizer in (first, second):
            loss = (self.tells(self.makes(batch[0])) - batch[1]).square().mean()
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()
        self.last = loss.detach()

    def configure_optimizers(self):
        return torch.optim.Adam(self.makes.parameters()), torch.optim.Adam(self.tells.parameters())


class Keep(pytorch_lightning.Callback):
    def __init__(self):
        self.images = []

    def on_train_batch_end(self, *args):
        self.images.append(torch.ones(50_000))  # leak: images


gan = Gan()
trainer = pytorch_lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_progress_bar=False, callbacks=[Keep()]
)
trainer.fit(gan, tiny.loader())
print("loss", gan.last.item())
