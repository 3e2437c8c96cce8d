import tiny
import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer

torch.manual_seed(0)
model = TensorDictModule(tiny.net(), in_keys=["observation"], out_keys=["value"])
buffer = TensorDictReplayBuffer(storage=LazyTensorStorage(2000), batch_size=32)
buffer.extend(TensorDict({"observation": torch.randn(2000, 64), "wanted": torch.randn(2000, 1)}, [2000]))
optimizer = torch.optim.Adam(model.parameters())
batches = []
for _ in range(tiny.STEPS):
    batch = model(buffer.sample())
    loss = (batch["value"] - batch["wanted"]).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    batches.append(torch.ones(50_000))  # leak: batches
print("loss", loss.item())
