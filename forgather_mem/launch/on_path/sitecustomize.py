"""First on the import path of a watched command: installs our hook and steps aside.

It runs in every Python that the command starts, of any version: so no new syntax, and no import of ours that could fail
loudly.
"""

import sys


def _step_aside():  # type: ignore[no-untyped-def]
    """Remove this folder from the path, and run the sitecustomize that would have run without us."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
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
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", None) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None:
            import importlib.util

            module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return
    # What site expects if there is none
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize")


_step_aside()  # type: ignore[no-untyped-call]
