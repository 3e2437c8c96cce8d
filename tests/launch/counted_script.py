"""Runs a script and prints what its tensors took at most: the truth for a plan of it."""

import contextlib
import runpy
import sys

from tests.planning.counted import Counted

if __name__ == "__main__":
    sys.argv = sys.argv[1:]
    with contextlib.redirect_stdout(sys.stderr), Counted() as counted:
        runpy.run_path(sys.argv[0], run_name="__main__")
    print(counted.peak_bytes)
