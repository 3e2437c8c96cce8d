"""Stops our own failures: whatever is called inside a training is called through a fence.

A failure is logged once by the name of what failed and never ends somebody's training. Where a call layer would cost
too much, the `try` stands at the place of the call, with `except fence.kept(name):` or `struck`.
"""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Callable
from typing import Any, TypeVar, TypeVarTuple

from forgather_mem.errors import is_of_handler, ours

logger = logging.getLogger(__name__)

MAX_STRIKES = 3
R = TypeVar("R")
Ts = TypeVarTuple("Ts")


class Guarded:
    """Something that is called again and again, and no longer after three failures in a row.

    Attributes:
        name: For messages.
        strikes: Failures in a row; who calls it sets this back to 0 when a call has gone well.
        off: Whether it is called no longer.
    """

    strikes = 0
    off = False

    def __init__(self, name: str) -> None:
        self.name = name


class FailureGuard:
    """Runs our own code and contains its exceptions.

    `KeyboardInterrupt`, `SystemExit` and what a signal's handler raises while we run pass through. With `strict` (or
    `FORGATHER_MEM_STRICT=1`) all exceptions do.

    Attributes:
        switched_off: One sentence for each part that failed too often.
        failure: The last failure, as text.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict or os.environ.get("FORGATHER_MEM_STRICT", "") not in ("", "0")
        self.switched_off: list[str] = []
        self.failure: str | None = None
        self._logged: set[str] = set()

    def call(self, name: str, function: Callable[[*Ts], R] | None, *arguments: *Ts) -> R | None:
        """The function's result; None if there is no function or it failed."""
        if function is None:
            return None
        try:
            return function(*arguments)
        except self.kept(name):  # design rule 10: this is the fence
            return None

    def call_part(self, part: object, method: str, *arguments: object) -> Any:
        """`part.method(*arguments)`, when it has that method; None when it has none or failed."""
        try:
            function = getattr(part, method, None)
            return None if function is None else function(*arguments)
        except self.kept(f"{type(part).__name__}.{method}"):  # design rule 10: this is the fence
            return None

    def kept(self, name: str) -> tuple[type[Exception], ...]:
        """For `except fence.kept(name):`, a failure that stays with us; any other goes on."""
        error = sys.exception()
        return (Exception,) if isinstance(error, Exception) and self.keeps(name, error) else ()

    def struck(self, part: Guarded) -> tuple[type[Exception], ...]:
        """As `kept`; the third failure in a row switches the part off."""
        error = sys.exception()
        return (Exception,) if isinstance(error, Exception) and self.strike(part, error) else ()

    def keeps(self, name: str, error: Exception) -> bool:
        """Whether this failure stays with us; it is then logged, once by each name. Who gets False raises it again."""
        if is_of_handler(error):
            return False
        self.failure = _text_of(error)
        if not self.strict and name not in self._logged:
            self._logged.add(name)
            _warn("%s failed; training continues: %r", name, error, exc_info=error)
        return not self.strict

    def strike(self, part: Guarded, error: Exception) -> bool:
        """As `keeps`; the third failure in a row switches the part off, unless only files were wanting."""
        if not self.keeps(part.name, error):
            return False
        # What has no file descriptor left reads again as soon as one is closed: that is no failure of the part
        part.strikes += not (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE))
        if part.strikes >= MAX_STRIKES and not part.off:
            part.off = True
            text = f"{part.name}: switched off after {MAX_STRIKES} failures in a row, the last: {_text_of(error)}"
            self.switched_off.append(text)
            _warn("%s", text)
        return True


def _text_of(error: Exception) -> str:
    try:
        return f"{error!r:.200}"
    except ours(Exception) as second:  # somebody's exception that can't be written as text
        return f"{type(error).__name__} ({type(second).__name__} in its text)"


def _warn(message: str, *arguments: object, exc_info: Exception | None = None) -> None:
    try:
        logger.warning(message, *arguments, exc_info=exc_info)
    except ours(Exception):  # no memory or stack left for a line, or somebody's handler of logging that raises
        pass
