"""The callbacks that are added to every training of a watched command."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.memory_callback import MemoryCallback
from forgather_mem.load import WATCH, attach, import_template_languages, load_callbacks
from forgather_mem.loops.state import default_arguments
from forgather_mem.sinks import BlackBoxSink, JsonlSink
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.guard import FailureGuard

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from forgather_mem.loops.training_loop import TrainingLoop


class Watching(RuleCallback):
    """Attaches the template of `forgather-mem run` to the trainer that has just created this.

    It adds a log and a black box: the report is made from them, whatever the template writes. A trainer that the script
    itself already watches is left alone.
    """

    def __init__(self) -> None:
        super().__init__([], [JsonlSink(), BlackBoxSink()])

    def on_init_end(self, args: Any, state: Any, control: Any, **objects: object) -> None:
        super().on_init_end(args, state, control, **objects)
        if self._on():
            FailureGuard(self.strict).call("run", self._attach)

    def _attach(self) -> None:
        link = self._link()
        trainer = link.trainer() if link is not None else None
        if link is None or trainer is None:
            return
        template, options = template_and_options()
        if template == WATCH and not options and any(type(known) is MemoryCallback for known in link.callbacks()):
            return
        callbacks = getattr(trainer, "callback_handler", trainer).callbacks
        place, behind = callbacks.index(self) + 1, len(callbacks)
        attach(trainer, template, **options)
        callbacks[place:] = callbacks[behind:] + callbacks[place:behind]  # the last one is the script's own


def add_to(trainer: Any) -> None:
    """Watch a trainer of Forgather's, which has no callbacks that every one gets. The list that it was given stays."""
    if not any(isinstance(known, Watching) for known in trainer.callbacks):
        trainer.callbacks = [Watching(), *trainer.callbacks]


def add_to_loop(loop: TrainingLoop) -> None:
    """Watch a `TrainingLoop` of the script's own; one that is watched gets only what the report is made from."""
    is_watched = any(type(known) is MemoryCallback for known in loop.callback_handler.callbacks)
    loop.args.output_dir = getattr(loop.args, "output_dir", None) or output_folder()
    for callback in callbacks_of_run()[: 1 if is_watched else None]:
        loop.add_callback(callback)


def meet_trainers(module: str, name: str) -> None:
    """The module of this class of trainers or loops has just been imported: watch each that is made."""
    from forgather_mem.callbacks.trainer.method_patches import call_when_made

    call_when_made(getattr(sys.modules[module], name), add_to if name == "BaseTrainer" else add_to_loop)


def ask_for_looks() -> None:
    """In a thread of a process without torch: look at it from time to time, until it ends."""
    from forgather_mem.loops.by_time import Looks

    Looks(default_arguments(output_folder()), callbacks_of_run).ask()


def template_and_options() -> tuple[str, dict[str, Any]]:
    """What the options of `forgather-mem run` ask for: the template, and keyword arguments of `load_callbacks`."""
    options: dict[str, Any] = {}
    if settings := os.environ.get(run_session.SETTINGS):
        from forgather_mem.cli.options import parse_settings

        import_template_languages()
        options.update(parse_settings(settings.split("\n")))
    if allowed := os.environ.get(run_session.ALLOW):
        options["allow"] = allowed.split("\n")
    return os.environ.get(run_session.TEMPLATE, WATCH), options


def callbacks_of_run() -> list[TrainerCallback]:
    """The callbacks of `forgather-mem run` for a training without a Trainer."""
    template, options = template_and_options()
    return [RuleCallback([], [JsonlSink(), BlackBoxSink()]), *load_callbacks(template, **options)]


def output_folder() -> str:
    """The folder below which `forgather_mem/<time>` lies: where the run has its own."""
    session = run_session.folder()
    if session is None:
        return "."
    place = os.path.dirname(session)
    return os.path.dirname(place) if os.path.basename(place) == "forgather_mem" else session
