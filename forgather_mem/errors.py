"""The exceptions that users of this library see, whose an exception is, and texts as they leave the library."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import FrameType
    from typing import TextIO, TypeVar

    E = TypeVar("E", bound=BaseException)

MAX_MESSAGE_CHARS = 2_000
_US = os.path.dirname(__file__) + os.sep
_HAS_MORE = 0x04  # inspect.CO_VARARGS: the function has *arguments
_MAX_COMPARED = 300_000  # characters of one name times those of others: some tens of milliseconds


def first_line(text: str) -> str:
    """The first line of a message that has words: some libraries begin with a rule of dashes."""
    return next((line.strip() for line in text.splitlines() if any(map(str.isalnum, line))), "")


class ForgatherMemError(Exception):
    """Base of the errors that this library raises on purpose, except plain `ValueError` for a bad argument."""


class Hinted(Exception):
    """The message says what is wrong, `hint` what to do."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(Hinted, ForgatherMemError):
    """A command line can't be understood."""


class PlanError(ForgatherMemError):
    """A training can't be planned; the message says what stands in the way, where, and what to do."""


class TemplateError(ForgatherMemError, ValueError):
    """A template can't be read, checked or built.

    `str()` gives the full message for people: location, what is wrong, the line with a caret, how it was reached, and
    what to do. The fields hold the same for programs; unknown ones are None.

    Args:
        message: What is wrong, one sentence, without the location.
        template: Name of the template as requested, or "<string>".
        line: 1-based line in the original file.
        column: 1-based column in the original line.
        path: Its path in the graph, e.g. `$.trainer_callbacks.gc`.
        hint: What to do, e.g. "did you mean 'collect_freq_epoch'?".
        source_line: The text of the line, shown with a caret under `column`.
        chain: How the text was reached, e.g. "in block callback_list, extended by configs/demo.yaml".

    Attributes:
        references: Of an error in rendering, the templates in use by then: level, name and file of each.
    """

    references: Sequence[tuple[int, str, str]] = ()

    def __init__(
        self,
        message: str,
        *,
        template: str | None = None,
        line: int | None = None,
        column: int | None = None,
        path: str | None = None,
        hint: str | None = None,
        source_line: str | None = None,
        chain: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.hint, self.chain = message, hint, chain
        self.template, self.line, self.column = template, line, column
        self.path, self.source_line = path, source_line

    def __reduce__(self) -> tuple[object, ...]:
        return rebuilt, (dict(self.__dict__), type(self))

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.template, self.line, self.column) if part is not None)
        head = f"{place}: {self.message}" if place else self.message
        lines = [_bounded(head)]
        if self.source_line is not None and self.line is not None:
            lines += _caret(self.source_line, self.line, self.column)
        at = "; ".join(part for part in (f"at {self.path}" if self.path else "", self.chain or "") if part)
        if at:
            lines.append(f"  {_bounded(at, 300)}")
        if self.hint:
            lines.append(f"  {_bounded(self.hint, 900)}")
        return "\n".join(lines)


def is_of_handler(error: BaseException) -> bool:
    """Whether the user's handler of a signal has raised this, which came while our code ran: it is no failure of ours.

    Python calls a handler with the frame that it interrupts; nothing else of the user's is given its caller's frame.
    """
    trace = error.__traceback__
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        caller = None if frame.f_code.co_filename.startswith(_US) else frame.f_back
        if caller is not None and any(value is caller for value in _arguments(frame)):
            return True
    return False


def ours(*kinds: type[E]) -> tuple[type[E], ...]:
    """For `except ours(OSError):`: an error of these kinds, unless a signal's handler has raised it.

    A handler may raise anything; `TimeoutError`, which many raise, is an `OSError`. The words after `except` are looked
    at only when there is an error.
    """
    error = sys.exception()
    return () if error is not None and is_of_handler(error) else kinds


class missing:  # as contextlib.suppress, which is not loaded: this is in every process of a watched command
    """What can't be read is left out; what a signal's handler raises meanwhile is handed on."""

    def __init__(self, *kinds: type[BaseException]) -> None:
        self._kinds = kinds

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        return isinstance(error, self._kinds) and not is_of_handler(error)


def _arguments(frame: FrameType) -> Iterator[object]:
    code = frame.f_code
    number = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & _HAS_MORE)
    for name in code.co_varnames[:number]:
        value = frame.f_locals.get(name)
        yield from value if type(value) is tuple else (value,)


def rebuilt(fields: dict[str, object], cls: type[TemplateError] = TemplateError) -> TemplateError:
    """The error whose `__dict__` this was, in another process."""
    error = cls(str(fields["message"]))
    error.__dict__.update(fields)
    return error


def _caret(source_line: str, line: int, column: int | None) -> list[str]:
    start = column - 40 if column is not None and column > 80 else 0  # of a very long line: the part around the error
    text = escape_controls(source_line[start : start + 100].expandtabs(1))
    shown = [f"   {line} | {text}"]
    if column is not None:
        shown.append(" " * (3 + len(str(line))) + " | " + " " * (column - 1 - start) + "^")
    return shown


def _bounded(text: str, limit: int = 700) -> str:
    text = escape_controls(text, keep="\n")
    return text if len(text) <= limit else text[: limit - 30] + f"... ({len(text):,} characters)"


def check_flags(owner: str, **flags: object) -> None:
    """Refuse a switch that is neither true nor false: the text "false" would count as true.

    >>> check_flags("SimpleGarbageCollector", verbose="false")
    Traceback (most recent call last):
    ...
    ValueError: SimpleGarbageCollector(verbose='false'): verbose is true or false

    Raises:
        ValueError: with the owner, the parameter and the value.
    """
    for name, flag in flags.items():
        if not isinstance(flag, bool):
            raise ValueError(f"{owner}({name}={flag!r}): {name} is true or false")


def check_whole(owner: str, least: int = 1, **numbers: object) -> None:
    """Refuse anything but whole numbers of `least` or more; True is none.

    >>> check_whole("ProfileMemory", max_mb=0)
    Traceback (most recent call last):
    ...
    ValueError: ProfileMemory(max_mb=0): give a whole number of 1 or more

    Raises:
        ValueError: with the owner, the parameter and the value.
    """
    for name, number in numbers.items():
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise ValueError(f"{owner}({name}={number!r}): give a whole number of {least} or more")


def escape_controls(text: str, *, keep: str = "") -> str:
    r"""The text with control and direction characters written out, so that no message moves the cursor.

    >>> escape_controls("a\x1b[31m\n")
    'a\\x1b[31m\\n'
    """
    if text.isprintable():
        return text
    bad = (char for char in set(text) if not char.isprintable() and char not in keep)
    return text.translate({ord(char): char.encode("unicode_escape").decode() for char in bad})


def shown(text: str) -> str:
    r"""A text as it leaves us, on a screen, in a page or to an assistant: no control character in it but newlines.

    No line of it is a command for the runner of a workflow: these take what a job prints.

    >>> shown("a\x1b[2J\n  ::error::b\n##[group]c")
    'a\\x1b[2J\n  \\x3a:error::b\n#\\x23[group]c'
    """
    text = escape_controls(text, keep="\n").replace("##[", "#\\x23[").replace("##vso[", "#\\x23vso[")
    lines = text.split("\n") if "::" in text else [text]
    return "\n".join(line.replace(":", "\\x3a", 1) if line.lstrip().startswith("::") else line for line in lines)


def stream_for_people() -> TextIO:
    """The current stderr; where that is a notebook's, which is red, stdout."""
    return sys.stdout if type(sys.stderr).__module__.startswith("ipykernel") else sys.stderr


def say(text: str, *, is_shown: bool = False) -> None:
    """Print a text for people as it may leave, or is already; a stream that is closed is no error."""
    with missing(OSError, ValueError, AttributeError):
        print(text if is_shown else shown(text), file=stream_for_people(), flush=True)


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """A hint with the closest known name; None if none is close. Of very many names it looks at some.

    >>> did_you_mean("collect_freq_epochs", ["verbose", "collect_freq_epoch"])
    "did you mean 'collect_freq_epoch'?"
    >>> did_you_mean("zzz", ["verbose"]) is None
    True
    """
    near = nearest(name, known, cutoff)
    return f"did you mean {near!r}?" if near is not None else None


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like another one, None when none is."""
    import difflib  # only after a mistake: the parent of `forgather-mem run` stays small

    name = name[:200]
    candidates = []
    left = _MAX_COMPARED  # a stranger may have chosen the names
    for candidate in known:
        if len(candidate) > 4 * len(name) + 4:  # too long to be close
            continue
        left -= (len(name) + 10) * (len(candidate) + 10)  # comparing two takes as long
        if left < 0:
            break
        candidates.append(candidate)
    end = os.path.splitext(name)[1]  # that two files are of one kind doesn't make them alike
    end = end if any(candidate.endswith(end) for candidate in candidates) else ""
    stems = {candidate.removesuffix(end): candidate for candidate in candidates}
    found = difflib.get_close_matches(name.removesuffix(end), stems, n=1, cutoff=cutoff)
    return stems[found[0]] if found else None
