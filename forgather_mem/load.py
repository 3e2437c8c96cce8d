"""How does a script get callbacks, or a whole watched trainer, in one line?"""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.config.check import unused
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy import Policy
from forgather_mem.errors import TemplateError

if TYPE_CHECKING:
    from forgather_mem.report import Report

logger = logging.getLogger(__name__)

WATCH = "callbacks/watch.yaml"


def load_callbacks(
    template: str | os.PathLike[str],
    /,
    *,
    target: str = "trainer_callbacks",
    searchpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    allow: Sequence[str] = (),
    allow_files: Sequence[str | Path] = (),
    policy: Policy | None = None,
    context_vars: Mapping[str, object] | None = None,
    **variables: object,
) -> list[Any]:
    """The trainer callbacks that a template describes, new ones each time.

    Args:
        template: Its name, looked up in `searchpath`, then in the current folder, then in this library; or the
            absolute path of a file.
        target: Which part of the template is the list of callbacks.
        searchpath: Folders of templates; also one folder.
        allow: What the template may import besides the default: "my_module", "my_module:MyCallback".
        allow_files: Python files that the template may use.
        policy: A policy instead of `allow` and `allow_files`.
        context_vars: Values for `!var`, any objects.
        variables: Jinja variables of the template; one that no template uses is warned of.

    Raises:
        TemplateError: for everything that is wrong with the template, with file, line and what to do.
    """
    folders = [searchpath] if isinstance(searchpath, str | os.PathLike) else list(searchpath)
    name = os.fspath(template)
    if os.path.isabs(name):
        folders, name = [os.path.dirname(name), *folders], os.path.basename(name)
    env = ConfigEnvironment([*folders, "."], allow=allow, allow_files=allow_files, policy=policy)
    config = env.load(name, **variables)
    callbacks = config.construct(target, context_vars=context_vars)
    for problem in unused(env, config, name, variables):
        logger.warning("%s", problem.error)
    if not isinstance(callbacks, list | tuple):
        message = f"the target {target!r} is no list of callbacks; it is of type {type(callbacks).__name__}"
        raise TemplateError(
            message, template=name, hint="write it as !list:@trainer_callbacks or !dlist:@trainer_callbacks"
        )
    return list(callbacks)


def attach(trainer: Any, template: str | os.PathLike[str] = WATCH, **options: Any) -> Attached:
    """Watch a trainer that exists already: adds a template's callbacks and links them to it.

    Call it before `trainer.train()`. Nothing is read before the training, and with the default template
    nothing is changed by it. A trainer to which this template is attached already, as under `forgather-mem run`,
    gets it once: the handle is the first one.

    Args:
        trainer: A `transformers.Trainer`, or what behaves like one.
        template: As for `load_callbacks`.
        options: Keyword arguments and variables of `load_callbacks`.

    Returns:
        A handle with `report()` and `detach()`.

    Raises:
        TypeError: when `trainer` takes no callbacks.
        TemplateError: for everything that is wrong with the template.
    """
    from forgather_mem.callbacks.link import Link

    if not callable(getattr(trainer, "add_callback", None)):
        raise TypeError(f"attach({type(trainer).__name__}): a trainer has a method add_callback; this has none")
    name = os.fspath(template)
    known = Link.handles_of(trainer).get(name)
    if isinstance(known, Attached):
        if options != known.options:
            logger.warning("attach: %s is attached to this trainer already; detach() it to change its options", name)
        return known
    callbacks = load_callbacks(template, **options)
    handle = Attached(trainer, callbacks, options)
    for callback in callbacks:
        trainer.add_callback(callback)
        link = Link.of(trainer, callback)
        link.stay()
        link.handles[name] = handle
    return handle


class Attached:
    """What `attach` returns.

    Attributes:
        callbacks: The callbacks that were added.
    """

    def __init__(self, trainer: Any, callbacks: Sequence[Any], options: Mapping[str, object]) -> None:
        self._trainer = weakref.ref(trainer)
        self.callbacks = tuple(callbacks)
        self.options = options

    def report(self) -> Report:
        """Where the memory is: of the training that is running, or of the last one. `print` it to read it.

        Raises:
            RuntimeError: before the first training.
        """
        from forgather_mem.report import Report

        for callback in self.callbacks:
            summary = getattr(callback, "summary", None)
            if summary is not None:
                return Report.of(summary)
        raise RuntimeError("there is nothing to report yet: call trainer.train() first")

    def detach(self) -> None:
        """Take the callbacks out and put every wrapped method back; a run that is open ends. Idempotent."""
        from forgather_mem.callbacks.link import LINK_ATTRIBUTE

        trainer = self._trainer()
        for callback in self.callbacks:
            if trainer is not None:
                trainer.pop_callback(callback)
            close = getattr(callback, "close", None)
            if close is not None:
                close()
        link = getattr(trainer, LINK_ATTRIBUTE, None)
        if link is not None:
            link.handles = {name: handle for name, handle in link.handles.items() if handle is not self}
            link.leave(self.callbacks)
