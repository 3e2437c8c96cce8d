"""Small tools that say how much memory is held, now and here, in a script without a trainer."""

from forgather_mem._lazy import names_on_first_use

__getattr__, __dir__, __all__ = names_on_first_use(__name__)
