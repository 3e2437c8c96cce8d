"""Where do our own failures stop? Here: they are logged once and never end somebody's training."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import Any

from forgather_mem.plan import MAX_STRIKES, ArmedRule

logger = logging.getLogger(__name__)


class Fence:
    """Runs our own code so that its exceptions stay with us.

    `KeyboardInterrupt` and `SystemExit` pass. With `strict` (or `FORGATHER_MEM_STRICT=1`) everything passes.

    Attributes:
        switched_off: One sentence for each rule that failed too often.
    """

    def __init__(self, strict: bool = False) -> None:
        self.strict = strict or os.environ.get("FORGATHER_MEM_STRICT", "") not in ("", "0")
        self.switched_off: list[str] = []
        self._logged: set[str] = set()

    def call(self, name: str, function: Callable[..., Any] | None, *arguments: Any) -> Any:
        """The function's result; None when there is no function or it failed."""
        if function is None:
            return None
        try:
            return function(*arguments)
        except Exception as error:  # design rule 10: this is the fence
            if self.strict:
                raise
            self._log(name, error)
            return None

    def call_part(self, part: object, method: str, argument: object) -> None:
        """`part.method(argument)`, when it has that method."""
        function = getattr(part, method, None)
        if function is None:
            return
        try:
            function(argument)
        except Exception as error:  # design rule 10: this is the fence
            if self.strict:
                raise
            self._log(f"{type(part).__name__}.{method}", error)

    def call_rule(self, rule: ArmedRule, function: Callable[..., Any], *arguments: Any) -> None:
        """The same for a rule: three failures in a row switch it off."""
        try:
            function(rule, *arguments)
            rule.strikes = 0
        except Exception as error:  # design rule 10: this is the fence
            if self.strict:
                raise
            self._log(rule.name, error)
            rule.strikes += 1
            if rule.strikes >= MAX_STRIKES:
                rule.off = True
                text = f"{rule.name}: switched off after {MAX_STRIKES} failures in a row, the last: {error!r:.200}"
                self.switched_off.append(text)
                logger.warning("%s", text)

    def _log(self, name: str, error: Exception) -> None:
        if name not in self._logged:
            self._logged.add(name)
            logger.warning("%s failed; the training goes on: %r", name, error, exc_info=error)
