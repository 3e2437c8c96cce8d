"""The demo: what it trains on, and its progress bar."""

from forgather_mem.demo.text import StdlibText

__all__ = ["StdlibText"]
