"""Meets trainers of Forgather: their class has no list of callbacks that every trainer gets."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from forgather_mem.callbacks.trainer.method_patches import without_ours
from forgather_mem.telemetry.guard import FailureGuard


def call_when_made(trainers: type, call: Callable[[Any], None]) -> None:
    """From now on call this with each object of this class or of a subclass, at the end of the class's constructor.

    An exception of the constructor passes, with the traceback that it has without us.
    """
    construct: Callable[..., None] = trainers.__init__  # type: ignore[misc]

    @functools.wraps(construct)
    def __init__(self: Any, *arguments: object, **keywords: object) -> None:
        try:
            construct(self, *arguments, **keywords)
        except BaseException as error:
            error.__traceback__ = without_ours(error.__traceback__)
            raise
        FailureGuard().call("run", call, self)

    trainers.__init__ = __init__  # type: ignore[misc]
