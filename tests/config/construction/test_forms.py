"""Each form of a value that has a tag: what it builds, empty, of one item, a line `[a]`, a block, and of a list.

What `load` refuses, `check` finds.
"""

import contextlib
import sys
from collections import deque
from collections.abc import Set
from pathlib import Path

import pytest

from forgather_mem.config.check import CALLBACKS, callbacks_of, no_callbacks
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.graph import tags
from forgather_mem.config.graph.tags import CALLS
from forgather_mem.config.source.syntax import FORMS, SEQUENCES
from forgather_mem.errors import TemplateError

BLOCK = "x: !{tag}\n    [a]\n    {item}\ny: 1"
EMPTY, ONE_ITEM, LINE = "x: !{tag}", "x: !{tag}\n    {item}", "x: !{tag}\n    [a]\ny: 1"
OF_A_LIST = "x: !{tag}\n    {item_of_list}"
# Empty, of one item, of the line `[a]`, and where that line opens a block, as it does before what is not a sequence;
# last of one that is a list, which can not be hashed.
BUILT: dict[str, tuple[object, ...]] = {
    "list": ([], [1], ["a"], [1], [["a"]]),
    "tuple": ((), (1,), ("a",), (1,), (["a"],)),
    "dict": ({}, {"name": "v"}, {}, {"name": "v"}, {"name": ["a"]}),
    "dlist": ([], ["v"], [], ["v"], [["a"]]),
    "var": (None, 7, None, 7, None),
}
REFUSED = dict.fromkeys([("var", 0), ("var", 2), ("var", 4)], "does not say which variable")


@pytest.mark.parametrize("tag", [*FORMS, *CALLS])
def test_each_tag_has_a_row_in_the_table_of_the_page(tag: str) -> None:
    page = (Path(__file__).parents[3] / "docs" / "templates.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `!")]
    assert any(f"`!{tag}" in row.split("|")[1] for row in rows), "a row in docs/templates.md, and an example that runs"


@pytest.mark.parametrize("tag", sorted({*FORMS, *BUILT}))
@pytest.mark.parametrize("number", range(5), ids=["empty", "one item", "line", "block", "of a list"])
def test_each_form_is_built_however_it_is_written(tag: str, number: int) -> None:
    item, item_of_list = ("- 1", "- [a]") if tag in SEQUENCES else ("name: v", "name: [a]")
    text = (EMPTY, ONE_ITEM, LINE, BLOCK, OF_A_LIST)[number].format(tag=tag, item=item, item_of_list=item_of_list)
    built, refused = BUILT[tag][number], REFUSED.get((tag, number))
    if refused is not None:
        with pytest.raises(TemplateError, match=refused):
            loaded(text)
        return
    found = loaded(text)
    assert (found, type(found)) == (built, type(built))


@pytest.mark.parametrize("tag", sorted({*FORMS} - {"var"}))
def test_what_is_in_it_is_guarded_and_counted(tag: str) -> None:
    begin, end, keys = ("[", "]", ("", "")) if tag in SEQUENCES else ("{", "}", ("path: ", "k{}: "))
    held = f"{{logging_dir: !{tag} {begin}{keys[0]}!call:getitem [['s3://elsewhere/x'], 0]{end}}}"
    gone_over = f"{{logging_dir: !call:zip [!{tag} {begin}{keys[0]}'s3://elsewhere/x'{end}]}}"
    for given in (held, gone_over) if tag in SEQUENCES else (held,):
        with pytest.raises(TemplateError, match="open an address"):
            loaded(f"x: !call:forgather_mem.sinks:TensorBoardSink {given}")
    items = ", ".join(f"{keys[1].format(number)}{number}" for number in range(20_000))
    text = f"many: &many !{tag} {begin}{items}{end}\nx: [{'!call:len [*many], ' * 26}]"
    with pytest.raises(TemplateError, match=r"items at most|aliases of aliases"):
        ConfigEnvironment().load_from_string(text).construct()


@pytest.mark.parametrize("how", ["{}", "!call:len [{}]", "!meta:len [{}]", "!partial:len [{}]", "[1, {}]"])
@pytest.mark.parametrize("tag", [*SEQUENCES, "set", "frozenset"])
def test_a_tag_that_hashes_says_which_item_it_can_not_and_takes_none_that_collide(
    tag: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    makers = {"set": set, "frozenset": frozenset, **SEQUENCES}  # as with a row for them
    monkeypatch.setattr(tags, "FORMS", (*FORMS, tag))
    monkeypatch.setitem(SEQUENCES, tag, makers[tag])  # type: ignore[arg-type]
    hashes = isinstance(makers[tag](()), Set)
    colliding = ", ".join(str(number * sys.hash_info.modulus) for number in range(1, 40))
    for items, why in (("1, [a]", r"\['a'\] can't be hashed"), (colliding, "chosen so that Python hashes them alike")):
        config = ConfigEnvironment().load_from_string(f"x: {how.format(f'!{tag} [{items}]')}")
        found = [str(error) for error in config.misfits()]
        assert bool(found) == hashes, "`check` says what `load` refuses"
        with pytest.raises(TemplateError, match=why) if hashes else contextlib.nullcontext():
            made = config.construct()["x"]
            assert not callable(made) or made() == items.count(",") + 1


@pytest.mark.parametrize("tag", [*SEQUENCES, "deque"])
def test_each_tag_of_a_list_makes_lists_of_callbacks_and_of_rules(tag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SEQUENCES, tag, {"deque": deque, **SEQUENCES}[tag])  # type: ignore[arg-type]
    monkeypatch.setattr(tags, "FORMS", (*FORMS, tag))
    config = ConfigEnvironment().load_from_string(
        f"trainer_callbacks: !{tag}\n- !call:forgather_mem.callbacks:MemoryCallback {{rules: !{tag} []}}"
    )
    assert list(no_callbacks(config)) == [], "`check`"
    assert len(callbacks_of(config, CALLBACKS, None)) == 1, "`load_callbacks`"


def loaded(text: str) -> object:
    config = ConfigEnvironment().load_from_string(text)
    checked = [str(error) for error in config.misfits(context_vars={"v": 7})]
    if not checked:
        return config.construct(context_vars={"v": 7})["x"]
    with pytest.raises(TemplateError) as refused:
        config.construct(context_vars={"v": 7})
    assert checked == [str(refused.value)]
    raise refused.value
