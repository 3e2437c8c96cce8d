"""For every Python that a test starts: no collection sees the hundred thousands of objects that imports leave.

Collections take a fourth of the time in which torch and transformers are imported, and the interpreter's last ones as
much again. `tests/conftest.py` puts this folder on the path; what a test says about the collector begins after imports.
"""

import atexit
import functools
import gc
import sys
from importlib.machinery import PathFinder

_NONE = 2**31 - 1  # a threshold that no import reaches; a script's own gc.disable stays what it is


def _without_collections(execute, module):
    before = gc.get_threshold()
    gc.set_threshold(_NONE, *before[1:])
    try:
        execute(module)
    finally:
        if gc.get_threshold()[0] == _NONE:
            gc.set_threshold(*before)
        if not gc.get_freeze_count():  # what was imported is old now, as if collections had seen it
            gc.freeze()
            gc.unfreeze()


class _OutermostImport:
    """Finds what the path finder would have found; if that was installed, the import runs without collections."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if gc.get_threshold()[0] == _NONE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and hasattr(spec.loader, "get_code") and "site-packages" in (spec.origin or ""):
            spec.loader.exec_module = functools.partial(_without_collections, spec.loader.exec_module)
        return spec


sys.meta_path.insert(sys.meta_path.index(PathFinder), _OutermostImport)  # behind hooks that a test looks at
atexit.register(gc.freeze)  # the first to be registered runs last
