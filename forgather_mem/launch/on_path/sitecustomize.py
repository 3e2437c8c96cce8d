"""Put before everything else on the path of a watched command: it sets our hook and steps aside.

It runs in each Python that the command starts, whichever that is: hence no new syntax, and no import of ours
that could fail loudly.
"""

import sys


def _step_aside():  # type: ignore[no-untyped-def]
    """Take this folder from the path, and run the sitecustomize that would have run without us."""
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    try:
        from forgather_mem.launch.import_hook import install
    except ImportError:  # another environment's Python, without this library
        pass
    else:
        install()
    for finder in sys.meta_path:
        spec = finder.find_spec("sitecustomize", None) if hasattr(finder, "find_spec") else None
        if spec is not None and spec.loader is not None:
            import importlib.util

            module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            return
    # As site expects it where there is none
    raise ImportError("No module named 'sitecustomize'", name="sitecustomize")


_step_aside()  # type: ignore[no-untyped-call]
