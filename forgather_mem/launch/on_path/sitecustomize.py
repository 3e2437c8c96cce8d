"""First on the import path of a watched command: installs our hook and steps aside.

It runs in every Python that the command starts, of any version: so no new syntax, and no import of ours that could fail
loudly.
"""

import sys


def _step_aside():  # type: ignore[no-untyped-def]
    """Leave path and modules as they are without us, and run the sitecustomize that would have run."""
    import os

    before, here = set(sys.modules), os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    try:
        from forgather_mem.launch.import_hook import install
    except ImportError:  # a Python of another environment, without this library
        pass
    else:
        try:
            install()
        except Exception as error:  # noqa: BLE001  # nothing of ours is loaded that could be the fence
            sys.stderr.write("forgather-mem: this process is not watched: " + repr(error) + "\n")
            if "FORGATHER_MEM_PLAN" in os.environ:
                os._exit(1)  # it would train
    # The script's folder is not on the path yet: of what it has a file of that name for, that one is imported there
    for name in set(sys.modules).difference(before, sys.builtin_module_names):
        if name.partition(".")[0] != "forgather_mem":
            del sys.modules[name]
    del sys.modules[__name__]
    # The next on the path; if there is none, site expects this error
    import sitecustomize  # type: ignore[import-not-found]  # noqa: F401


_step_aside()  # type: ignore[no-untyped-call]
