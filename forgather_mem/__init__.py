"""Where the memory of a training went, when, and how to get it back.

Importing this package loads neither torch nor transformers nor yaml: every public name is loaded on first use.
PYTEST_DONT_REWRITE: of a watched pytest it is imported before pytest meets the packages that have a plugin.
"""

from forgather_mem._lazy import names_on_first_use

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = names_on_first_use(__name__)
__all__ += ["__version__"]


def load_ipython_extension(shell):  # `%load_ext forgather_mem` is what is tried first
    from forgather_mem.notebook import load_ipython_extension as load

    load(shell)


def unload_ipython_extension(shell):
    from forgather_mem.notebook import unload_ipython_extension as unload

    unload(shell)
