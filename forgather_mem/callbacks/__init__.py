"""The trainer callbacks.

Each is loaded on first use: a training that is only watched does not wait for the others.
"""

from forgather_mem._lazy import names_on_first_use

__getattr__, __dir__, __all__ = names_on_first_use(__name__)
