"""The fixture `assert_no_growth`, used as a test would."""

import importlib.metadata
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forgather_mem.testing import pytest_plugin
from tests.launch.commands import RUN, python, run

KEPT: list[torch.Tensor] = []
assert_no_growth = pytest_plugin.assert_no_growth  # also where the entry point is not installed


@pytest.mark.fresh
def test_a_call_that_keeps_a_tensor_fails_with_its_holder(assert_no_growth: Callable[..., None]) -> None:
    def step() -> None:
        KEPT.append(torch.zeros(10_000))

    with pytest.raises(pytest.fail.Exception) as failure:
        assert_no_growth(step)
    text = str(failure.value)
    assert text.startswith("each call leaves 39")
    assert ".KEPT, added at tests/testing/test_pytest_plugin.py:" in text
    assert "KEPT.append(torch.zeros(10_000))" in text


def test_garbage_that_waits_and_a_cache_that_is_full_are_no_growth(assert_no_growth: Callable[..., None]) -> None:
    cache: dict[int, torch.Tensor] = {}
    count = iter(range(10_000))

    def step() -> None:
        number = next(count)
        cache[number % 8] = torch.zeros(10_000)
        cycle: list[object] = [torch.zeros(5_000)]
        cycle.append(cycle)

    assert_no_growth(step, warm_up=16)


def test_too_few_calls_are_refused(assert_no_growth: Callable[..., None]) -> None:
    with pytest.raises(ValueError, match=r"assert_no_growth\(calls=3, .*give 32 calls or more"):
        assert_no_growth(int, calls=3, max_bytes="1 MiB")


MARKED = """
import gc
import pytest
import torch

KEPT = []

@pytest.mark.limit_peak("40 MiB")
def test_peak_is_kept():
    torch.ones(2**20)

@pytest.mark.limit_peak("40 MiB")
def test_peak_is_broken():
    torch.ones(25 * 2**20)

@pytest.mark.limit_growth("1 MiB")
def test_growth_is_kept():
    torch.ones(25 * 2**20)

@pytest.mark.limit_growth("1 MiB")
def test_new_modules():
    import sympy

@pytest.mark.limit_peak("2 MiB")
@pytest.mark.limit_growth("1 MiB")
def test_growth_is_broken():
    KEPT.append(torch.ones(2**20))

@pytest.mark.limit_peak("200 MB")
def test_a_wrong_size():
    pass

@pytest.mark.parametrize("size", [pytest.param(one, marks=pytest.mark.limit_peak(one)) for one in (200, "200")])
def test_a_number_may_be_meant_in_any_unit(size):
    pass

@pytest.mark.limit_peak("1 GiB")
def test_that_fails_itself():
    assert 1 == 2

def test_a_block(memory):
    with memory() as used:
        with pytest.raises(RuntimeError, match="read it below the block"):
            used.peak_bytes
        torch.ones(25 * 2**20)
    assert 95 * 2**20 < used.peak_bytes < 160 * 2**20
    assert used.left_bytes < 20 * 2**20

def test_a_block_without_parentheses(memory):
    with pytest.raises(RuntimeError, match=r"write `with memory\\(\\) as used:`"):
        memory.peak_bytes
    with memory as used:
        pass
    with pytest.raises(RuntimeError, match="this measures one block"), memory:
        pass
    assert used.peak_bytes < 2**20
"""


@pytest.mark.slow
def test_marks_limit_what_a_test_takes_and_leaves_and_a_block_is_measured(tmp_path: Path) -> None:
    (tmp_path / "test_marked.py").write_text(MARKED)
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:randomly", "--strict-markers", "-rA", "--no-header"]
    plugin = [] if _is_installed() else ["-p", "forgather_mem.testing.pytest_plugin"]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", *options, *plugin, "test_marked.py"], cwd=tmp_path, text=True,
        capture_output=True, check=False, env={**os.environ, "COLUMNS": "200"},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if line.startswith(("PASSED", "FAILED"))]
    told = {line.split("::")[1].split(" - ")[0]: line.partition(" - ")[2] for line in lines}
    assert sorted(name for name, why in told.items() if not why) == [
        "test_a_block", "test_a_block_without_parentheses", "test_growth_is_kept", "test_peak_is_kept",
    ], done.stdout  # fmt: skip
    assert re.search(r"took (9|1[0-4])\d\.\d MiB, over limit_peak\(40\.0 MiB\)$", told["test_peak_is_broken"])
    assert re.search(r"took .* and left 4\.\d MiB, over limit_growth\(1\.0 MiB\)$", told["test_growth_is_broken"])
    assert re.search(r"imported meanwhile \([\d,]+\): import and use them in a fixture", told["test_new_modules"])
    assert told["test_a_wrong_size"] == "Failed: @pytest.mark.limit_peak: '200 MB': unknown unit 'MB'; write 200MiB"
    assert done.stdout.count('\n@pytest.mark.limit_peak takes one size with its unit, such as "200 MiB"') == 2
    assert "another exception occurred" not in done.stdout
    assert told["test_that_fails_itself"].startswith("assert 1 == 2")


LOOP = """
import pytest

def test_that_passes():
    assert [1] == [1]

def test_a_loop():
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.SGD([parameter])
    for _ in range(3):
        parameter.sum().backward()
        optimizer.step()

def test_that_fails():
    assert [1] == [2]
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "selected"),
    [(["-W", "error"], "passes or fails"), ([], "passes or fails"), pytest.param([], "", marks=pytest.mark.soak)],
    ids=["all warnings are errors", "without torch", "with torch"],
)
def test_a_suite_under_run_prints_what_it_prints_alone(tmp_path: Path, options: list[str], selected: str) -> None:
    """pytest warns of packages with a plugin that are imported before it could rewrite them; ours is by then."""
    (tmp_path / "test_loop.py").write_text(LOOP)
    (tmp_path / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    words = ["-m", "pytest", "-p", "no:cacheprovider", "-p", "no:randomly", *options, "-k", selected]
    alone, ours = (run(command, tmp_path) for command in (python(*words), [*RUN, *words]))
    assert (ours.code, _without_times(ours.out)) == (alone.code, _without_times(alone.out))
    assert "1 failed, " in alone.out
    assert ours.err.startswith("forgather-mem: watching pytest")


def _without_times(text: str) -> str:
    return re.sub(r"=* (.*) in [0-9.]+s =*", r"\1", text)


def _is_installed() -> bool:
    found = importlib.metadata.entry_points(group="pytest11")
    return any(entry.value == "forgather_mem.testing.pytest_plugin" for entry in found)
