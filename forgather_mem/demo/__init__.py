"""The demo: what it trains on, its progress bar and its table."""

from forgather_mem.demo.text import StdlibText

__all__ = ["StdlibText"]
