"""For every Python that a test starts: no collection sees the hundred thousands of objects that imports leave.

Collections take a fourth of the time in which torch and transformers are imported, and the interpreter's last ones as
much again; a fifth goes into the 1,600 files that transformers reads, twice, to learn which names are where, and which
are read once here. `tests/conftest.py` puts this folder on the path; what a test says about the collector begins after
imports.
"""

import atexit
import functools
import gc
import marshal
import os
import sys
from importlib.machinery import PathFinder

_KEPT = os.path.join(os.path.dirname(__file__), "__pycache__")  # as this file's compiled form: nobody else's
_READS = "transformers.utils.import_utils"
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


def _with_names_kept(execute, module):
    """The names of transformers.models come from a file of ours, but for the first process."""
    execute(module)
    read = getattr(module, "define_import_structure", None)
    if read is not None:
        module.define_import_structure = functools.partial(_kept_or_read, read)


def _kept_or_read(read, module_path, **prefix):  # which transformers 4.46 does not know
    models = str(module_path).removesuffix("/__init__.py")
    if os.path.basename(models) != "models":
        return read(module_path, **prefix)
    installed_ns = os.stat(os.path.join(models, "__init__.py")).st_mtime_ns
    kept = os.path.join(_KEPT, f"names.{models.replace('/', '.')}.{prefix.get('prefix')}.{installed_ns}")
    try:
        with open(kept, "rb") as file:
            return marshal.load(file)
    except (OSError, EOFError, ValueError):
        names = read(module_path, **prefix)
    if "FORGATHER_MEM_PLAN" in os.environ:  # a plan tells of each file that a script writes
        return names
    try:
        os.makedirs(_KEPT, exist_ok=True)
        with open(f"{kept}.{os.getpid()}", "wb") as file:
            marshal.dump(names, file)
        os.replace(f"{kept}.{os.getpid()}", kept)
    except (OSError, ValueError):  # of another user, too long a name, or not what marshal takes: each process reads
        pass
    return names


class _OutermostImport:
    """Finds what the path finder would have found; if that was installed, the import runs without collections."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == _READS:
            spec = PathFinder.find_spec(name, path, target)
            if spec is not None:
                spec.loader.exec_module = functools.partial(_with_names_kept, spec.loader.exec_module)
            return spec
        if gc.get_threshold()[0] == _NONE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and hasattr(spec.loader, "get_code") and "site-packages" in (spec.origin or ""):
            spec.loader.exec_module = functools.partial(_without_collections, spec.loader.exec_module)
        return spec


sys.meta_path.insert(sys.meta_path.index(PathFinder), _OutermostImport)  # behind hooks that a test looks at
atexit.register(gc.freeze)  # the first to be registered runs last
