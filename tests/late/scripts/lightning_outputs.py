"""A Lightning module keeps what `validation_step` has predicted until the end of the epoch (lightning#8453, #16520)."""

import logging

import lightning
import torch
from common import Rows, limit, model, options, peak_of
from torch.utils.data import DataLoader

logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
own = options(limit=65)


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = model(vocabulary=250)
        self.outputs = []

    def training_step(self, batch, index):
        return self.net(**batch).loss

    def validation_step(self, batch, index):
        logits = self.net(input_ids=batch["input_ids"]).logits
        self.outputs.append(logits.argmax(-1) if own.fixed else logits)

    def on_validation_epoch_end(self):
        print(f"keeps {sum(output.nbytes for output in self.outputs) / 2**20:.1f} MiB")
        self.outputs.clear()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


trainer = lightning.Trainer(
    max_epochs=1,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    num_sanity_val_steps=0,
)
module = Module()
limit(own.limit)
peak_of(
    lambda: trainer.fit(
        module, DataLoader(Rows(64, vocabulary=250), batch_size=4), DataLoader(Rows(6800, vocabulary=250), batch_size=4)
    )
)
