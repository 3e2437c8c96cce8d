"""The Jinja sandbox: what a template may do.

A Jinja environment in which everything not listed here is forbidden: attributes and callables by a table of types,
filters and tests by a table of names. Operators, calls and filters handle tainted strings (taint.py). `optimized` is
off and output is never folded: no part of a template is evaluated while it is compiled. How much a template may do is
not decided here: a stranger's is rendered in a process with limits (stranger.py).

The filters and tests are Jinja's own, without those for HTML (striptags, urlize, xmlattr) and wordwrap; those that
rebuild a string taint their whole result if any input was tainted. Names that begin with a space can't be written in a
template: the compiler inserts them. The names of the functions are Forgather's: times, paths, and the platform's
folders for a user's files.
"""

from __future__ import annotations

import datetime
import getpass
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from types import BuiltinMethodType, MethodType
from typing import Any, Final, cast

from jinja2 import StrictUndefined, Undefined, pass_context, pass_environment
from jinja2.environment import TemplateModule
from jinja2.exceptions import FilterArgumentError, SecurityError, TemplateRuntimeError, UndefinedError
from jinja2.filters import FILTERS as JINJA_FILTERS
from jinja2.runtime import BlockReference, Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedFormatter
from jinja2.tests import TESTS as JINJA_TESTS
from jinja2.utils import Cycler, Joiner, Namespace, missing

from forgather_mem.config.rendering.taint import TaintedStr, TaintTokens, is_tainted, text_of, untaint, write
from forgather_mem.config.source.rendered import TOKEN_CLOSE, TOKEN_OPEN

_JINJA = (
    "abs batch capitalize count d default dictsort filesizeformat first float groupby int items join last length lower "
    "map max min pprint reject rejectattr reverse round select selectattr slice sort string sum title trim truncate "
    "unique upper urlencode wordcount center"
)
_WHOLE = ("center", "filesizeformat", "float", "int", "pprint", "title", "truncate", "urlencode", "wordcount")
_TESTS = (
    "!= < <= == > >= boolean callable defined divisibleby eq equalto even false filter float ge greaterthan gt in "
    "integer iterable le lessthan lower lt mapping ne none number odd sameas sequence string test true undefined upper"
)
_TEXT_TESTS = ("in", "lower", "upper")  # these look at characters themselves
_ABSENT: Final = object()
_JINJA_FILTERS: Final = cast(dict[str, Callable[..., object]], JINJA_FILTERS)
_JINJA_TESTS: Final = cast(dict[str, Callable[..., object]], JINJA_TESTS)


def _marking(function: Callable[..., object], *, whole: bool = False) -> Callable[..., object]:
    """A filter or test whose result keeps the taint.

    Args:
        function: Jinja's or ours.
        whole: It is given strings as they are meant; what it makes of them is marked as a whole.
    """
    passed = getattr(getattr(function, "jinja_pass_arg", None), "name", "")

    @pass_context
    def run(context: Context, value: object, *args: object, **kwargs: object) -> object:
        sandbox: Sandbox = context.environment  # type: ignore[assignment]
        outside = whole and (is_tainted(value) or is_tainted(args) or is_tainted(kwargs))
        if whole:
            value, args, kwargs = untaint(value), untaint(args), untaint(kwargs)
        first = {"context": context, "eval_context": context.eval_ctx, "environment": sandbox}.get(passed)
        result = function(value, *args, **kwargs) if first is None else function(first, value, *args, **kwargs)
        return sandbox.marks.mark(result) if outside else sandbox.made(result)

    return run


def _indent(value: object, width: int | str = 4, first: bool = False, blank: bool = False) -> object:
    indent = width if isinstance(width, str) else " " * width
    if isinstance(value, TaintedStr):
        return value.indented(indent, first, blank)
    return _JINJA_FILTERS["indent"](value, indent, first, blank)


@pass_environment
def _replace(sandbox: Sandbox, value: object, old: object, new: object, count: int | None = None) -> object:
    return sandbox.marks.lifted(_text(value)).replace(_text(old), _text(new), -1 if count is None else count)


@pass_environment
def _format(sandbox: Sandbox, value: object, *args: object, **kwargs: object) -> object:
    if args and kwargs:
        raise FilterArgumentError("can't handle positional and keyword arguments at the same time")
    return percent(_text(value), kwargs or args, sandbox.marks)


def _to_json(value: object, indent: int | None = None) -> object:
    text = json.dumps(value, sort_keys=True, indent=indent)
    for char in TOKEN_OPEN, TOKEN_CLOSE:
        text = text.replace(f"\\u{ord(char):04x}", char)
    for char in "<>&'":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text


def _to_yaml(value: object, default: object = _ABSENT) -> object:
    if isinstance(value, Undefined):
        if default is _ABSENT:
            str(value)  # raises an error of its own, which names it
        value = default
    return write(value)


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


_OWN: dict[str, Callable[..., object]] = {
    "attr": pass_environment(lambda sandbox, value, name: _JINJA_FILTERS["attr"](sandbox, value, text_of(name))),
    "format": _format,
    "indent": _indent,
    "list": list,
    "replace": _replace,
    "safe": lambda value: value,
    "tojson": _to_json,
    "toyaml": _to_yaml,
}
FILTERS: Final[dict[str, Callable[..., object]]] = {
    **{name: _marking(function) for name, function in _OWN.items()},
    **{name: _marking(_JINJA_FILTERS[name], whole=name in _WHOLE) for name in _JINJA.split()},
    **dict.fromkeys(
        ("e", "escape", "forceescape"), _marking(lambda value: str(_JINJA_FILTERS["forceescape"](value)), whole=True)
    ),
    " at": pass_context(lambda context, value, origin: origin + str(context.environment.finalize(context, value))),
    " printed": pass_context(lambda context, value: str(context.environment.finalize(context, value))),
    " find": pass_environment(lambda sandbox, *args: sandbox.find(*args)),
    # `a ~ b`; the output of an include, with a newline at its end; the right operand of `in`
    " concat": pass_environment(lambda sandbox, parts: sandbox.made("".join(map(str, parts)))),
    " line": lambda text: text if not text or text.endswith("\n") else text + "\n",
    " haystack": pass_environment(lambda sandbox, it: sandbox.marks.lifted(it) if type(it) is str else it),
}
TESTS: Final[dict[str, Callable[..., object]]] = {
    name: _marking(_JINJA_TESTS[name], whole=True) if name in _TEXT_TESTS else _JINJA_TESTS[name]
    for name in _TESTS.split()
}


def percent(template: str, arguments: object, marks: TaintTokens) -> str:
    """`template % arguments`: tokens in the template's text if that gives the same, else tainted as a whole: a width or
    an escape would count or change the characters of a token."""
    made = str(text_of(template) % untaint(arguments))
    if is_tainted(template):
        return str(marks.mark(made))
    carried = marks.read(str(template) % arguments) if is_tainted(arguments) else made
    return carried if carried == made else str(marks.mark(made))


class Format:
    """The `format` method of a string, for a template.

    Args:
        sandbox: Decides what fields like `{0.name}` may reach.
        template: The string.
    """

    def __init__(self, sandbox: Sandbox, template: str) -> None:
        self._sandbox = sandbox
        self._template = template

    def __call__(self, *args: Any, **kwargs: object) -> str:
        made = SandboxedFormatter(self._sandbox).vformat
        template = text_of(self._template)
        if is_tainted(self._template):
            return str(self._sandbox.marks.mark(made(template, untaint(args), untaint(kwargs))))
        return made(template, args, kwargs)


_FILE_TIME = "%Y-%m-%dT%H-%M-%S"


def _local(moment: datetime.datetime) -> datetime.datetime:
    """Without a time zone."""
    return moment.astimezone().replace(tzinfo=None)


def _utc(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(tzinfo=None)


TIMES: Final[Mapping[str, Callable[[datetime.datetime], object]]] = {
    "now": _local,
    "utcnow": _utc,
    "isotime": lambda moment: _local(moment).isoformat(timespec="seconds"),
    "utcisotime": lambda moment: _utc(moment).isoformat(timespec="seconds"),
    "filetime": lambda moment: _local(moment).strftime(_FILE_TIME),  # suitable for a file name
    "utcfiletime": lambda moment: _utc(moment).strftime(_FILE_TIME),
}
"""What a template calls without arguments. All of them see the moment of the render, even if it is rendered again for
its source map."""


def modname_from_path(path: str) -> str:
    """The module name of a Python file.

    >>> modname_from_path("src/my_model.py")
    'my_model'
    """
    return os.path.splitext(os.path.basename(path))[0]


def user_home_dir() -> str:
    return os.path.expanduser("~")


def forgather_config_dir() -> str:
    return _FOLDERS["user_config_dir"]("forgather", getpass.getuser())


def _folder(name: str) -> Callable[..., str]:
    """Of platformdirs, without its arguments that make a folder; `appauthor` has an effect on Windows only."""

    def folder(appname: str | None = None, appauthor: str | None = None, version: str | None = None) -> str:
        import platformdirs  # in 20 ms, which most templates need not wait for

        made: str = getattr(platformdirs, name)(appname, appauthor, version)
        return made

    folder.__name__ = name
    return folder


_FOLDER_NAMES = "user_data_dir", "user_cache_dir", "user_config_dir", "site_data_dir", "site_config_dir"
_FOLDERS = {name: _folder(name) for name in _FOLDER_NAMES}
FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = {
    **{name: getattr(os.path, name) for name in ("normpath", "abspath", "relpath", "dirname", "basename", "splitext")},
    **_FOLDERS,
    "joinpath": os.path.join,
    "repr": repr,
    "modname_from_path": modname_from_path,
    "user_home_dir": user_home_dir,
    "getcwd": os.getcwd,
    "forgather_config_dir": forgather_config_dir,
}


_DATE = "year month day weekday isoweekday isoformat strftime replace"
_TIME = "hour minute second microsecond isoformat strftime replace"
ATTRIBUTES: Final[Mapping[type, frozenset[str]]] = {
    cls: frozenset(names.split())
    for cls, names in {
        str: "capitalize casefold center count endswith expandtabs find format index isalnum isalpha "
        "isascii isdecimal isdigit isidentifier islower isnumeric isprintable isspace istitle isupper join ljust lower "
        "lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition rsplit rstrip split "
        "splitlines startswith strip swapcase title upper zfill",
        bool: "",
        int: "bit_length bit_count is_integer real imag numerator denominator",
        float: "is_integer real imag",
        list: "count index copy",
        tuple: "count index grouper list",  # the last two belong to the filter groupby
        dict: "get items keys values copy",
        range: "start stop step count index",
        datetime.date: _DATE,
        datetime.time: _TIME,
        datetime.datetime: f"{_DATE} {_TIME} date time timestamp",
        datetime.timedelta: "days seconds microseconds total_seconds",
        LoopContext: "index index0 revindex revindex0 first last length depth depth0 previtem nextitem cycle changed",
        Macro: "name arguments catch_kwargs catch_varargs caller",
        Cycler: "next reset current",
        BlockReference: "super",
    }.items()
}
"""The attributes of each type that a template may use."""

_OPEN_TYPES = (Namespace, TemplateModule)  # their attributes are named by templates
_CALLABLE_TYPES = (Macro, BlockReference, LoopContext, Cycler, Joiner, Format)
_MAKERS = frozenset(map(id, (dict, Namespace, Cycler, Joiner)))


class MissingName(UndefinedError):
    """Something that a template uses does not exist.

    Attributes:
        name: The missing name.
        known: The existing names, if it was looked up in a mapping or a namespace; None for a variable.
    """

    def __init__(self, message: str, name: object, known: Iterable[str] | None) -> None:
        super().__init__(message)
        self.name = name
        self.known = known


class _Missing(StrictUndefined):
    """Strict; its error lists what exists instead."""

    __slots__ = ()
    __repr__ = StrictUndefined.__str__  # raises, also where a list of it is printed

    def __init__(
        self, hint: str | None = None, obj: object = missing, name: Any = None, exc: object = UndefinedError
    ) -> None:
        if name is not None and not isinstance(name, str | int):
            name = type(name).__name__  # the message would print the object
        # Jinja calls `exc` with the message: a class, or a function that makes an error.
        error: Any = self._error if exc is UndefinedError else exc
        super().__init__(hint, obj, name, error)

    def _error(self, message: str | None = None) -> MissingName:
        known = None
        if isinstance(self._undefined_obj, Mapping):
            known = [str(untaint(key)) for key in self._undefined_obj]
            message = f"there is no {self._undefined_name!r} in this mapping"
        elif isinstance(self._undefined_obj, Namespace):
            known = list(object.__getattribute__(self._undefined_obj, "_Namespace__attrs"))
            message = f"there is no {self._undefined_name!r} in this namespace"
        return MissingName(message or "something is undefined", self._undefined_name, known)


class Sandbox(ImmutableSandboxedEnvironment):
    """The Jinja environment of a `Renderer`.

    Attributes:
        marks: The strings from outside.
        moment: Of the render in progress.
        paste_values: Values from outside are pasted, as Forgather does, not tainted.
    """

    intercepted_binops = frozenset("%")
    moment: datetime.datetime

    def __init__(self, marks: TaintTokens, *, paste_values: bool) -> None:
        super().__init__(trim_blocks=True, undefined=_Missing, optimized=False, cache_size=0)
        self.finalize = pass_context(_print)
        self.marks = marks
        self.paste_values = paste_values
        self.filters = dict(FILTERS)
        self.tests = dict(TESTS)
        del self.globals["lipsum"]
        self.globals["range"] = range  # without Jinja's own limit
        self.globals.update(FUNCTIONS)
        for name in TIMES:
            self.globals[name] = self._timed(name)
        self._own = {id(self.globals[name]) for name in ("range", *FUNCTIONS, *TIMES)}

    def _timed(self, name: str) -> Callable[[], object]:
        return lambda: TIMES[name](self.moment)

    def is_safe_attribute(self, obj: object, attr: str, value: object) -> bool:
        if attr.startswith("_") or self.paste_values:
            return self.paste_values and super().is_safe_attribute(obj, attr, value)
        if isinstance(obj, _OPEN_TYPES):
            return True
        return any(attr in ATTRIBUTES[cls] for cls in type(obj).__mro__ if cls in ATTRIBUTES)

    def is_safe_callable(self, obj: object) -> bool:
        if isinstance(obj, _CALLABLE_TYPES) or id(obj) in _MAKERS or id(obj) in self._own:
            return True
        if self.paste_values:  # then variables may be functions, as in Forgather
            return super().is_safe_callable(obj)
        return isinstance(obj, BuiltinMethodType | MethodType) and self.is_safe_attribute(
            obj.__self__, obj.__name__, obj
        )

    def wrap_str_format(self, value: object) -> Callable[..., str] | None:
        if not isinstance(value, BuiltinMethodType) or value.__name__ != "format":
            return None
        return Format(self, value.__self__) if isinstance(value.__self__, str) else None

    def call(__self, __context: Context, __obj: Any, *args: object, **kwargs: object) -> object:
        self, obj = __self, __obj
        if isinstance(obj, Undefined):
            obj()  # raises an error of its own
        if not self.is_safe_callable(obj):
            raise SecurityError(f"a template may not call {_named(obj)}")
        is_own = id(obj) in self._own
        if not is_own and not isinstance(obj, BuiltinMethodType | MethodType | Format):
            return __context.call(obj, *args, **kwargs)
        kwargs.pop("_block_vars", None)  # added by Jinja, for functions that take the context
        kwargs.pop("_loop_vars", None)
        for arg in (*args, *kwargs.values()):
            if isinstance(arg, Undefined):
                str(arg)  # raises an error of its own, which names it
        if is_own and obj is not repr:
            result = obj(*untaint(args), **untaint(kwargs))
            return self.marks.mark(result) if is_tainted(args) or is_tainted(kwargs) else result
        return self._call_method(obj, args, kwargs)

    def _call_method(self, method: Any, args: tuple[Any, ...], kwargs: dict[str, object]) -> object:
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, str) and not isinstance(owner, TaintedStr) and (args or kwargs):
            if name == "join":
                args = ([*args[0]], *args[1:])
            if is_tainted(args) or is_tainted(kwargs):
                method = getattr(self.marks.lifted(owner), name)
        elif name == "strftime" and is_tainted(args):
            return self.marks.mark(method(*untaint(args)))
        return self.made(method(*args, **kwargs))

    def made(self, value: object) -> object:
        """A value made by an expression, with its tokens read."""
        return self.marks.read(value) if type(value) is str else value

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> object:
        return self.made(percent(left, right, self.marks)) if isinstance(left, str) else left % right

    def concat(self, parts: Iterable[str]) -> str:
        """The output of a macro, a block or a filter's body, as one text."""
        return self.marks.read("".join(parts))


def _print(context: Context, value: object) -> object:
    """The output of `{{ value }}`."""
    if isinstance(value, str | int):
        return value
    sandbox = context.environment
    assert isinstance(sandbox, Sandbox)
    if isinstance(value, Undefined) or (sandbox.paste_values and (value is None or isinstance(value, float))):
        return str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else write(value)
    if value is None:
        return "null"
    if isinstance(value, TemplateModule):
        return str(sandbox.concat(value._body_stream))
    if callable(value):
        raise TemplateRuntimeError(f"{_named(value)} can't be printed; call it with ()")
    if isinstance(value, datetime.time | datetime.timedelta) and not sandbox.paste_values:
        return sandbox.marks.mark(str(value))  # YAML would read 1:30:00 as a number
    if isinstance(value, list | tuple | dict | range | datetime.date | datetime.time | datetime.timedelta):
        return str(value)
    raise TemplateRuntimeError(f"{_named(value)} can't be printed; use the filter list, or one of its names")


def _named(value: object) -> str:
    name = getattr(value, "name", None) or getattr(value, "__name__", None)
    kinds = {Macro: "macro", BlockReference: "the parent's block"}
    kind = kinds.get(type(value), f"a {type(value).__name__}")
    return f"{kind} {name!r}" if isinstance(name, str) else kind
