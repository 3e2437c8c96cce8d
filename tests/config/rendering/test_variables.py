"""Values from outside are data: whatever they hold, YAML reads them as that string, and templates compute with
them as with any other."""

import collections
import datetime
import enum
import functools
import pathlib
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError
from tests.config.rendering.folders import RENDERER, TEXT, parsed


@given(TEXT)
@example("x: 1\n!singleton:os:system [ls]")
@example("{{ 7 * 7 }}")
@example("'\"")
@example("")
@example(" - a")
@example("null")
def test_any_string_is_that_string_wherever_a_scalar_can_stand(value):
    template = (
        "a: {{ x }}\nb: '{{ x }}'\nc: \"{{ x }}\"\nd: [{{ x }}, {{ x|toyaml }}]\n{{ x }}k: e{{ x }}\nf: |-\n  {{ x }}\n"
    )
    assert parsed(template, x=value) == {
        "a": value, "b": value, "c": value, "d": [value, value], f"{value}k": f"e{value}", "f": value,
    }  # fmt: skip


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)


@given(PLAIN)
def test_any_plain_value_is_that_value(value):
    assert parsed("a: {{ x }}\nb: {{ x|toyaml }}\nc: {{ x|tojson }}", x=value) == {"a": value, "b": value, "c": value}


def test_it_can_name_a_template(tmp_path):
    (tmp_path / "part.yaml").write_text("b: 1")
    renderer = Renderer(Searcher(tmp_path))
    assert renderer.render_string("-- include name ~ '.yaml'", {"name": "part"}).shown == "b: 1"
    with pytest.raises(TemplateError, match=r"has '\.\.' in it"):
        renderer.render_string("-- include name", {"name": "../part.yaml"})


def test_values_of_other_plain_types_are_taken():
    template = "a: {{ p }}\nc: {{ day }}\nf: {{ big }}\ng: {{ inf }}\nh: {{ t }}\ni: {{ inf[0] }}\n"
    assert parsed(
        template, p=pathlib.Path("/a: b"), day=datetime.date(2024, 1, 2),
        big=2**70, inf=[float("inf")], t=("a", 1),
    ) == {
        "a": "/a: b", "c": datetime.date(2024, 1, 2), "f": 2**70, "g": [float("inf")],
        "h": ["a", 1], "i": float("inf"),
    }  # fmt: skip


@pytest.mark.parametrize("value", [object(), print, b"bytes", {"a": [object()]}, 1j, type])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(TemplateError, match="variable 'thing' is of type"):
        RENDERER.render_string("a", {"thing": value})


def test_global_variables_are_data_too_and_reach_imported_templates(tmp_path):
    assert parsed("a: {{ project }}") == {"a": "a: &b !c"}
    (tmp_path / "m.yaml").write_text("-- macro show()\n== project\n-- endmacro\n")
    renderer = Renderer(Searcher(tmp_path), global_vars={"project": "p: q"})
    for _ in range(2):
        rendered = renderer.render_string("-- from 'm.yaml' import show\na: {{ show()|trim }}")
        assert rendered.shown == "a: p: q"
        assert set(rendered.values.values()) == {"p: q"}


def test_what_a_template_sets_itself_is_template_text():
    assert parsed("-- set x = '[1, 2]'\na: {{ x }}\nb: {{ ['c', 1] }}") == {"a": [1, 2], "b": ["c", 1]}


EVIL = "[1, !call:os:system [ls]]"


def evil(kind):
    """A subclass that prints as YAML with a tag, whoever asks it."""
    names = ("__str__", "__repr__", "__format__", "isoformat", "__fspath__", "strftime")
    methods = {name: lambda *_, **__: EVIL for name in names if hasattr(kind, name)}
    return type("Evil", (kind,), methods)


NAMED = datetime.timezone(datetime.timedelta(hours=1), "x: !call:os:system [ls]")


class Zone(datetime.tzinfo):
    utcoffset = dst = lambda *_: datetime.timedelta(hours=1)
    tzname = lambda *_: "[!call:os:system [ls]]"  # noqa: E731


class Colour(enum.StrEnum):
    RED = "[1, !tag 2]"


class Level(enum.IntEnum):
    HIGH = 3

    def __str__(self):
        return "[1, !tag 2]"


class Flag(enum.IntFlag):
    A = 4


DAY, NOON = (2024, 1, 2), (12, 30, 1, 5)
ODD = {
    "a date": (evil(datetime.date)(*DAY), datetime.date(*DAY)),
    "a datetime": (evil(datetime.datetime)(*DAY, *NOON), datetime.datetime(*DAY, *NOON)),
    "a time": (evil(datetime.time)(*NOON), "12:30:01.000005"),
    "a timedelta": (evil(datetime.timedelta)(days=1, hours=2), "1 day, 2:00:00"),
    "a plain time": (datetime.time(12, 30), "12:30:00"),
    "a plain timedelta": (datetime.timedelta(hours=1, minutes=30), "1:30:00"),
    "a negative timedelta": (-datetime.timedelta(hours=1), "-1 day, 23:00:00"),
    "a text": (evil(str)("x: [1]"), "x: [1]"),
    "a number": (evil(int)(7), 7),
    "a fraction": (evil(float)(0.5), 0.5),
    "a path": (evil(type(pathlib.Path()))("/a"), EVIL),
    "a list": (evil(list)(["a: b", 1]), ["a: b", 1]),
    "a mapping": (evil(dict)({"a: b": 1}), {"a: b": 1}),
    "an enum of text": (Colour.RED, "[1, !tag 2]"),
    "an enum of numbers": (Level.HIGH, 3),
    "a flag": (Flag.A, 4),
    "a number of numpy": (np.int64(5), 5),
    "a fraction of numpy": (np.float64(0.25), 0.25),
    "a small fraction of numpy": (np.float32(0.5), 0.5),
    "a text of numpy": (np.str_("a: [1]"), "a: [1]"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "plain"), ODD.values(), ids=ODD)
def test_of_every_kind_it_is_the_plain_value_whatever_a_subclass_prints(value, plain):
    template = "a: {{ x }}\nb: [{{ x }}, 0]\nc: {{ y }}\nd: {{ z }}\n"
    assert parsed(template, x=value, y=[value, 0], z={"k": value}) == {
        "a": plain, "b": [plain, 0], "c": [plain, 0], "d": {"k": plain},
    }  # fmt: skip
    if not isinstance(value, list | dict):
        assert "!call" not in RENDERER.render_string("a: '-{{ x }}'\nb: {{ x }}-", {"x": value}).text


@pytest.mark.parametrize("zone", [NAMED, Zone()])
def test_the_name_of_a_time_zone_prints_nothing(zone):
    value = evil(datetime.datetime)(*DAY, *NOON, tzinfo=zone)
    template = "a: {{ x }}\nb: {{ x.strftime('%Y %Z') }}\nc: {{ y }}\nd: {{ t }}"
    found = parsed(template, x=value, y=[value], t=datetime.time(1, tzinfo=zone))
    plain = datetime.datetime(*DAY, *NOON, tzinfo=datetime.timezone(datetime.timedelta(hours=1)))
    assert found == {"a": plain, "b": "2024 UTC+01:00", "c": [plain], "d": "01:00:00+01:00"}


def test_times_can_still_be_computed_with():
    template = "a: {{ day.year + 1 }}\nb: {{ (day + delta).day }}\nc: {{ delta.total_seconds() }}\nd: {{ day + delta }}"
    found = parsed(template, day=evil(datetime.date)(*DAY), delta=evil(datetime.timedelta)(days=1))
    assert found == {"a": 2025, "b": 3, "c": 86400.0, "d": datetime.date(2024, 1, 3)}


class Raising:
    """Every method that anybody may ask raises, also the one that would say what happened."""

    def __getattribute__(self, name):
        raise type("Odd", (Exception,), {"__str__": lambda self: 1 / 0})("no")

    __hash__ = __repr__ = __str__ = __eq__ = __fspath__ = lambda self, *args: 1 / 0


class RaisingNumber(Fraction):
    def __float__(self):
        raise RuntimeError("\x1b[2J" + "x" * 5000)


class RaisingMapping(collections.UserDict):
    def items(self):
        raise KeyError("gone")


def circular():
    ring = []
    ring.append(ring)
    return ring


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value, value]
    return value


ODD = [
        {(1, 2): 3}, {frozenset([1]): 2}, {(): 1}, Fraction(10**400), Fraction(1, 10**400) + 10**400, 10**5000,
        -(2**5000), Raising(), [Raising()], RaisingNumber(1), RaisingMapping(), circular(), nested(30), nested(90),
        b"bytes", bytearray(3), Decimal("1e999999"), Decimal("NaN"), complex(1, 2), object(), range(3), iter([]),
        {1: Raising()}, {"a": {(1,): 2}}, "x" * 2**21, [["x"] * 300] * 1000, len, type,
        collections.namedtuple("Odd", "a")(Raising()), {"\uf4c1": 1}, {b"a": 1}, [{"x": {(1,): {}}}],
        "\uf4c1", [0] * 300_000, functools.reduce(lambda inner, _: [inner], range(200), []),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ODD)))
def test_whatever_comes_from_outside_is_refused_with_our_error_only(number):
    value = ODD[number]  # pytest would look into a parameter
    for environment, variables in (
        (ConfigEnvironment(policy=Policy()), {"x": value}),
        (ConfigEnvironment(policy=Policy(), global_vars={"x": value}), {}),
    ):
        with pytest.raises(TemplateError) as refused:
            environment.load_from_string("a: {{ x }}", **variables)
        message = str(refused.value)
        assert "variable 'x'" in message or type(value) is int
        assert len(message) < 2_000
        assert all(char.isprintable() or char == "\n" for char in message)


@pytest.mark.parametrize(
    "value", [{float("nan"): 1}, {1: 2, None: 3, 2.5: 4, False: 5}, Fraction(1, 3), 2**3000, "\ud800"]
)
def test_odd_values_that_are_plain_data_come_through(value):
    assert ConfigEnvironment(policy=Policy()).load_from_string("a: {{ x }}", x=value).text
