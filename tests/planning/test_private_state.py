"""What torch and others have promised nobody."""

import pytest
import torch
from torch import nn

import forgather_mem
from forgather_mem.planning.private_state import replace
from forgather_mem.planning.result import Plan
from tests.planning.compared import plain_step

pytestmark = [pytest.mark.plans, pytest.mark.alone(forked=True)]


def planned() -> Plan:
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    return forgather_mem.plan(plain_step(model, optimizer), model, optimizer, torch.zeros(4, 64))


def test_what_a_version_does_not_have_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    peak_bytes = planned().peak_bytes
    monkeypatch.delattr(torch.amp.GradScaler, "_maybe_opt_step")
    plan = planned()
    assert plan.peak_bytes == peak_bytes
    (note,) = plan.notes
    assert note.startswith(f"torch {torch.__version__} is not as it was tried (torch 2.6 and ")
    assert "_maybe_opt_step" in note


def test_what_is_not_imported_is_not_used() -> None:
    notes: list[str] = []
    replace("no_such_library:Thing.method", lambda _: None, notes)
    assert notes == []
