"""The pytest fixture `assert_no_growth`: fails if repeated calls leave ever more memory behind.

Nothing but pytest is imported until a test uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import pytest


class NoGrowth(Protocol):
    """The type of the fixture."""

    def __call__(
        self, call: Callable[[], object], *, calls: int = 64, warm_up: int = 8, max_bytes: float = 1024.0
    ) -> None: ...


@pytest.fixture
def assert_no_growth() -> NoGrowth:
    """Calls a function many times and fails when each call leaves memory behind, naming who holds it.

    Use it as `assert_no_growth(lambda: train_step(batch), calls=64, warm_up=8, max_bytes=1024)`. Counted is what the
    C library's allocator has given out, Python's small objects and tensors on the accelerator, after a garbage
    collection; a cache that fills during the warm-up does not count.

    Args:
        call: Called without arguments; what it returns is dropped.
        calls: How often, after the warm-up; 32 at least.
        warm_up: Calls before anything is measured.
        max_bytes: What a call may leave behind.
    """

    def check(call: Callable[[], object], *, calls: int = 64, warm_up: int = 8, max_bytes: float = 1024.0) -> None:
        from forgather_mem.diagnose.leaks.repeated import growth_of_calls

        __tracebackhide__ = True
        text = growth_of_calls(call, calls=calls, warm_up=warm_up, max_bytes=max_bytes)
        if text is not None:
            pytest.fail(text)

    return check
