"""What torch finds out of an operation on tensors without values, it keeps: here before the forks that plan."""

import os

import pytest
import torch

from forgather_mem.planning.model import Emptied
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.storage_log import StorageLog
from tests.fresh import IN_CHILD
from tests.training import Tokens, tiny_model


@pytest.fixture(scope="session", autouse=True)
def _steps_are_known() -> None:
    """Of a plan of `make_trainer()` a half goes into operations that are new to a process; each child is new.

    The plans of docs/plan.md and of `forgather-mem plan` are of processes that know nothing.
    """
    if os.environ.get(IN_CHILD):
        return  # where torch computes gradients on threads it could not plan after this
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
