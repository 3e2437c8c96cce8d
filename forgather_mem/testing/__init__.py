"""Checks for probes, actions and sinks of your own: each is driven through small trainings as the engine would do it.

>>> from forgather_mem.testing import check_sink, check_work
>>> from forgather_mem.sinks import Capture
>>> check_sink(Capture)
>>> check_work(lambda: lambda moment, sample: {"mine/queue_len": 3.0})
"""

from forgather_mem._lazy import names_on_first_use

__getattr__, __dir__, __all__ = names_on_first_use(__name__)
