"""The entry point of `forgather-mem` and `python -m forgather_mem`."""

from __future__ import annotations

import sys


def main() -> int:
    """Run the command that the arguments name, and return its exit code.

    Nothing is imported before the arguments are read: a command that starts other processes does so while this one is
    still small.
    """
    words = sys.argv[1:]
    if words[:1] == ["run"]:
        from forgather_mem.launch.parent import run_command

        code = run_command(words[1:])
        from forgather_mem.errors import ours

        try:
            sys.stderr.flush()
        except ours(AttributeError, OSError, ValueError):  # a full disk: Python would end with 120
            sys.stderr = None
        return code
    from forgather_mem.cli.app import dispatch

    return dispatch(words)


if __name__ == "__main__":
    sys.exit(main())
