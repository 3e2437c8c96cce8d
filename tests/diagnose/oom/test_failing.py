"""A run that an exception has ended is closed with the word for it."""

from types import SimpleNamespace

import pytest
import torch

from forgather_mem.diagnose.oom.recognition import close_failed, close_fenced
from forgather_mem.engine.run import Run

ENDS = [
    (MemoryError(), "oom"),
    (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."), "oom"),
    (ValueError("no memory of it"), "exception"),
    (KeyboardInterrupt(), "interrupted"),
    (SystemExit(3), "interrupted"),
]


def begun() -> Run:
    return Run.begin(SimpleNamespace(output_dir=None), SimpleNamespace(global_step=0))


@pytest.mark.parametrize(("error", "end"), ENDS, ids=lambda value: type(value).__name__)
def test_the_end_is_told_by_the_error(error: BaseException, end: str) -> None:
    for close in (close_failed, close_fenced):
        run = begun()
        close(run, error)
        assert (run.closed, run.facts.end) == (True, end)
        close(run, ValueError())
        assert run.facts.end == end, "the first report is right"


def test_an_error_that_can_not_be_looked_at_is_an_exception_as_any_other() -> None:
    class Unspeakable(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    run = begun()
    close_failed(run, Unspeakable())
    assert run.facts.end == "exception"


def test_without_an_error_it_has_finished() -> None:
    run = begun()
    close_fenced(run)
    assert (run.closed, run.facts.end) == (True, "finished")
