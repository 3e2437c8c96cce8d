"""Finds the folder of a run's TensorBoard data, so that `train/loss` and `mem_*` are in one run."""

from __future__ import annotations

import os
import re
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forgather_mem.errors import missing
from forgather_mem.formats.event_file import is_our_file

# `output_dir/runs/<time>_<host>/<trial>` is the deepest folder that transformers writes to.
_MAX_DEPTH = 3


def find_event_folder(logging_dir: str | Path | None, output_dir: Path | None, began_s: float) -> str:
    """The folder or its address: the requested one, else the one this process's trainer writes to, else a new one.

    Args:
        logging_dir: The folder that the user requested.
        output_dir: The trainer's; searched for an event file of this host and process.
        began_s: Start time of this training, to distinguish its event file from an earlier one's.
    """
    asked = logging_dir or os.environ.get("TENSORBOARD_LOGGING_DIR")
    if asked:
        return os.path.expanduser(str(asked))
    found = _folder_of_this_process(output_dir, began_s) if output_dir is not None else None
    if found is not None:
        return str(found)
    name = f"{time.strftime('%b%d_%H-%M-%S')}_{socket.gethostname()}"  # named as in transformers
    return str((output_dir or Path()) / "runs" / name)


@dataclass(frozen=True, slots=True, order=True)
class _Found:
    made_s: int
    number: int
    folder: Path
    name: str
    ours: bool


def _folder_of_this_process(output_dir: Path, began_s: float) -> Path | None:
    files = list(_files_of_this_process(output_dir))
    others = [file for file in files if not file.ours and not _belongs_to_earlier_training(file, files, began_s)]
    if others:
        return max(others).folder
    open_paths = _open_paths()
    open_ones = [file for file in files if file.ours and os.path.realpath(file.folder / file.name) in open_paths]
    return max(open_ones).folder if open_ones else None


def _open_paths() -> set[str]:
    """The files that this process has open: one of our own among them belongs to the running training."""
    paths = set()
    with missing(OSError):  # no /proc: then two of our writers may have two folders
        for name in os.listdir("/proc/self/fd"):
            with missing(OSError):  # the descriptor used for listing
                paths.add(os.readlink(f"/proc/self/fd/{name}"))
    return paths


def _belongs_to_earlier_training(file: _Found, files: list[_Found], began_s: float) -> bool:
    """A trainer creates a file per training: an earlier one of ours beside it shows that it is old."""
    return any(mine.ours and mine.folder == file.folder and file.made_s <= mine.made_s < int(began_s) for mine in files)


def _files_of_this_process(output_dir: Path) -> Iterator[_Found]:
    pattern = re.compile(rf"tfevents\.(\d+)\.{re.escape(socket.gethostname())}\.{os.getpid()}\.(\d+)")
    todo = [(output_dir, 0)]
    while todo:
        folder, depth = todo.pop()
        with missing(OSError), os.scandir(folder) as entries:  # `os.walk` drops what a signal's handler raises
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    if match := pattern.search(entry.name):
                        yield _Found(int(match[1]), int(match[2]), folder, entry.name, is_our_file(entry.name))
                elif depth < _MAX_DEPTH and not entry.name.startswith("checkpoint-"):  # with many files, and no events
                    todo.append((folder / entry.name, depth + 1))
