"""Tensors whose graph keeps another one are found by the name of their holder."""

from typing import Any

import pytest
import torch

from forgather_mem.heap.retained import graph_owners

pytestmark = pytest.mark.alone(forked=True)

KEPT: dict[str, Any] = {}


def test_a_loss_that_is_kept_is_named_as_the_holder_of_what_it_was_computed_from() -> None:
    weight, other = torch.ones(3, requires_grad=True), torch.ones(3, requires_grad=True)
    KEPT["losses"] = [(weight * 2).exp().sum()]
    KEPT["of another"] = other.sum()
    KEPT["no graph"] = torch.zeros(3)
    try:
        paths = [owner.path for owner in graph_owners(weight, budget_s=30.0)]
        assert [path.removeprefix(f"{__name__}.") for path in paths] == ["KEPT['losses'][0]"]
    finally:
        KEPT.clear()
