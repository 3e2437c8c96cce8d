"""How do the processes of one `forgather-mem run` find each other? Through a folder named in the environment.

The waiting parent makes the folder, and takes it away again when a training has one of its own. Only `os` is
imported: this is read in every Python process that a watched command starts.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "FORGATHER_MEM_SESSION"
TEMPLATE, SETTINGS, ALLOW = "FORGATHER_MEM_TEMPLATE", "FORGATHER_MEM_SET", "FORGATHER_MEM_RUN_ALLOW"
SWITCH = "FORGATHER_MEM"
TRAININGS, WAITING_RING = "trainings", "ring.rank0"
LAST_ERROR = "oom.rank{rank}.json"


def is_off(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `FORGATHER_MEM=0` switches everything off."""
    return environment.get(SWITCH, "") == "0"


def register(training: os.PathLike[str] | str, rank: int) -> None:
    """Tell the waiting parent, if there is one, of a training whose files go to this folder.

    From now on the training has its own black box; the parent's, which knows less, goes.
    """
    folder = os.environ.get(FOLDER)
    if not folder:
        return
    line = f"{rank}\t{os.path.abspath(training)}\n"
    try:
        file = os.open(os.path.join(folder, TRAININGS), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            os.write(file, os.fsencode(line))
        finally:
            os.close(file)
        os.unlink(os.path.join(folder, WAITING_RING))
    except OSError:
        return  # another rank was first, or the parent has gone


def registered(folder: str) -> list[str]:
    """The folders of the trainings in the order in which they began, each once."""
    try:
        with open(os.path.join(folder, TRAININGS), "rb") as file:
            lines = os.fsdecode(file.read()).splitlines()
    except OSError:
        return []
    return list(dict.fromkeys(line.partition("\t")[2] for line in lines if "\t" in line))
