"""For pytest: `limit_peak` and `limit_growth` mark what a test may take, the fixture `memory` measures a block of it.

`assert_no_growth` fails if repeated calls leave ever more memory behind. Nothing but pytest is imported until a test
uses one of them.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from forgather_mem.system.usage import Span, UsageSpan, UsageWindow

_MARKERS = (
    'limit_peak(size): fails if the test takes more than "200 MiB" at its peak, above what there was before',
    'limit_growth(size): fails if the test leaves more than "1 MiB" behind, after a garbage collection',
)
_WRITE = "write `with memory() as used:`"


class UsedMemory:
    """What a block took, in bytes; of the device if it was used, else resident memory of the host.

    The fixture `memory` is one, and `memory()` a new one for a block.

    Attributes:
        span: Host and device from its start to its end; None before.
    """

    def __init__(self) -> None:
        self.span: UsageSpan | None = None
        self._window: UsageWindow | None = None

    def __call__(self) -> UsedMemory:
        return UsedMemory()

    def __enter__(self) -> UsedMemory:
        from forgather_mem.system.usage import UsageWindow

        if self._window is not None:
            raise RuntimeError(f"this measures one block; {_WRITE} for each")
        self._window = UsageWindow()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._window is not None
        self.span = self._window.close()

    @property
    def peak_bytes(self) -> int:
        """The peak above what there was at the start."""
        return max((one.peak_bytes - one.start_bytes for one in self._spans()), default=0)

    @property
    def left_bytes(self) -> int:
        """What there was more at the end than at the start; negative if memory was freed."""
        return max((one.consumed_bytes for one in self._spans()), default=0)

    def _spans(self) -> list[Span]:
        if self.span is None:  # a limit would pass
            raise RuntimeError(f"nothing is measured before the block ends: {_WRITE}, and read it below the block")
        return [self.span.device or self.span.host]


@pytest.fixture
def assert_no_growth() -> Callable[..., None]:
    """Calls a function many times and fails when each call leaves memory behind, naming who holds it.

    Use it as `assert_no_growth(lambda: train_step(batch), calls=64, warm_up=8, max_bytes=1024)`. Counted is what the
    C library's allocator has given out, Python's small objects and tensors on the accelerator, after a garbage
    collection; a cache that fills during the warm-up does not count.

    Args:
        call: Called without arguments; what it returns is dropped.
        calls: How often, after the warm-up; 32 at least.
        warm_up: Calls before anything is measured.
        max_bytes: What a call may leave behind; also "1 MiB".
    """

    def check(call: Callable[[], object], *, calls: int = 64, warm_up: int = 8, max_bytes: float | str = 1024) -> None:
        from forgather_mem.diagnose.leaks.repeated import growth_of_calls
        from forgather_mem.units import parse_bytes

        __tracebackhide__ = True
        most = parse_bytes(max_bytes) if isinstance(max_bytes, str) else max_bytes
        if (text := growth_of_calls(call, calls=calls, warm_up=warm_up, max_bytes=most)) is not None:
            pytest.fail(text)

    return check


@pytest.fixture
def memory() -> UsedMemory:
    """Measures a block: `with memory() as used: ...`, then `used.peak_bytes` and `used.left_bytes`."""
    return UsedMemory()


def pytest_configure(config: pytest.Config) -> None:
    for marker in _MARKERS:
        config.addinivalue_line("markers", marker)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    peak, growth = _limit(item, "limit_peak"), _limit(item, "limit_growth")
    if peak is None and growth is None:
        return (yield)
    before_bytes = _allocated_bytes() if growth is not None else 0
    num_modules = len(sys.modules)
    with UsedMemory() as used:
        result = yield
    over = _over("limit_peak", "took", used.peak_bytes, peak)
    if growth is not None:
        new = len(sys.modules) - num_modules
        why = f", with modules imported meanwhile ({new:,}): import and use them in a fixture before" * (new > 0)
        over += [one + why for one in _over("limit_growth", "left", _allocated_bytes() - before_bytes, growth)]
    if over:
        pytest.fail(f"the test {' and '.join(over)}", pytrace=False)
    return result


def _limit(item: pytest.Item, name: str) -> int | None:
    from forgather_mem.units import is_number_text, parse_bytes

    if (marker := item.get_closest_marker(name)) is None:
        return None
    given = marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None
    if isinstance(given, str) and not is_number_text(given):
        try:
            return parse_bytes(given)
        except ValueError as error:
            raise pytest.fail.Exception(f"@pytest.mark.{name}: {error}", pytrace=False) from None
    pytest.fail(f'@pytest.mark.{name} takes one size with its unit, such as "200 MiB"', pytrace=False)


def _over(name: str, what: str, num_bytes: int, limit_bytes: int | None) -> list[str]:
    """What is wrong, if anything is."""
    from forgather_mem.units import format_bytes

    if limit_bytes is None or num_bytes <= limit_bytes:
        return []
    return [f"{what} {format_bytes(num_bytes)}, over {name}({format_bytes(limit_bytes)})"]


def _allocated_bytes() -> int:
    from forgather_mem.diagnose.leaks.sizes import large_bytes, objects_bytes

    gc.collect()
    return int(large_bytes() + objects_bytes())
