"""Runs something around each backward pass, by whichever function a training begins it.

Nothing is imported: torch may be half imported when it is called.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def around_passes(around: Callable[..., object]) -> None:
    """From now on torch's engine is called by this, with its method and the arguments, for good."""
    variable = sys.modules["torch.autograd"].Variable

    class Engine(type(variable._execution_engine)):  # type: ignore[misc]
        def run_backward(self, *arguments: object, **keywords: object) -> object:
            return around(super().run_backward, *arguments, **keywords)

    variable._execution_engine = Engine()
