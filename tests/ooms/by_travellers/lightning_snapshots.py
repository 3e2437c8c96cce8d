"""Time series forecasting with Lightning; the weights of the epochs are to be averaged at the end."""

import copy
import logging
import resource
import warnings

import lightning as L
import torch
import torch.nn.functional as F
from torch import nn

warnings.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
L.seed_everything(0)
torch.set_num_threads(1)
LIMIT_MIB = 600
HISTORY, HORIZON, EPOCHS = 336, 96, 25


class Forecaster(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(HISTORY, 1536),
            nn.ReLU(),
            nn.Linear(1536, 3072),
            nn.ReLU(),
            nn.Linear(3072, 1024),
            nn.ReLU(),
            nn.Linear(1024, HORIZON),
        )

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, _):
        x, y = batch
        loss = F.mse_loss(self(x), y)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-4)


class SnapshotEnsemble(L.Callback):
    """Keeps the weights of each epoch and averages them when training is over."""

    def __init__(self):
        self.snapshots = []

    def on_train_epoch_end(self, trainer, module):
        self.snapshots.append(copy.deepcopy(module.state_dict()))
        print(f"epoch {trainer.current_epoch}: {len(self.snapshots)} snapshots", flush=True)

    def on_train_end(self, trainer, module):
        with torch.no_grad():
            for name, value in module.state_dict().items():
                value.copy_(sum(s[name] for s in self.snapshots) / len(self.snapshots))


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


series = torch.sin(torch.arange(4000) / 24 * 6.2832) + 0.1 * torch.randn(4000)
windows = series.unfold(0, HISTORY + HORIZON, 64)
dataset = torch.utils.data.TensorDataset(windows[:, :HISTORY].contiguous(), windows[:, HISTORY:].contiguous())
loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
module = Forecaster()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
    callbacks=[SnapshotEnsemble()],
)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
trainer.fit(module, loader)
print("done")
