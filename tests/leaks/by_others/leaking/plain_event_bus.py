"""Small training framework with an event bus; transformer encoder classifier."""
import collections
import csv
import decimal
import fractions
import statistics

import torch
from torch import nn

FILES = [csv, fractions, statistics, collections]
SEQ = 40
BATCH = 8
EPOCHS = 5
PER_EPOCH = 70


class EventBus:
    def __init__(self):
        self.handlers = collections.defaultdict(list)

    def on(self, event, handler):
        self.handlers[event].append(handler)

    def emit(self, event, *args):
        for handler in self.handlers[event]:
            handler(*args)


class Classifier(nn.Module):
    def __init__(self, dim=48, classes=len(FILES)):
        super().__init__()
        self.emb = nn.Embedding(128, dim)
        layer = nn.TransformerEncoderLayer(dim, 4, 96, dropout=0.0, batch_first=True)
        self.enc = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.head = nn.Linear(dim, classes)

    def forward(self, x):
        features = self.enc(self.emb(x))
        return features, self.head(features.mean(1))


class Session:
    def __init__(self):
        self.bus = EventBus()
        self.model = Classifier()
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.texts = [torch.tensor([min(ord(c), 127) for c in open(m.__file__).read()])
                      for m in FILES]
        self.losses = collections.deque(maxlen=PER_EPOCH)
        self.worst = []
        self.bus.on("epoch_end", self.report)

    def report(self, epoch):
        print("epoch", epoch, "loss", decimal.Decimal(statistics.mean(self.losses)).quantize(
            decimal.Decimal("0.001")), "worst", max(self.worst, default=0))
        self.worst.clear()

    def batch(self):
        y = torch.randint(0, len(FILES), (BATCH,))
        rows = []
        for k in y.tolist():
            i = torch.randint(0, len(self.texts[k]) - SEQ, (1,)).item()
            rows.append(self.texts[k][i:i + SEQ])
        return torch.stack(rows), y

    def step(self):
        x, y = self.batch()
        features, logits = self.model(x)
        loss = nn.functional.cross_entropy(logits, y)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.losses.append(loss.item())

        def spread(epoch, features=features.detach()):
            self.worst.append(round(features.std().item(), 3))

        self.bus.on("epoch_end", spread)


def main():
    torch.manual_seed(0)
    session = Session()
    for epoch in range(EPOCHS):
        for _ in range(PER_EPOCH):
            session.step()
        session.bus.emit("epoch_end", epoch)


if __name__ == "__main__":
    main()
