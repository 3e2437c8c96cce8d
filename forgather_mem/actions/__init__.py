"""Actions: works that free memory. Each does one thing and reports its yield and cost."""

from forgather_mem._lazy import names_on_first_use

__getattr__, __dir__, __all__ = names_on_first_use(__name__)
