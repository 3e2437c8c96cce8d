"""Values from outside are data: whatever they hold, YAML reads them as that string, and templates compute with
them as with any other."""

import collections
import datetime
import enum
import pathlib
import re
import zoneinfo
from decimal import Decimal
from fractions import Fraction
from typing import NamedTuple

import numpy as np
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.rendering.render import Renderer
from forgather_mem.config.source.search import Searcher
from forgather_mem.errors import TemplateError

RENDERER = Renderer(Searcher(()), Limits(), {"project": "a: &b !c"})


def parsed(template, **variables):
    """The rendered text read by a YAML parser that knows nothing of us, the values put in place afterwards."""
    rendered = RENDERER.render_string(template, variables)

    def put_back(node):
        if isinstance(node, dict):
            return {put_back(key): put_back(value) for key, value in node.items()}
        if isinstance(node, list):
            return [put_back(value) for value in node]
        return rendered.put_back(node) if isinstance(node, str) else node

    return put_back(yaml.safe_load(rendered.text))


TEXT = st.text().filter(lambda text: not set(text) & set("\uf4c1\uf4c2\uf4c3\uf4c4"))


@settings(deadline=None)
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


@settings(deadline=None, max_examples=50)
@given(PLAIN)
def test_any_plain_value_is_that_value(value):
    assert parsed("a: {{ x }}\nb: {{ x|toyaml }}\nc: {{ x|tojson }}", x=value) == {"a": value, "b": value, "c": value}


@settings(deadline=None)
@given(TEXT)
def test_filters_keep_the_mark(value):
    template = (
        "a: {{ x|upper }}\nb: {{ x|replace('a', 'b') }}\nc: {{ x ~ '/y' }}\nd: {{ '%s|%s'|format(x, 1) }}\n"
        "e: {{ [x, x]|join('-') }}"
    )
    assert parsed(template, x=value) == {
        "a": value.upper(), "b": value.replace("a", "b"), "c": f"{value}/y", "d": f"{value}|1", "e": f"{value}-{value}",
    }  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(st.text("ab: \n{}[]!&*'\"#-", min_size=1, max_size=12))
def test_no_way_through_filters_methods_or_macros_lets_a_value_become_yaml(value):
    template = """\
{% macro m(v) %}{{ v }}{% endmacro %}{% set block %}{{ x }}{% endset %}
a: {{ x|title }}
b: {{ x|truncate(5) }}
c: {{ x|indent }}
d: {{ x[1:] }}
e: {{ x.strip() }}
f: {{ joinpath('r', x) }}
g: {{ '{}'.format(x) }}
h: {{ '%5s' % x }}
i: {{ m(x) }}
j: {{ block }}
k: {{ x|list|join }}
l: {{ x|reverse }}
m: {{ repr(x) }}
n: {{ x.split()|last|default('') }}
o: {{ [x]|map('upper')|first }}
p: {{ {'q': x}.q }}
r: {% filter trim %}{{ x }}{% endfilter +%}
s: {{ x|center(30) }}
t: {{ x * 2 }}
u: {{ x|urlencode }}
v: {{ x|e }}
"""
    found = parsed(template, x=value)
    assert list(found) == list("abcdefghijklmnoprstuv")
    assert (found["i"], found["j"], found["k"], found["t"]) == (value, value, value, value * 2)
    assert (found["l"], found["o"], found["h"]) == (value[::-1], value.upper(), f"{value:>5}")


def test_in_conditions_and_computations_it_is_the_string():
    template = """\
a: {{ x == 'run 1' and x != 'b' and 'run' in x and x in ['run 1'] and x.startswith('run') }}
b: {{ x|length }}
c: {{ 'run 1 and more'.startswith(x) and x in 'run 1 and more' }}
d: {{ n|int + 1 }}
e: {{ {'run 1': 5}[x] }}
f: {{ 'good' if x is string and x is lower else 'bad' }}
g: {{ x|upper == 'RUN 1' }}
h: {{ (x ~ '!') == 'run 1!' }}
i: {{ cfg['a b'] + cfg.items()|length }}
"""
    assert parsed(template, x="run 1", n="41", cfg={"a b": 2}) == {
        "a": True, "b": 5, "c": True, "d": 42, "e": 5, "f": "good", "g": True, "h": True, "i": 3,
    }  # fmt: skip


def test_it_can_name_a_template(tmp_path):
    (tmp_path / "part.yaml").write_text("b: 1")
    renderer = Renderer(Searcher(tmp_path))
    assert renderer.render_string("-- include name ~ '.yaml'", {"name": "part"}).shown == "b: 1"
    with pytest.raises(TemplateError, match=r"has '\.\.' in it"):
        renderer.render_string("-- include name", {"name": "../part.yaml"})


class Mode(enum.Enum):
    FAST = "fast"


class Point(NamedTuple):
    x: int
    name: str


def test_values_of_other_plain_types_are_taken():
    template = (
        "a: {{ p }}\nb: {{ mode }}\nc: {{ day }}\nd: {{ point.x }}\ne: {{ point.name }}\nf: {{ big }}\n"
        "g: {{ inf }}\nh: {{ t }}\ni: {{ inf[0] }}\n"
    )
    assert parsed(
        template, p=pathlib.Path("/a: b"), mode=Mode.FAST, day=datetime.date(2024, 1, 2), point=Point(1, "n: m"),
        big=2**70, inf=[float("inf")], t=("a", 1),
    ) == {
        "a": "/a: b", "b": "fast", "c": datetime.date(2024, 1, 2), "d": 1, "e": "n: m", "f": 2**70, "g": [float("inf")],
        "h": ["a", 1], "i": float("inf"),
    }  # fmt: skip


@pytest.mark.parametrize("value", [object(), print, b"bytes", {"a": [object()]}, 1j, type])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(TemplateError, match="variable 'thing' is of type"):
        RENDERER.render_string("a", {"thing": value})


def test_a_value_that_is_too_large_or_too_deep_is_refused():
    deep: list[object] = []
    for _ in range(200):
        deep = [deep]
    cyclic: list[object] = []
    cyclic.append(cyclic)
    for value in ("x" * 2**21, deep, cyclic, [0] * 300_000, "\uf4c1"):
        with pytest.raises(TemplateError, match="variable 'big'"):
            RENDERER.render_string("a", {"big": value})


def test_global_variables_are_data_too_and_reach_imported_templates(tmp_path):
    assert parsed("a: {{ project }}") == {"a": "a: &b !c"}
    (tmp_path / "m.yaml").write_text("-- macro show()\n== project\n-- endmacro\n")
    renderer = Renderer(Searcher(tmp_path), None, {"project": "p: q"})
    for _ in range(2):
        rendered = renderer.render_string("-- from 'm.yaml' import show\na: {{ show()|trim }}")
        assert rendered.shown == "a: p: q"
        assert set(rendered.values.values()) == {"p: q"}


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("a: !call:{{ x }}/m.py:f", "a: !call:/my dir/m.py:f"),
        ("a: !call:{{ x|replace(' ', '_') }}/m.py:f@n []", "a: !call:/my_dir/m.py:f@n []"),
        ("[!call:{{ 'a.b'|replace('b', y) }}:f [], b]", "[!call:a.mod:f [], b]"),
    ],
)
def test_a_value_may_be_a_part_of_a_name_in_a_tag_when_it_is_no_more_than_that(template, text):
    rendered = RENDERER.render_string(template, {"x": "/my dir", "y": "mod"})
    assert rendered.shown == text
    assert (rendered.values == {}) == (" dir" not in text)


@given(st.text("aZ0._/ :@,[]!&*\n'\"#", min_size=1))
@settings(deadline=None)
def test_no_value_can_end_a_tag_or_begin_another_part_of_it(value):
    rendered = RENDERER.render_string("a: !call:{{ x }}:f []\nb: 1", {"x": value})
    assert re.fullmatch(r"a: !call:([A-Za-z0-9_./~+-]+|\uf4c1\w+\uf4c2):f \[\]\nb: 1", rendered.text)


def test_a_token_that_a_template_makes_up_is_noticed():
    with pytest.raises(TemplateError, match="changed in a way that can't be tracked") as error:
        RENDERER.render_string("a: {{ '\\uf4c1' }}1", {"x": "value"})
    assert "toyaml" in error.value.hint


def test_values_are_pasted_when_that_is_asked_for():
    renderer = Renderer(Searcher(()), paste_values=True)
    rendered = renderer.render_string(
        "a: {{ x }}\nb: {{ f() }}\nc: {{ n }}", {"x": "!tag [1]", "f": lambda: 5, "n": None}
    )
    assert rendered.text == "a: !tag [1]\nb: 5\nc: None"
    assert rendered.values == {}


def test_what_a_template_sets_itself_is_template_text():
    assert parsed("-- set x = '[1, 2]'\na: {{ x }}\nb: {{ ['c', 1] }}") == {"a": [1, 2], "b": ["c", 1]}


def test_rendering_twice_with_other_values_gives_other_values():
    first = RENDERER.render_string("a: {{ x }}", {"x": "one"})
    second = RENDERER.render_string("a: {{ x }}", {"x": "two"})
    assert (first.shown, second.shown) == ("a: one", "a: two")


EVIL = "[1, !call:os:system [ls]]"


def evil(kind):
    """A subclass that prints as YAML with a tag, whoever asks it."""
    names = (
        "__str__",
        "__repr__",
        "__format__",
        "isoformat",
        "__int__",
        "__float__",
        "__index__",
        "__fspath__",
        "strftime",
    )
    methods = {
        name: lambda *_, **__: EVIL
        for name in names
        if hasattr(kind, name) and not name.startswith(("__int", "__fl", "__in"))
    }
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


class Bytes(enum.Enum):
    B = b"[1]"


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


@pytest.mark.parametrize(
    "value", [Bytes.B, b"x", bytearray(b"x"), np.datetime64("2024-01-01"), memoryview(b"x"), np.array([1])]
)
def test_what_is_not_plain_is_refused(value):
    with pytest.raises(TemplateError, match="variable 'thing' is of type"):
        RENDERER.render_string("a", {"thing": value})


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


class Late(datetime.timedelta):
    def __str__(self):
        return "!call:os:system ['touch canary']"

    __repr__ = __str__


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
        assert len(message) < 2_000
        assert all(char.isprintable() or char == "\n" for char in message)


@pytest.mark.parametrize(
    "value", [{float("nan"): 1}, {1: 2, None: 3, 2.5: 4, False: 5}, Fraction(1, 3), 2**3000, "\ud800"]
)
def test_odd_values_that_are_plain_data_come_through(value):
    assert ConfigEnvironment(policy=Policy()).load_from_string("a: {{ x }}", x=value).text


def test_a_class_derived_from_a_time_prints_as_its_base():
    assert ConfigEnvironment(policy=Policy()).load_from_string("a: {{ x }}", x=Late(1)).text == "a: 1 day, 0:00:00"
    moment = datetime.datetime(2024, 5, 6, 7, 8, tzinfo=zoneinfo.ZoneInfo("UTC"))
    text = "a: \"{{ x.strftime('%Z') }} {{ x }}\""
    assert ConfigEnvironment(policy=Policy()).load_from_string(text, x=moment).text == f'a: "UTC {moment}"'
