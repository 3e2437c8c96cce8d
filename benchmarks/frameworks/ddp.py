import tiny
import torch
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

distributed.init_process_group("gloo")
model = DistributedDataParallel(tiny.net())
stash = []
for loss in tiny.steps(model, torch.optim.AdamW(model.parameters())):
    if distributed.get_rank() == 1:
        stash.append(torch.ones(50_000))  # leak: stash
if distributed.get_rank() == 0:
    print("loss", loss.item())
distributed.destroy_process_group()
