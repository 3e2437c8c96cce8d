"""The path from one object to another reads as a programmer would write it; where it is code: `test_owners`."""

import sys
from collections.abc import Iterator
from typing import Any

from forgather_mem.heap.owner_paths import MAX_KEY_CHARS, attributes_of, frame_name, write_path


class Trainer:
    """Somebody's class."""


def test_where_no_code_leads_there_it_is_said_in_words() -> None:
    thing = Trainer()

    def captures() -> object:
        return thing

    def has_a_default(first: int, kept: object = thing) -> None: ...

    def numbers() -> Iterator[int]:
        inside = thing
        yield 1
        assert inside

    cell = captures.__closure__[0]  # type: ignore[index]
    assert write_path([captures, captures.__closure__, cell, thing]) == ", variable 'thing' of captures"
    defaults = has_a_default.__defaults__
    assert write_path([has_a_default, defaults, thing]) == ", default of 'kept' in has_a_default"
    assert write_path([{thing}, thing]) == "{...}"
    generator = numbers()
    next(generator)
    assert write_path([generator, thing]).startswith(", local 'inside' of numbers (tests/heap/test_owner_paths.py)")
    here = sys._getframe()
    assert write_path([here, thing]) == f", local 'thing' of {frame_name(here)}"


def test_the_names_of_a_module_are_attributes_and_a_long_key_is_cut() -> None:
    space = {"kept": Trainer(), "x" * 100: Trainer()}
    assert write_path([space, space["kept"]], begins_with_namespace=True) == ".kept"
    path = write_path([space, space["x" * 100]])
    assert path.startswith("['xxxx")
    assert path.endswith("x...]")
    assert len(path) <= MAX_KEY_CHARS + 2
    assert write_path([{Trainer: space}, space]) == "[<type>]"


def test_attributes_are_read_without_the_code_of_the_class() -> None:
    class Loud:
        def __getattribute__(self, name: str) -> Any:
            raise AssertionError(name)

    loud = Loud()
    object.__getattribute__(loud, "__dict__")["kept"] = 5
    assert attributes_of(loud) == {"kept": 5}
    assert attributes_of(5) is None
