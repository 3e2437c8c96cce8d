"""What torch finds out of an operation on tensors without values, it keeps: here before the forks that plan."""

import ctypes

import torch

from forgather_mem.planning.model import Emptied
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.storage_log import StorageLog
from tests.training import Tokens, tiny_model


def learn() -> None:
    """Of a plan of `make_trainer()` a third goes into operations that are new to a process; each child is new."""
    state = torch.get_rng_state()
    model, rows = tiny_model(), Tokens(8)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=False)
    mode = Pretending(StorageLog())
    emptied = Emptied(mode, StorageLog())
    emptied.model(model)
    emptied.optimizer(optimizer)
    with mode:
        for _ in range(2):
            batch = {name: torch.stack([row[name] for row in rows][:4]) for name in ("input_ids", "labels")}
            model(**batch).loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        with torch.no_grad():
            batch = {name: torch.stack([row[name] for row in rows]) for name in ("input_ids", "labels")}
            torch.cat([model(**batch).logits, model(**batch).logits])
    torch.set_rng_state(state)
    ctypes.CDLL(None).malloc_trim(0)  # tests look at what the heap holds, and at what a trim frees
