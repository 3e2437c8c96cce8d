"""How is a Trainer met in somebody else's script, without importing anything before the script does?

A finder waits for `transformers.trainer`. When the script has imported it, a class of ours is put into its list
of default callbacks, which each Trainer, of whatever subclass, builds anew.
"""

from __future__ import annotations

import itertools
import operator
import os
import sys

from forgather_mem import session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from importlib.abc import Loader
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

TRAINER_MODULE = "transformers.trainer"


def install() -> None:
    """Wait for a Trainer, if this process belongs to a `forgather-mem run` that is not switched off."""
    if session.FOLDER not in os.environ or session.is_off():
        return
    sys.meta_path.insert(0, TrainerFinder())
    if "--multiprocessing-fork" not in sys.orig_argv:  # what a pool's worker holds, its parent's report tells
        from forgather_mem.launch.at_exit import watch_process

        watch_process()


class TrainerFinder:
    """Finds nothing itself; it looks who is asked for, until the Trainer is there."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != TRAINER_MODULE:
            return None
        for finder in sys.meta_path:
            spec = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                if spec.loader is not None:
                    _then(spec.loader, self.trainer_is_there)
                return spec
        return None

    def trainer_is_there(self) -> None:
        """Transformers' Trainer has just been imported."""
        from forgather_mem.fence import Fence

        if self in sys.meta_path:
            sys.meta_path.remove(self)
        Fence().call("run", _add_default_callback)


def _add_default_callback() -> None:
    from forgather_mem.launch.watching import Watching

    defaults = sys.modules[TRAINER_MODULE].DEFAULT_CALLBACKS
    if Watching not in defaults:
        defaults.append(Watching)


def _then(loader: Loader, afterwards: Callable[[], object]) -> None:
    """Let this loader, which is one module's own, call a function when it has executed the module.

    Not by a function around `exec_module`: the traceback of a module that fails to import shows each Python frame
    on the way, and is to be as without us. Here execution and what follows are steps of an iterator, and
    `exec_module(module)` is `next(steps, module)`: it looks for a step that gives something true, and there is none.
    """
    from functools import partial

    execute = loader.exec_module

    def calls() -> Iterator[tuple[Any, ...]]:
        yield execute, sys.modules[TRAINER_MODULE]
        del loader.exec_module
        yield (afterwards,)

    loader.exec_module = partial(next, filter(None, itertools.starmap(operator.call, calls())))  # type: ignore[method-assign]
