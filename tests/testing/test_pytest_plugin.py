"""The fixture `assert_no_growth`, used as a test would."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from forgather_mem.testing import pytest_plugin
from forgather_mem.testing.pytest_plugin import NoGrowth

KEPT: list[torch.Tensor] = []
assert_no_growth = pytest_plugin.assert_no_growth  # also where the entry point is not installed


def test_a_call_that_leaves_nothing_passes(assert_no_growth: NoGrowth) -> None:
    assert_no_growth(lambda: torch.zeros(10_000).sum().item())


@pytest.mark.fresh
def test_a_call_that_keeps_a_tensor_fails_with_its_holder(assert_no_growth: NoGrowth) -> None:
    def step() -> None:
        KEPT.append(torch.zeros(10_000))

    with pytest.raises(pytest.fail.Exception) as failure:
        assert_no_growth(step)
    text = str(failure.value)
    assert text.startswith("each call leaves 39")
    assert ".KEPT, added at test_pytest_plugin.py:" in text
    assert "KEPT.append(torch.zeros(10_000))" in text


def test_garbage_that_waits_and_a_cache_that_is_full_are_no_growth(assert_no_growth: NoGrowth) -> None:
    cache: dict[int, torch.Tensor] = {}
    count = iter(range(10_000))

    def step() -> None:
        number = next(count)
        cache[number % 8] = torch.zeros(10_000)
        cycle: list[object] = [torch.zeros(5_000)]
        cycle.append(cycle)

    assert_no_growth(step, warm_up=16)


def test_too_few_calls_are_refused(assert_no_growth: NoGrowth) -> None:
    with pytest.raises(ValueError, match=r"assert_no_growth\(calls=3, .*give 32 calls or more"):
        assert_no_growth(int, calls=3)


def test_loading_the_plugin_loads_no_torch() -> None:
    code = "import sys, forgather_mem.testing.pytest_plugin; sys.exit('torch' in sys.modules or 'yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
