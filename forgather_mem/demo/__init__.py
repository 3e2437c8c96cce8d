"""The demo: its script, and what it trains on."""

from forgather_mem.demo.text import StdlibText

__all__ = ["StdlibText"]
