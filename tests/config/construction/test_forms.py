"""Each form of a value that has a tag: what it builds, empty, of one item, of a line `[a]`, and of a block."""

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.source.syntax import FORMS, SEQUENCES
from forgather_mem.errors import TemplateError

BLOCK = "x: !{tag}\n    [a]\n    {item}\ny: 1"
EMPTY, ONE_ITEM, LINE = "x: !{tag}", "x: !{tag}\n    {item}", "x: !{tag}\n    [a]\ny: 1"
# Empty, of one item, of the line `[a]`, and where that line opens a block, as it does before what is not a sequence.
BUILT: dict[str, tuple[object, ...]] = {
    "list": ([], [1], ["a"], [1]),
    "tuple": ((), (1,), ("a",), (1,)),
    "dict": ({}, {"name": "v"}, {}, {"name": "v"}),
    "dlist": ([], ["v"], [], ["v"]),
    "var": (None, 7, None, 7),
}
REFUSED = dict.fromkeys([("var", 0), ("var", 2)], "does not say which variable")


@pytest.mark.parametrize("tag", FORMS)
@pytest.mark.parametrize("number", range(4), ids=["empty", "one item", "line", "block"])
def test_each_form_is_built_however_it_is_written(tag: str, number: int) -> None:
    text = (EMPTY, ONE_ITEM, LINE, BLOCK)[number].format(tag=tag, item="- 1" if tag in SEQUENCES else "name: v")
    built, refused = BUILT[tag][number], REFUSED.get((tag, number))
    if refused is not None:
        with pytest.raises(TemplateError, match=refused):
            ConfigEnvironment().load_from_string(text)
        return
    found = ConfigEnvironment().load_from_string(text).construct(context_vars={"v": 7})["x"]
    assert (found, type(found)) == (built, type(built))
