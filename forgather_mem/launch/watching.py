"""The callback that is added to every Trainer of a watched command."""

from __future__ import annotations

import os
from typing import Any

from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.callbacks.memory_callback import MemoryCallback
from forgather_mem.callbacks.trainer.link import Link
from forgather_mem.load import WATCH, attach
from forgather_mem.sinks import BlackBoxSink, JsonlSink
from forgather_mem.telemetry import run_session
from forgather_mem.telemetry.guard import FailureGuard


class Watching(RuleCallback):
    """Attaches the template of `forgather-mem run` to the trainer that has just created this.

    It adds a log and a black box: the report is made from them, whatever the template writes. A trainer that the script
    itself already watches is left alone.
    """

    def __init__(self) -> None:
        if FailureGuard().call("run", self._with_sinks) is None:
            super().__init__([], enabled=False)

    def _with_sinks(self) -> bool:
        super().__init__([], [JsonlSink(), BlackBoxSink()])
        return True

    def on_init_end(self, args: Any, state: Any, control: Any, **objects: object) -> None:
        super().on_init_end(args, state, control, **objects)
        if self._on():
            FailureGuard(self.strict).call("run", self._attach)

    def _attach(self) -> None:
        link = Link.find(self)
        trainer = link.trainer() if link is not None else None
        if link is None or trainer is None:
            return
        template = os.environ.get(run_session.TEMPLATE, WATCH)
        settings = os.environ.get(run_session.SETTINGS, "")
        if template == WATCH and not settings and any(type(known) is MemoryCallback for known in link.callbacks()):
            return
        options: dict[str, object] = {}
        if settings:
            from forgather_mem.cli.options import variables_of

            options.update(variables_of(settings.split("\n")))
        if os.environ.get(run_session.ALLOW):
            options["allow"] = os.environ[run_session.ALLOW].split("\n")
        attach(trainer, template, **options)
