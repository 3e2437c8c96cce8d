"""Sinks: destinations of samples. Each writes one step's record at a time and handles its own I/O errors.

A sink is loaded on first use: importing TensorBoard's messages costs 30 ms, and only `TensorBoardSink` needs them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

_MODULE_OF = {
    "BlackBoxSink": "black_box",
    "Capture": "capture",
    "ConsoleSink": "console",
    "JsonlSink": "jsonl",
    "TensorBoardSink": "tensorboard",
    "TrainerLogSink": "trainer_log",
}
__all__ = ["BlackBoxSink", "Capture", "ConsoleSink", "JsonlSink", "TensorBoardSink", "TrainerLogSink"]

if TYPE_CHECKING:
    from forgather_mem.sinks.black_box import BlackBoxSink as BlackBoxSink
    from forgather_mem.sinks.capture import Capture as Capture
    from forgather_mem.sinks.console import ConsoleSink as ConsoleSink
    from forgather_mem.sinks.jsonl import JsonlSink as JsonlSink
    from forgather_mem.sinks.tensorboard import TensorBoardSink as TensorBoardSink
    from forgather_mem.sinks.trainer_log import TrainerLogSink as TrainerLogSink


def __getattr__(name: str) -> Any:
    module = _MODULE_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
