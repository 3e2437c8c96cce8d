"""What stands before the failed line of a function, and what was to become of what it could not make."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest
import torch

from forgather_mem.heap.failed_lines import has_passed, is_closure, may_train, stays_in_batch, user_line


def full(*_: Any, **__: Any) -> Any:
    raise MemoryError


def frames(work: Callable[[], object]) -> list[FrameType]:
    with pytest.raises(MemoryError) as caught:
        work()
    entries, part = [], caught.tb
    while part is not None:
        entries.append(part.tb_frame)
        part = part.tb_next  # type: ignore[assignment]
    return entries


def get_batch_samples(collate: Callable[[list[int]], object]) -> object:
    """Stands for the function of transformers' Trainer that has this name."""
    return collate([1, 2])


def returns_it(rows: list[int]) -> dict[str, Any]:
    mask = full(
        rows,
    )
    return {"rows": rows, "mask": mask}


def returns_it_at_once(rows: list[int]) -> Any:
    return full(rows)


def returns_another(rows: list[int]) -> list[int]:
    one_hot = full(rows)
    rows.append(int(one_hot))
    return rows


@pytest.mark.parametrize(
    ("collate", "stays"), [(returns_it, True), (returns_it_at_once, True), (returns_another, False)]
)
def test_what_a_collator_returns_stays_in_the_batch(collate: Callable[[list[int]], object], stays: bool) -> None:
    assert stays_in_batch(frames(lambda: get_batch_samples(collate))) is stays
    assert not stays_in_batch(frames(lambda: collate([1])))  # of a loop that makes one batch at a time


def test_a_sample_does_not_stay() -> None:
    class Rows:
        def __getitem__(self, index: int) -> Any:
            return full()

    found = frames(lambda: get_batch_samples(lambda rows: Rows()[0]))
    assert not stays_in_batch(found)
    assert user_line([(frame, frame.f_lineno) for frame in found], MemoryError())[1]


def test_a_data_workers_lines_are_read_from_its_text() -> None:
    text = (
        "Caught MemoryError in DataLoader worker process 0.\nOriginal Traceback (most recent call last):\n"
        f'  File "{torch.__file__}", line 54, in fetch\n'
        '  File "/home/me/train.py", line 7, in __getitem__\n    image = wide()\n'
    )
    assert user_line([], RuntimeError(text)) == ("train.py:7", True)
    assert user_line([], RuntimeError("CUDA out of memory")) == (None, False)


def test_a_backward_pass_that_was_passed_is_one_on_an_earlier_line() -> None:
    loss = torch.zeros((), requires_grad=True)

    def before() -> None:
        full()
        loss.backward()

    def after() -> None:
        loss.backward()
        full()

    inner = [frames(work)[-2] for work in (before, after)]
    assert [has_passed(frame, frame.f_lineno, ("backward",)) for frame in inner] == [False, True]
    assert [may_train(frame, frame.f_lineno) for frame in inner] == [False, True]


def test_a_closure_takes_nothing() -> None:
    def closure() -> None:
        full()

    inner = frames(closure)
    assert [is_closure(frame) for frame in inner[-2:]] == [True, False]
