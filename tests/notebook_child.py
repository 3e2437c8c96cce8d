"""A real IPython shell in a process of its own: `python notebook_child.py CELLS`.

CELLS is a JSON list of cells. Prints a JSON list of what each cell printed to stdout and stderr. (A shell
replaces `__main__` and the display hook of its process, which a test run would feel.)
"""

import contextlib
import io
import json
import sys

from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config


def run(cells: list[str]) -> list[str]:
    config = Config()
    config.HistoryManager.enabled = False
    config.InteractiveShell.colors = "nocolor"
    shell = InteractiveShell.instance(config=config)  # as get_ipython() gives it
    printed = []
    for cell in cells:
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            shell.run_cell(cell, store_history=True)
        printed.append(out.getvalue())
    return printed


if __name__ == "__main__":
    print(json.dumps(run(json.loads(sys.argv[1]))))
