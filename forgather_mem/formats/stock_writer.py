"""Passes our events to another writer: the user's `SummaryWriter`, or TensorBoard's own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Any

from forgather_mem.errors import ours
from forgather_mem.formats.append import Losses
from forgather_mem.system.installed import installed

# Exceptions from opening a folder: of the disk, an unknown protocol, a missing package for the protocol.
_CANT_OPEN = (OSError, ValueError, ImportError)


class StockWriter:
    """Writes through a third-party writer; its failures are counted, not raised.

    A given writer is neither flushed nor closed. One that we open has a thread, may lose two minutes if the process is
    killed, and is reopened after a failure. After a fork the child writes nothing: the writer's thread is missing
    there, and it would wait for it.

    Args:
        make: Returns the writer; called at the first event. The writer has `add_event(event)`, or is a
            `torch.utils.tensorboard.SummaryWriter`, or has that class's `add_scalar` and `add_text`.
        begun: Called for each new writer: its file has no tag descriptions yet.
        owned: Whether we close it.
    """

    def __init__(self, make: Callable[[], object], begun: Callable[[], None], *, owned: bool) -> None:
        self._make = make
        self._begun = begun
        self._owned = owned
        self._writer: Any = None
        self._pid = os.getpid()
        self._losses = Losses()

    def ready(self) -> bool:
        """Whether an event is worth building now; if not, counts it as dropped."""
        if os.getpid() != self._pid:
            return False
        if self._writer is not None or (time.monotonic() >= self._losses.retry_at and self._open()):
            return True
        self._losses.dropped += 1
        return False

    def add(self, payload: bytes) -> bool:
        """Pass one event on, after `ready()`; returns whether the writer took it."""
        try:
            _hand_over(self._writer, payload)
        except ours(OSError) as error:
            self._failed(error, 1)
            if self._owned:  # the writer keeps its thread's failure and raises it at every call
                self.close()
            return False
        self._losses.took()
        return True

    def close(self) -> None:
        """Close the writer if it is ours."""
        writer, self._writer = self._writer, None
        if writer is None or not self._owned or os.getpid() != self._pid:
            return
        try:
            writer.close()
        except ours(OSError) as error:
            self._failed(error, 0)

    def problem(self) -> str | None:
        """A sentence for the report, or None if all went well."""
        return self._losses.problem("; TensorBoard's writer")

    def _open(self) -> bool:
        try:
            self._writer = self._make()
        except _CANT_OPEN as error:
            self._failed(error, 0)
            return False
        self._begun()
        return True

    def _failed(self, error: Exception, num_lost: int) -> None:
        self._losses.note(error, "with the TensorBoard writer", num_lost)
        self._losses.pause()


def tensorboard_writer(folder: str) -> object:
    """TensorBoard's own event file writer; folders may be addresses such as `s3://bucket/run`."""
    installed("tensorboard")
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    return EventFileWriter(folder, filename_suffix=".forgather_mem")


def _hand_over(writer: Any, payload: bytes) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event.FromString(payload)
    if hasattr(writer, "add_event"):
        writer.add_event(event)
    elif _is_torchs(writer) and writer.file_writer is not None:
        writer.file_writer.add_event(event, step=event.step, walltime=event.wall_time)
    else:
        for value in event.summary.value:
            if value.HasField("simple_value"):
                writer.add_scalar(value.tag, value.simple_value, event.step, event.wall_time)
            elif value.metadata.plugin_data.plugin_name == "text":
                writer.add_text(value.tag, value.tensor.string_val[0].decode(), event.step, event.wall_time)


def _is_torchs(writer: object) -> bool:
    """tensorboardX has the same attributes, but messages of another class."""
    return any(cls.__module__.startswith("torch.utils.tensorboard") for cls in type(writer).__mro__)
