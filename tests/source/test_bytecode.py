"""What a function may still read is told from its bytecode, wherever it stands."""

import sys
from collections.abc import Callable
from types import CodeType
from typing import Any

from forgather_mem.source.bytecode import is_in_loop, uses_again


def here() -> tuple[CodeType, int]:
    frame = sys._getframe(1)
    return frame.f_code, frame.f_lasti


def used(place: tuple[CodeType, int], *names: str) -> list[bool]:
    return [uses_again(*place, name) for name in names]


def take(*_: Any) -> Any:
    return None


def test_a_variable_is_used_again_unless_it_is_set_first() -> None:
    def work(kept: Any, dead: Any, set_again: Any) -> Any:
        take(dead)
        place = here()
        set_again = take(kept)
        take(set_again)
        return place

    assert used(work(1, 2, 3), "kept", "dead", "set_again") == [True, False, False]


def test_in_a_loop_what_the_next_round_reads_counts() -> None:
    def work(rows: Any) -> Any:
        total, place = 0, None
        for row in rows:
            out = take(row)  # noqa: F841
            place = here()
            total += row
        return place, total

    place, _ = work([1])
    assert used(place, "total", "row", "out", "rows") == [True, True, False, False]


def test_a_branch_and_a_handler_may_read_it() -> None:
    def branch(a: Any, b: Any) -> Any:
        place = here()
        if place:
            return place
        return take(a, b)

    def handler(a: Any) -> Any:
        try:
            place = here()
        except ValueError:
            take(a)
        return place

    assert used(branch(1, 2), "a", "b") == [True, True]
    assert used(handler(1), "a") == [True]


def test_a_function_inside_may_read_it() -> None:
    def work(seen: Any) -> Any:
        def inner() -> Any:
            return seen

        return here(), inner

    assert used(work(1)[0], "seen") == [True]
    code = compile("big = 1\ndef later():\n    return big\nplace = here()\nother = 2\n", "script.py", "exec")
    names: dict[str, Any] = {"here": here}
    exec(code, names)
    assert used(names["place"], "big", "other") == [True, False]


def test_what_is_in_a_loop_and_not_before_it_or_in_its_head() -> None:
    def position(work: Callable[[], Any]) -> tuple[CodeType, int]:
        work()
        return places[-1]

    places: list[tuple[CodeType, int]] = []

    def note() -> list[int]:
        frame = sys._getframe(1)
        places.append((frame.f_code, frame.f_lasti))
        return [1]

    def inside() -> None:
        for _ in range(2):
            note()

    def outside() -> None:
        note()
        for _ in range(2):
            take()

    def head() -> None:
        for _ in note():
            take()

    assert [is_in_loop(*position(work)) for work in (inside, outside, head)] == [True, False, False]
