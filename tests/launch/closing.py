"""A plain loop that closes all files from 3 on, as daemons do, and has many of its own after that."""

import os

import torch

model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mine = []
for step in range(300):
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    if step in (20, 150):
        os.closerange(3, 4096)
        mine = [os.open(f"mine{number}", os.O_RDWR | os.O_CREAT, 0o644) for number in range(1_000)]
        for file in mine:
            os.ftruncate(file, 0)
            os.pwrite(file, b"mine", 0)
print(all(os.pread(file, 100, 0) == b"mine" for file in mine), {os.stat(f"mine{n}").st_size for n in range(1_000)})
