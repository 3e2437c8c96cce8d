"""What is put into each Trainer of a watched command?"""

from __future__ import annotations

import os
from typing import Any

from forgather_mem import session
from forgather_mem.callbacks.link import Link
from forgather_mem.callbacks.memory_callback import MemoryCallback
from forgather_mem.callbacks.rule_callback import RuleCallback
from forgather_mem.fence import Fence
from forgather_mem.load import WATCH, attach
from forgather_mem.sinks import BlackBoxSink, JsonlSink


class Watching(RuleCallback):
    """Attaches the template of `forgather-mem run` to the trainer that has just made this.

    It brings a log and a black box with it: the report is made from them, whatever the template writes. A
    trainer that is watched already, by the script itself, gets nothing more.
    """

    def __init__(self) -> None:
        super().__init__([], [JsonlSink(), BlackBoxSink()])

    def on_init_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        super().on_init_end(args, state, control, **objects)
        if self._on():
            Fence(self.strict).call("run", self._attach)

    def _attach(self) -> None:
        link = Link.find(self)
        trainer = link.trainer() if link is not None else None
        if link is None or trainer is None:
            return
        template = os.environ.get(session.TEMPLATE, WATCH)
        settings = os.environ.get(session.SETTINGS, "")
        if template == WATCH and not settings and any(type(known) is MemoryCallback for known in link.callbacks()):
            return
        options: dict[str, Any] = {}
        if settings:
            from forgather_mem.cli.options import variables_of

            options.update(variables_of(settings.split("\n")))
        if os.environ.get(session.ALLOW):
            options["allow"] = os.environ[session.ALLOW].split("\n")
        attach(trainer, template, **options)
