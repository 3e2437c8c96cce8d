"""The cost of everything that a template may call, estimated before the call.

A function of Python can't be stopped once it runs. So each one that the sandbox knows has a rule here, which counts
what the call will walk through, compare or make, and refuses it before. What has no rule can't be called: the tables
of the sandbox are made of these. A rule is given the meter, the value (a method's owner, a filter's left side), and
all arguments, those by keyword too.
"""

from __future__ import annotations

import datetime
import json.encoder
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from typing import Final, TypeAlias

from jinja2 import Undefined
from jinja2.environment import TemplateModule
from jinja2.runtime import BlockReference, LoopContext, Macro
from jinja2.utils import Cycler, Joiner, Namespace

from forgather_mem.config.rendering.budget import RenderBudget
from forgather_mem.config.rendering.taint import TaintedStr

Rule: TypeAlias = Callable[[RenderBudget, object, Sequence[object]], None]

_MAX_MARKED = 100_000
_MAX_WIDTH = 10_000


def free(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """It looks at one field, or at a number that is small anyway."""


def shallow(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """It goes through the value once, and not into its items."""
    if isinstance(value, TaintedStr):
        meter.small(len(value), _MAX_MARKED)  # it may be split into characters
        meter.work(len(value) * len(value.pieces) >> 3)  # each is looked for among all pieces
    elif isinstance(value, Sized):
        meter.work(len(value) >> 3)


def listed(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """As `shallow`, and each item becomes an object of its own."""
    shallow(meter, value, args)
    if isinstance(value, Sized):
        meter.holds_items(value)


def deep(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """It compares or hashes the value, and all that is in it, once."""
    meter.weigh(value, *args)


def sorts(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """It compares the items with each other, and may make small letters of all texts first."""
    weight = meter.weigh(value, *args)
    rounds = max(len(value) if isinstance(value, Sized) else weight.items, 1).bit_length()
    meter.work((weight.items + (weight.chars >> 8)) * rounds >> 3)
    meter.hold(4 * weight.chars + 16 * weight.items)


def hashes(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """It makes keys of the items."""
    sorts(meter, value, args)
    if isinstance(value, list | tuple | range):
        meter.check_keys(value)


def prints(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """It makes a text of the value, and changes it in one pass."""
    weight = meter.weigh(value, *args)
    meter.will_print(value, *args)
    meter.work((weight.chars >> 4) + 2 * weight.items)


def prints_slowly(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """As `prints`, with some steps of Python for each character."""
    prints(meter, value, args)
    weight = meter.weigh(value, *args)
    meter.work(weight.chars >> 2)


def pretty(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """`pprint` prints each value once for each level that it is nested in."""
    weight = meter.weigh(value, *args)
    meter.will_print(value)
    meter.work((8 * weight.items + weight.chars) * (weight.depth + 1))


def as_json(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    weight = meter.weigh(value)
    indent = next((arg for arg in args if isinstance(arg, int)), 0)
    meter.small(indent, 100)
    meter.will_make(weight.items * (indent * (weight.depth + 1) + 1))
    meter.will_print(value, [value] if isinstance(value, str) else "", length_of=_json_len)
    meter.work(4 * weight.items)


def _json_len(text: str) -> int:
    return len(json.encoder.encode_basestring_ascii(str(text)))


def widths(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """Its numbers are widths or counts."""
    for number in args:
        meter.small(number, _MAX_WIDTH)
    prints(meter, value, args)


def columns(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """It makes lists, as many or as long as its number says."""
    shallow(meter, value, args)
    for number in args:
        if isinstance(number, int):
            meter.hold(80 * meter.small(number, _MAX_WIDTH))
    if isinstance(value, Sized):
        meter.hold(80 * len(value))


def digits(meter: RenderBudget, value: object, args: Sequence[object]) -> None:
    """`round`: its number is one of digits."""
    for number in args:
        meter.small(number, 300)


def _rules(*groups: tuple[Rule, str]) -> dict[str, Rule]:
    return {name: rule for rule, names in groups for name in names.split()}


_DATE = _rules((free, "year month day weekday isoweekday isoformat strftime replace"))
_TIME = _rules((free, "hour minute second microsecond isoformat strftime replace"))

METHODS: Final[Mapping[type, Mapping[str, Rule]]] = {
    # What `formatting.check_method` knows besides: how long a text these make.
    str: _rules(
        (
            deep,
            "count endswith find format format_map index isalnum isalpha isascii isdecimal isdigit isidentifier "
            "islower isnumeric isprintable isspace istitle isupper join lstrip partition removeprefix "
            "removesuffix replace rfind rindex rpartition rsplit rstrip split splitlines startswith strip",
        ),
        (prints, "capitalize casefold center expandtabs ljust lower rjust swapcase title upper zfill"),
    ),
    bool: {},
    int: _rules((free, "bit_length bit_count is_integer real imag numerator denominator")),
    float: _rules((free, "is_integer real imag")),
    list: _rules((deep, "count index"), (shallow, "copy")),
    tuple: _rules((deep, "count index"), (free, "grouper list")),  # the last two belong to the filter groupby
    dict: _rules((deep, "get"), (free, "items keys values"), (shallow, "copy")),
    range: _rules((free, "start stop step"), (deep, "count index")),
    datetime.date: _DATE,
    datetime.time: _TIME,
    datetime.datetime: {**_DATE, **_TIME, **_rules((free, "date time timestamp"))},
    datetime.timedelta: _rules((free, "days seconds microseconds total_seconds")),
    LoopContext: _rules(
        (free, "index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle"),
        (deep, "changed"),
    ),
    Macro: _rules((free, "name arguments catch_kwargs catch_varargs caller")),
    Cycler: _rules((free, "next reset current")),
    BlockReference: _rules((free, "super")),
}
"""The attributes of each type. Of a datum like `year` the rule is `free`."""

FILTERS: Final[Mapping[str, Rule]] = _rules(
    (free, "attr d default safe filesizeformat"),
    (shallow, "abs count first items last length reverse map reject rejectattr select selectattr sum"),
    (listed, "list random"),
    (sorts, "dictsort groupby max min sort"),
    (hashes, "unique"),
    (prints, "capitalize e escape float forceescape format int join lower replace string trim upper wordcount"),
    (prints_slowly, "title toyaml urlencode"),
    (pretty, "pprint"),
    (as_json, "tojson"),
    (widths, "center indent truncate"),
    (columns, "batch slice"),
    (digits, "round"),
)

TESTS: Final[Mapping[str, Rule]] = _rules(
    (
        free,
        "boolean callable defined divisibleby even false filter float integer iterable mapping none number odd sameas "
        "sequence string test true undefined",
    ),
    (prints, "lower upper"),  # of whatever they are given they make a text
    (deep, "== eq equalto != ne > gt greaterthan >= ge < lt lessthan <= le in"),
)

FUNCTIONS: Final[Mapping[str, Rule]] = _rules(
    (free, "range now utcnow isotime utcisotime filetime utcfiletime getcwd user_home_dir forgather_config_dir"),
    (
        prints_slowly,
        "joinpath normpath abspath relpath dirname basename splitext repr modname_from_path user_data_dir "
        "user_cache_dir user_config_dir site_data_dir site_config_dir",
    ),
)

CALLED_BY_JINJA: Final[Mapping[type, Rule]] = {
    dict: shallow, Namespace: shallow, Cycler: shallow, Joiner: free, Macro: free, BlockReference: free,
    LoopContext: free, TemplateModule: free,
}  # fmt: skip
"""What Jinja itself calls: macros and blocks count as they run, makers by their arguments."""


def spend(meter: RenderBudget, rule: Rule, value: object, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
    """Count a call before it is made."""
    if isinstance(value, Iterator | Undefined):  # counted as it comes; the call raises its own error
        value = ()
    rule(meter, value, (*args, *kwargs.values()) if kwargs else args)
