"""Which places in the code may take turns."""

import pytest

from forgather_mem.loops.turns import here, take_turns

FUNCTIONS = "def one(): global a; a = here()\ndef two(): global found; found = take_turns(a)\n"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("for _ in 'ab': a = here()\nfor _ in 'ab': found = take_turns(a)", False),
        ("for _ in 'ab':\n    a = here()\n    found = take_turns(a)", True),
        ("for _ in 'ab':\n    for _ in 'ab': a = here()\n    found = take_turns(a)", True),
        (FUNCTIONS + "one(); two()", False),
        (FUNCTIONS + "while True:\n    one()\n    two()\n    if a: break", True),
        (FUNCTIONS + "for call in (one, two, one): call()", True),
    ],
    ids=["one after the other", "one loop", "loops in a loop", "functions", "functions in a loop", "a table of calls"],
)
def test_what_a_loop_goes_through_may_take_turns(code: str, expected: bool) -> None:
    names = {"here": here, "take_turns": take_turns}
    exec(code.replace("take_turns(a)", "take_turns(a, here())"), names)
    assert names["found"] is expected
