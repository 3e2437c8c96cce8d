"""Functions of ours that a training calls raise in turn, from their first call on and from their third.

For each trainer a random `FAULT_CASES` of them (100, or all with 0), chosen by `FAULT_SEED`: all of them take hours.
"""

import gc
import io
import os
import random
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from forgather_mem.actions import freeze
from forgather_mem.probes.cleanup_calls import _COUNTING
from tests.faults import failing, functions
from tests.faulty_trainings import all_callbacks, loop_training, of_the_process, trainer_training

pytestmark = [pytest.mark.soak, pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]
NUM_CASES = int(os.environ.get("FAULT_CASES", "100"))
SEED = int(os.environ.get("FAULT_SEED", "20261122"))
ERRORS: tuple[Callable[[], Exception], ...] = (
    RuntimeError, OSError, MemoryError, RecursionError, StopIteration, lambda: torch.OutOfMemoryError("injected"),
)  # fmt: skip
# The fence itself, where the training calls us: its `try` stands in these.
ENTRIES = (
    "guard:", "RuleCallback.on_", "RuleCallback._event", "method_patches:MethodPatch.__call__", "method_patches:_Call.",
)  # fmt: skip
# The loop is the trainer here; its users call it.
TRAINER = ("training_loop:", "state:")
# What puts things back: where these fail at each call, nothing can.
RESTORERS = (
    "HeapHold.give_back", "_Cleanups._close", "Link.end", "Link.settle", "Link.detach", "Run.put_back",
    "MethodPatches._take_away", "MethodPatches.unwrap_all", ":_uncounted",
)  # fmt: skip


@pytest.fixture(scope="module", autouse=True)
def _heap_out_of_sight() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def repair() -> None:
    freeze._holding.clear()
    gc.enable()
    gc.callbacks[:] = [one for one in gc.callbacks if not type(one).__module__.startswith("forgather_mem")]
    sys.settrace(None)
    for module in (torch.cuda, torch.cuda.memory):
        while hasattr(module.empty_cache, _COUNTING):
            module.empty_cache = getattr(module.empty_cache, _COUNTING).function


def cases(called: dict[str, int]) -> list[tuple[str, int]]:
    """The functions that are to raise, and from which of their calls on."""
    mine = [key for key in sorted(called) if not any(part in key for part in ENTRIES + TRAINER)]
    return [(key, from_call) for key in mine for from_call in (1, 3) if called[key] >= from_call]


@pytest.mark.parametrize("train", [loop_training, trainer_training])
def test_every_function_of_ours_raises_in_turn_and_no_training_notices(
    train: Callable[[list[TrainerCallback], Path], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def go(name: str, callbacks: list[TrainerCallback]) -> str:
        with redirect_stderr(io.StringIO()):
            return str(train(callbacks, tmp_path / name))

    for warm in ("a", "b"):  # what the first trainings of a process leave on it, a later one does not change
        expected = go(warm, [])
    all_functions, before = functions(), of_the_process()
    with ExitStack() as stack:
        counts = {key: stack.enter_context(failing(one, None)) for key, one in all_functions.items()}
        assert go("counted", all_callbacks(io.StringIO())) == expected
    called = {key: count.calls for key, count in counts.items() if count.calls}
    assert len(called) > 600
    every = cases(called)
    chosen = random.Random(SEED).sample(every, min(NUM_CASES or len(every), len(every)))
    wrong = []
    for number, (key, from_call) in enumerate(chosen):
        restores = any(part in key for part in RESTORERS)
        callbacks = all_callbacks(io.StringIO())
        try:
            with failing(all_functions[key], ERRORS[number % len(ERRORS)], from_call):
                found = go(str(number), callbacks)
            if found != expected and not restores:
                wrong.append(f"{key} from call {from_call}: another training: {found}, not {expected}")
        except Exception as raised:
            wrong.append(f"{key} from call {from_call}: {raised!r}")
        if of_the_process() != before and not restores:
            wrong.append(f"{key} from call {from_call}: left behind: {of_the_process()}")
        repair()
    with capsys.disabled():
        print(f"\n{len(chosen):,} of {len(every):,} trainings, {len(wrong)} of them harmed")
    assert not wrong, "\n".join(wrong)
