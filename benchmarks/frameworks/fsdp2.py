import tiny
import torch
from torch import distributed
from torch.distributed.fsdp import fully_shard

distributed.init_process_group("gloo")
mesh = distributed.init_device_mesh("cpu", (distributed.get_world_size(),))
model = tiny.net()
for layer in model:
    fully_shard(layer, mesh=mesh)
fully_shard(model, mesh=mesh)
stash = []
for loss in tiny.steps(model, torch.optim.AdamW(model.parameters())):
    stash.append(torch.ones(50_000))  # leak: stash
if distributed.get_rank() == 0:
    print("loss", loss.item())
distributed.destroy_process_group()
