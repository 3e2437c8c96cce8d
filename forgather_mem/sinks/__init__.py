"""Sinks: destinations of samples. Each writes one step's record at a time and handles its own I/O errors.

A sink is loaded on first use: importing TensorBoard's messages costs 30 ms, and only `TensorBoardSink` needs them.
"""

from forgather_mem._lazy import names_on_first_use

__getattr__, __dir__, __all__ = names_on_first_use(__name__)
