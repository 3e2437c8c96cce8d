"""Node classification on one big graph, full batch, with a graph attention network in Lightning."""

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
LIMIT_MIB = 960
NODES, EDGES, FEATURES, HIDDEN, CLASSES, EPOCHS = 20_000, 500_000, 32, 64, 10, 2


class GATLayer(nn.Module):
    def __init__(self, cin, cout):
        super().__init__()
        self.linear = nn.Linear(cin, cout)
        self.source, self.target = nn.Linear(cout, 1), nn.Linear(cout, 1)

    def forward(self, x, edges):
        src, dst = edges
        h = self.linear(x)
        score = F.leaky_relu(self.source(h)[src] + self.target(h)[dst], 0.2).squeeze(-1).clamp(-5, 5).exp()
        norm = torch.zeros(len(x)).index_add(0, dst, score)
        alpha = score / norm[dst].clamp_min(1e-6)
        messages = h[src] * alpha.unsqueeze(-1)
        return torch.zeros_like(h).index_add(0, dst, messages)


class NodeClassifier(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([GATLayer(FEATURES, HIDDEN), GATLayer(HIDDEN, HIDDEN), GATLayer(HIDDEN, HIDDEN)])
        self.head = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x, edges):
        for layer in self.layers:
            x = F.elu(layer(x, edges))
        return self.head(x)

    def training_step(self, batch, _):
        x, edges, y, mask = batch
        loss = F.cross_entropy(self(x, edges)[mask], y[mask])
        self.log("train_loss", loss, batch_size=1)
        print(f"epoch {self.current_epoch}: loss {loss.item():.4f}", flush=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=5e-3)


def vm_data():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData"))


y = torch.randint(CLASSES, (NODES,))
x = F.one_hot(y, FEATURES).float() + torch.randn(NODES, FEATURES)
graph = (x, torch.randint(NODES, (2, EDGES)), y, torch.rand(NODES) < 0.6)
loader = torch.utils.data.DataLoader([graph], batch_size=None)
module = NodeClassifier()
trainer = L.Trainer(
    max_epochs=EPOCHS,
    accelerator="cpu",
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
limit = vm_data() + LIMIT_MIB * 2**20
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
trainer.fit(module, loader)
print("done")
