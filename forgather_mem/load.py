"""One-line entry points for scripts: load callbacks from a template, or attach them to a trainer."""

from __future__ import annotations

import logging
import os
import weakref
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from forgather_mem.engine.run_of import RUNS
from forgather_mem.errors import stream_for_people
from forgather_mem.sinks.console import at_end_of_cell, print_line
from forgather_mem.system.time_budget import PREPARATION
from forgather_mem.telemetry import run_session

if TYPE_CHECKING:
    from forgather_mem.config.policy.policy import Policy
    from forgather_mem.engine.summary import RunSummary
    from forgather_mem.loops.observed import ObservedLoop
    from forgather_mem.page.report_dict import Report

logger = logging.getLogger(__name__)

_NOTHING_HEARD = (
    "forgather-mem: no training step was seen in this process: put watch() where the steps are made "
    "(with Ray, in the worker's function)"
)
_OF_ANOTHER = "forgather-mem: these steps are of a training that is watched already: .report() is of that one"


class _OwnTemplate(str):
    """The name of a template of this library, whatever the current folder has by that name."""


WATCH = _OwnTemplate("callbacks/watch.yaml")
_BASE = "callbacks/base_callbacks.yaml"
_TARGET = "trainer_callbacks"


def load_callbacks(
    template: str | os.PathLike[str],
    /,
    *,
    target: str = _TARGET,
    searchpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    allow: Sequence[str] = (),
    allow_files: Sequence[str | Path] = (),
    policy: Policy | None = None,
    context_vars: Mapping[str, object] | None = None,
    **variables: object,
) -> list[Any]:
    """The trainer callbacks that a template describes, new instances each time.

    What `callbacks/watch.yaml` and `callbacks/memory.yaml` describe without any variable is made without reading them.

    Args:
        template: Its name, looked up in `searchpath`, then in the current folder, then in this library; or an absolute
            path.
        target: Which part of the template is the list of callbacks.
        searchpath: Folders of templates; also one folder.
        allow: What the template may import besides the default: "my_module", "my_module:MyCallback"; addresses that it
            may hold: "s3://bucket/".
        allow_files: Python files that the template may use.
        policy: A policy to use instead of `allow` and `allow_files`.
        context_vars: Values for `!var`: any objects.
        variables: Jinja variables of the template; unused ones cause a warning.

    Raises:
        TemplateError: if anything is wrong with the template, with file, line and what to do.
    """
    given = searchpath or allow or allow_files or policy or context_vars or variables
    here = [] if isinstance(template, _OwnTemplate) else ["."]
    name = os.fspath(template)
    if (target, name) == (_TARGET, WATCH) and not given and not (here and any(map(os.path.exists, (name, _BASE)))):
        # Without the template half, which saves 2 MiB and 30 ms; a test compares what both make
        from forgather_mem.callbacks import LeakDetector, MemoryCallback, OOMReporter

        return [MemoryCallback(), LeakDetector(), OOMReporter()]
    import_template_languages()
    from forgather_mem.config.check import callbacks_of, unused
    from forgather_mem.config.environment import ConfigEnvironment

    folders = [searchpath] if isinstance(searchpath, str | os.PathLike) else list(searchpath)
    if os.path.isabs(name):
        folders, name = [os.path.dirname(name), *folders], os.path.basename(name)
    env = ConfigEnvironment([*folders, *here], allow=allow, allow_files=allow_files, policy=policy)
    config = env.load(name, **variables)
    callbacks = callbacks_of(config, target, context_vars)
    for problem in unused(config, variables):
        logger.warning("%s", problem.error)
    return callbacks


def import_template_languages() -> None:
    """Import what the template half needs: not what lies beside the script under these names."""
    from forgather_mem.system.installed import installed

    for name in ("yaml", "markupsafe", "jinja2"):
        installed(name)


def attach(trainer: Any, template: str | os.PathLike[str] = WATCH, **options: Any) -> Attached:
    """Watch an existing trainer: adds a template's callbacks and links them to it.

    Call it before `trainer.train()`. Nothing is read before the training, and the default template changes nothing. If
    this template is already attached, as under `forgather-mem run`, the existing handle is returned. With
    `FORGATHER_MEM=0` in the environment nothing is added or wrapped.

    Args:
        trainer: A `transformers.Trainer`, or an object that behaves like one.
        template: As for `load_callbacks`.
        options: Keyword arguments and variables of `load_callbacks`.

    Returns:
        A handle with `report()` and `detach()`.

    Raises:
        TypeError: if `trainer` takes no callbacks.
        TemplateError: if anything is wrong with the template.
    """
    if not callable(getattr(trainer, "add_callback", None)):
        raise TypeError(
            f"attach({type(trainer).__name__}): this object has no method add_callback, so it is no Trainer; "
            "Lightning's Trainer takes LightningCallbacks([...]), and any loop goes in: with forgather_mem.watch(): ..."
        )
    if run_session.is_off():
        return Attached(trainer, (), options, run_session.why_off())
    try:
        with PREPARATION:
            return _attached(trainer, template, options)
    except MemoryError:  # what is left is the training's
        logger.warning("attach: there is no memory left to watch this training")
        return Attached(trainer, (), options, "no memory was left for it")


def _attached(trainer: Any, template: str | os.PathLike[str], options: dict[str, Any]) -> Attached:
    from forgather_mem.callbacks.trainer.link import LINKS, Link

    name = os.fspath(template)
    linked = LINKS.get(trainer)
    known = linked.handles.get(name) if linked is not None else None
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


def watch(
    template: str | os.PathLike[str] = WATCH,
    *,
    output_dir: str | os.PathLike[str] | None = ".",
    quiet: bool = False,
    **options: Any,
) -> WatchedLoop:
    """Watch a training loop that has no Trainer, whatever it looks like, from here on.

        with forgather_mem.watch():
            train()

    A plain call does as well; the process's end then ends it. Steps are those of the optimizers, whoever calls them
    (`ObservedLoop` says what counts as one). A training whose callbacks are ours already (a Trainer's, Lightning's, a
    `TrainingLoop`) tells its own steps, and nothing is added to it. Nothing is read before the first step.

    Args:
        template: As for `load_callbacks`.
        output_dir: Our files go into `forgather_mem/<time>` below it, TensorBoard's into `runs`. None: only where the
            template or the environment names a place.
        quiet: Don't print the report, to stderr or in a notebook to stdout, at the end, nor that no step was seen.
            `forgather-mem run` prints it in any case.
        options: Keyword arguments and variables of `load_callbacks`.

    Returns:
        A context manager with `report()` and `close()`. With `FORGATHER_MEM=0` it watches nothing.

    Raises:
        TemplateError: if anything is wrong with the template.
    """
    from forgather_mem.loops.observed import LOOPS, ObservedLoop
    from forgather_mem.loops.state import default_arguments

    quiet = quiet or run_session.folder() is not None
    with PREPARATION:
        callbacks = [] if run_session.is_off() else load_callbacks(template, **options)
    if not quiet:
        _leave_the_end_to_the_loop(callbacks)
    arguments = default_arguments(None if output_dir is None else os.fspath(output_dir))
    loop = ObservedLoop(arguments, lambda: callbacks)
    if run_session.is_off():
        loop.close()
    else:
        LOOPS.add(loop)
        loop.listen()
    return WatchedLoop(loop, callbacks, quiet=quiet)


def _leave_the_end_to_the_loop(callbacks: Sequence[object]) -> None:
    """It prints the report, whatever ends it: what prints that of an out-of-memory error would print it again."""
    from forgather_mem.callbacks.base import RuleCallback
    from forgather_mem.callbacks.oom_reporter import LastWords

    for callback in callbacks:
        if isinstance(callback, RuleCallback):
            callback.sinks = tuple(sink for sink in callback.sinks if not isinstance(sink, LastWords))


class WatchedLoop:
    """What `watch` returns.

    Attributes:
        callbacks: The callbacks that take part.
    """

    def __init__(self, loop: ObservedLoop, callbacks: Sequence[Any], *, quiet: bool) -> None:
        self._loop = loop
        self._quiet = quiet
        other = RUNS.other_open(None)
        self._num_runs, self._others_step = RUNS.num_given, 0 if other is None else other.summary.last_step
        self.latest: RunSummary | None = None if other is None else other.summary  # or of what has begun since
        self._given: Report | None = None  # to who asked when the loop was over
        RUNS.followers.add(self)
        self.callbacks = tuple(callbacks)
        loop.on_close = self._show

    def __repr__(self) -> str:
        return run_session.why_off() if run_session.is_off() else "a watched loop: .report() is what is known of it"

    def report(self) -> Report:
        """The memory report up to now, or of the whole loop once it is over. `print` it to read it.

        Raises:
            RuntimeError: before the first step of an optimizer.
        """
        report = self._known()
        if report is None:
            raise RuntimeError("there is no report yet: this watch() has seen no step")
        self._given = report if self._loop.is_over else None
        return report

    def close(self, error: BaseException | None = None) -> None:
        """The loop is over, ended by this error if there is one: write and print the report. Idempotent."""
        was_open = not self._loop.is_over
        self._loop.close(error)
        if was_open and self._num_runs != RUNS.num_given:
            if _report_of(self.callbacks, None) is None:  # it is of a training that tells its own steps
                self._show()
        elif was_open and not self._quiet and error is None:
            print_line(_NOTHING_HEARD if self._known() is None else _OF_ANOTHER, stream_for_people())

    def step(self) -> None:
        """A step is over: for a loop without an optimizer of torch, or with a compiled one.

        Where an optimizer is seen, its steps count, and this does nothing.
        """
        self._loop.end_steps()

    def phase(self, phase: Literal["evaluate", "save", "generate"]) -> AbstractContextManager[None]:
        """A block of the loop that is this phase, from its first step on."""
        return self._loop.phase(phase)

    def __enter__(self) -> WatchedLoop:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.close(error)

    def _known(self) -> Report | None:
        """The report of this loop, or of another training that has begun or made steps since."""
        from forgather_mem.page.report_dict import Report

        own, latest = _report_of(self.callbacks, None), self.latest
        if own is not None or latest is None:
            return own
        return Report.of(latest) if (RUNS.num_given, latest.last_step) != (self._num_runs, self._others_step) else None

    def _show(self) -> None:
        """Print the report; in a notebook at the end of the cell, unless that has shown it."""
        report = None if self._quiet else self._known()
        text = str(report)

        def tell() -> None:
            if self._given is None or not self._given.is_shown:
                print_line(text, stream_for_people())

        if report is not None:
            at_end_of_cell(tell)


class Attached:
    """What `attach` returns.

    Attributes:
        callbacks: The callbacks that were added.
    """

    def __init__(
        self, trainer: Any, callbacks: Sequence[Any], options: Mapping[str, object], why_not: str | None = None
    ) -> None:
        self._trainer = weakref.ref(trainer)
        self._why_not = why_not  # why nothing was added to the trainer
        self.callbacks = tuple(callbacks)
        self.options = options

    def __repr__(self) -> str:
        return self._why_not or "watches each training of this trainer: .report() is that of the last one"

    def report(self) -> Report:
        """The memory report of the current or last training. `print` it to read it.

        Where a training was not watched, because of `FORGATHER_MEM=0` or since our run could not begin, it says so.

        Raises:
            RuntimeError: before the first training.
        """
        report = _report_of(self.callbacks, self._why_not) or _report_of((), self._why_no_run())
        if report is None:
            raise RuntimeError("there is no report yet: no training has begun since attach; call trainer.train()")
        return report

    def _why_no_run(self) -> str | None:
        from forgather_mem.callbacks.base import RuleCallback

        ours = [callback for callback in self.callbacks if isinstance(callback, RuleCallback) and callback.enabled]
        failures = [callback.failure for callback in ours if callback.failure is not None]
        if failures:
            return f"our run could not begin: {failures[0]}"
        return None if ours else "no callback of the template is both ours and enabled"

    def detach(self) -> None:
        """Remove the callbacks and restore every wrapped method; an open run ends. Idempotent."""
        from forgather_mem.callbacks.trainer.link import LINKS
        from forgather_mem.telemetry.guard import FailureGuard

        trainer, fence = self._trainer(), FailureGuard()
        for callback in self.callbacks:
            if trainer is not None:
                trainer.pop_callback(callback)
            fence.call_part(callback, "close")  # one that fails keeps none of the others
        link = LINKS.get(trainer) if trainer is not None else None
        if link is not None:
            link.handles = {name: handle for name, handle in link.handles.items() if handle is not self}
            link.leave(self.callbacks)


def _report_of(callbacks: Sequence[Any], why_not: str | None) -> Report | None:
    """The report of the training that one of these takes part in; None if there is none and no reason why."""
    from forgather_mem.page.report_dict import Report

    for callback in callbacks:
        summary = getattr(callback, "summary", None)
        if summary is not None:
            return Report.of(summary)
    why_not = why_not or (run_session.why_off() if run_session.is_off() else None)
    return Report.of_nothing(f"Nothing was watched: {why_not}") if why_not is not None else None
