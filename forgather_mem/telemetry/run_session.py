"""The session of one `forgather-mem run`: its processes share a folder named in the environment.

The waiting parent makes the folder, and takes it away again when a training has one of its own. Next to nothing
is imported: this is read in every Python process that a watched command starts.
"""

from __future__ import annotations

import os
import sys

from forgather_mem.errors import missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

FOLDER = "FORGATHER_MEM_SESSION"
TEMPLATE, SETTINGS, ALLOW = "FORGATHER_MEM_TEMPLATE", "FORGATHER_MEM_SET", "FORGATHER_MEM_RUN_ALLOW"
SWITCH = "FORGATHER_MEM"
PLAN = "FORGATHER_MEM_PLAN"  # the folder of a `forgather-mem plan`: what is asked, and then the answer
REQUEST, ANSWER, DOING = "request.json", "answer.json", "doing.txt"  # in it
PLAN_FIRST = "FORGATHER_MEM_PLAN_FIRST"  # set: plan each Trainer before it trains
BASELINE = "baseline"  # its value where no plan was asked for
# The options of `run` that its trainings need, and their variables; those of several words have a line for each
OPTIONS = {"template": TEMPLATE, "settings": SETTINGS, "allow": ALLOW, "plan": PLAN_FIRST}
NOTES, WAITING_RING = "trainings", "ring.rank0"
# Kinds of notes; of the first step the phases that have begun in it, and evaluations outside any training
TRAINING, NOT_TOLD, TORCH, PRINTED, BY_TIME, FIRST = "training", "not told", "torch", "printed", "by time", "first"
LAST_ERROR = "oom.rank{rank}.json"
# Held to tell of a failure in a training, where no limit is near: loading what explains one and looking at 360,000
# objects took 2.8 to 3.9 MiB in a plain loop and in a Trainer
RESERVE_BYTES = 4 << 20
# Just above glibc's 128 KiB: each is a mapping that goes back when it is freed. By freeing a larger one glibc learns to
# take blocks of that size from its heap, and to keep twice as much above it.
PIECE_BYTES = 132 << 10
# What this process holds of them outside trainings: zeros that nobody has touched, so addresses without memory. A
# training gives them back when it begins, since it has its own.
RESERVE: list[bytes] = []


def is_off(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether `FORGATHER_MEM=0` switches everything off; `off`, `false` and `no` do so too, in any case."""
    return environment.get(SWITCH, "").strip().lower() in ("0", "off", "false", "no")


def why_off() -> str:
    """The end of a sentence that says why nothing is watched; only where it `is_off`."""
    return f"it is switched off by {SWITCH}={os.environ[SWITCH]} in the environment"


def rank_and_size() -> tuple[int, int]:
    """This process's rank and the number of ranks, as torch or a launcher says; (0, 1) where none does, or no number.

    torch knows those that no launcher has started, as the ranks of `mp.spawn`.
    """
    if getattr(sys.modules.get("torch.distributed"), "is_initialized", bool)():  # missing where torch has no ranks
        distributed = sys.modules["torch.distributed"]
        return distributed.get_rank(), distributed.get_world_size()
    rank, size = (os.environ.get(name, "") for name in ("RANK", "WORLD_SIZE"))
    return int(rank) if rank.isdecimal() else 0, max(1, int(size)) if size.isdecimal() else 1


def folder(environment: Mapping[str, str] = os.environ) -> str | None:
    """The folder of the run that this process belongs to; None without a run, without a folder, or when it is over.

    A run puts a file into its folder and takes it away at its end: a folder without one, which an environment may
    have kept the name of, is not ours to write to.
    """
    path = environment.get(FOLDER)
    return path if path and os.path.isfile(os.path.join(path, NOTES)) else None


def make_notes(path: str) -> None:
    """In the parent: make the file that is the sign of a run, in a folder that was just made.

    Raises:
        OSError: when it can't be made.
    """
    os.close(os.open(os.path.join(path, NOTES), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def note(kind: str, text: str = "") -> bool:
    """Tell the waiting parent something; whether there is one."""
    path = folder()
    if path is None:
        return False
    from forgather_mem.files import open_real

    with missing(OSError):
        file = open_real(os.path.join(path, NOTES), os.O_WRONLY | os.O_APPEND)
        try:
            os.write(file, os.fsencode(f"{kind}\t{text}\n"))
        finally:
            os.close(file)
        return True
    return False


def noted(path: str, kind: str) -> list[str]:
    """What was told of this kind, in order, each text once."""
    from forgather_mem.files import read_regular

    with missing(OSError):
        told = os.fsdecode(read_regular(os.path.join(path, NOTES), (2**20))).split("\n")
        return list(dict.fromkeys(line.partition("\t")[2] for line in told if line.partition("\t")[0] == kind))
    return []


def last_errors(path: str) -> list[str]:
    """The files in which processes have told of memory that ran out."""
    head, _, tail = LAST_ERROR.partition("{rank}")
    with missing(OSError):
        return [os.path.join(path, name) for name in os.listdir(path) if name.startswith(head) and name.endswith(tail)]
    return []


def kept_of(path: str, training: str) -> str:
    """Below the run's folder `path`, where black boxes and reports of a training are, too: its own may be cleared away.

    >>> kept_of("session", "/tmp/out/forgather_mem/20261122-101500")
    'session/.3290652036'
    """
    import zlib

    return os.path.join(path, f".{zlib.crc32(os.fsencode(os.path.abspath(training)))}")


def register(training: os.PathLike[str] | str, ring: str) -> None:
    """Register a training and its folder with the waiting parent, if there is one.

    From now on the training has its own black box, the file `ring` in its folder; the parent's, which knows less, is
    removed.
    """
    if note(TRAINING, os.path.abspath(training)):
        from forgather_mem.files import make_real_folder, remove_real

        session = os.environ[FOLDER]
        with missing(OSError):  # another rank was first
            remove_real(os.path.join(session, WAITING_RING))
        with missing(OSError):  # on another disk there is no second name for a file
            kept = kept_of(session, os.fspath(training))
            make_real_folder(kept)
            os.link(os.path.join(training, ring), os.path.join(kept, ring))


def registered(path: str) -> list[str]:
    """The folders of the trainings, each once, in the order in which they began."""
    not_told = noted(path, NOT_TOLD)
    return [folder for folder in noted(path, TRAINING) if folder not in not_told]
