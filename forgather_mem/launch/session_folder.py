"""The folder of one `forgather-mem run`: made by this run alone, and cleared of nothing but what the run wrote.

The parent imports this while it waits: only `os` and what is as small.
"""

from __future__ import annotations

import os
import re  # json has imported it anyway
import time

from forgather_mem.errors import missing
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

PLACE = "FORGATHER_MEM_DIR"
_DEFAULT = "forgather_mem"
_LONGEST_NAME = 100
_WRITTEN = r"\.?(report|oom)(\.rank\d+)?\.json(\.\d+)?|ring\.rank\d+"
_KEPT = r"\.\d+"  # see `run_session.kept_of`


class SessionFolder:
    """A new folder, in the first of these places that takes one.

    `FORGATHER_MEM_DIR`, or `./forgather_mem` where that is no link; then the folder of temporary files, where its
    name can't be guessed and nobody else may look into it.

    Args:
        name: What is run; the folder is called after the time and this.

    Attributes:
        path: Absolute; None when no place takes a folder.
        problem: Why the first place took none; None when it did.
    """

    __slots__ = ("_identity", "_parents", "path", "problem")

    def __init__(self, name: str) -> None:
        self.path: str | None = None
        self.problem: str | None = None
        self._identity = (0, 0)
        self._parents: list[str] = []  # those that were made here, outermost first
        name = f"{time.strftime('%Y%m%d-%H%M%S')}-{name[:_LONGEST_NAME]}"
        chosen = os.environ.get(PLACE)
        try:
            if not chosen and os.path.islink(_DEFAULT):
                raise OSError(0, "it is a link")
            self._make_below(os.path.realpath(chosen or _DEFAULT), name)
        except OSError as error:
            self.problem = f"{chosen or _DEFAULT}: {error.strerror}"
            name = f"{_DEFAULT}-{name}-{os.urandom(8).hex()}"
            with missing(OSError):  # then there is none
                self._make(os.path.join(os.path.realpath(os.environ.get("TMPDIR") or "/tmp"), name), 0o700)

    def close(self) -> None:
        """The run is over: whoever still knows this folder by its environment writes nothing into it any more."""
        self._unlink(lambda name: name == run_session.NOTES)

    def remove(self) -> None:
        """Take away what the run wrote, then the folders that it made, as far as nothing else lies in them."""
        self._unlink(_is_ours)
        if self.path is not None and self._is_the_same():
            _remove_empty([*self._parents, self.path, *_kept(self.path)])

    def _make_below(self, parent: str, name: str) -> None:
        try:
            self._make_parents(parent)
            for number in range(1, 1000):
                with missing(FileExistsError):
                    self._make(os.path.join(parent, name if number == 1 else f"{name}_{number}"), 0o777)
                    return
            raise OSError(0, "no name is free")
        except OSError:
            _remove_empty(self._parents)
            self._parents = []
            raise

    def _make_parents(self, path: str) -> None:
        wanted = []
        while not os.path.isdir(path):
            wanted.append(path)
            path = os.path.dirname(path)
        for path in reversed(wanted):
            with missing(FileExistsError):  # another run has made it meanwhile
                os.mkdir(path)
                self._parents.append(path)

    def _make(self, path: str, mode: int) -> None:
        os.mkdir(path, mode)  # fails where anything has this name already
        try:
            run_session.make_notes(path)
            found = os.lstat(path)
        except OSError:
            os.rmdir(path)
            raise
        self.path, self._identity = path, (found.st_dev, found.st_ino)

    def _is_the_same(self) -> bool:
        """Whether that path still means what was made here: the command may have put something else there."""
        with missing(OSError):
            found = os.lstat(self.path or "")
            return (found.st_dev, found.st_ino) == self._identity
        return False

    def _unlink(self, wanted: Callable[[str], bool]) -> None:
        if self.path is None or not self._is_the_same():
            return
        with missing(OSError):  # what can't be removed stays as it is
            for folder in (self.path, *_kept(self.path)):
                for name in filter(wanted, os.listdir(folder)):
                    os.unlink(os.path.join(folder, name))


def _kept(path: str) -> list[str]:
    """The folders of what is kept of trainings."""
    with missing(OSError):
        return [os.path.join(path, name) for name in os.listdir(path) if re.fullmatch(_KEPT, name)]
    return []


def _is_ours(name: str) -> bool:
    """Whether a file of this name, in a folder that a run has made, is the run's own or a draft of such.

    >>> [_is_ours(name) for name in ("report.json", ".report.rank0.json.17", "oom.rank0.json.17", "ring.rank0")]
    [True, True, True, True]
    >>> [_is_ours(name) for name in ("report.txt", "my.report.json", "ring.rank", "trainings.csv", "")]
    [False, False, False, False, False]
    """
    return name == run_session.NOTES or bool(re.fullmatch(_WRITTEN, name))


def _remove_empty(folders: list[str]) -> None:
    with missing(OSError):  # something else lies there
        for folder in reversed(folders):
            os.rmdir(folder)
