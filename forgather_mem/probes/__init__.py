"""Probes: works that read numbers and change nothing, except that they may open a measuring window."""

from forgather_mem._lazy import names_on_first_use

__getattr__, __dir__, __all__ = names_on_first_use(__name__)
