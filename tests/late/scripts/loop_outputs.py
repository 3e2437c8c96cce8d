"""A plain loop keeps the outputs of its evaluation in a list (transformers#8476: "write your own loop")."""

import torch
from common import Rows, limit, model, options, peak_of
from torch.utils.data import DataLoader

own = options(limit=65)
net = model(vocabulary=250)
optimizer = torch.optim.AdamW(net.parameters())


def train():
    for batch in DataLoader(Rows(64, vocabulary=250), batch_size=4):
        net(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    net.eval()
    outputs = []
    with torch.no_grad():
        for batch in DataLoader(Rows(6800, vocabulary=250), batch_size=4):
            logits = net(input_ids=batch["input_ids"]).logits
            outputs.append(logits.argmax(-1) if own.fixed else logits)
    print(f"keeps {sum(output.nbytes for output in outputs) / 2**20:.1f} MiB")


limit(own.limit)
peak_of(train)
