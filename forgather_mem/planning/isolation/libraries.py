"""Libraries that open files without asking Python: what a planned step does by them is told, and goes on where it can.

What they would change the kernel refuses, where it has Landlock.
"""

from __future__ import annotations

import gc
import mmap
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch

_CHANGES_OF_ROWS = (9, 18, 23)  # SQLite deletes, inserts, updates; what is made is inserted into a table, too


def ask_first(opened: Callable[..., Any], note: Callable[[], None], scratch: str) -> None:
    """Let them ask, for good: `torch.save`, files that are mapped to be written, SQLite.

    Args:
        opened: Opens a file as Python's `open`, in this process where nothing is changed.
        note: Called where something would be changed.
        scratch: The folder where everything is done.
    """
    of_torch = vars(torch._C)
    writer = of_torch["PyTorchFileWriter"]
    of_torch["PyTorchFileWriter"] = lambda file, *more, **keywords: writer(
        opened(file, "wb") if isinstance(file, str) else file, *more, **keywords
    )
    _map_to_be_read(note)
    with suppress(ImportError):  # Python may be built without it
        _share_no_memory(note)
    if (sqlite3 := sys.modules.get("sqlite3")) is not None:
        _look_into_rows(sqlite3, note, scratch)


def _map_to_be_read(note: Callable[[], None]) -> None:
    """What is written into the memory of a file stays there."""
    shared, of_file = mmap.mmap, torch.from_file

    class Mapped(shared):  # type: ignore[misc, valid-type]
        def __new__(cls, file: int, length: int, *more: Any, **how: Any) -> Any:
            try:
                return shared.__new__(cls, file, length, *more, **how)
            except PermissionError:  # the file is open for reading alone
                return shared.__new__(cls, file, length, access=mmap.ACCESS_COPY, offset=how.get("offset", 0))

    def from_file(file: str, is_shared: bool | None = None, *more: Any, **how: Any) -> object:
        if how.pop("shared", is_shared):
            note()
        return of_file(file, False, *more, **how)

    vars(mmap)["mmap"], vars(torch)["from_file"] = Mapped, from_file


def _share_no_memory(note: Callable[[], None]) -> None:
    """Memory with a name: what is made is this process's own, what is there is read."""
    import _posixshmem  # type: ignore[import-not-found]

    by_name = _posixshmem.shm_open

    def opened(path: str, flags: int, mode: int = 0o777) -> int:
        if not flags & os.O_CREAT:
            return int(by_name(path, os.O_RDONLY))
        note()
        return os.memfd_create("plan")

    vars(_posixshmem).update(shm_open=opened, shm_unlink=lambda path: None)


def _look_into_rows(sqlite3: Any, note: Callable[[], None], scratch: str) -> None:
    """SQLite tells of each statement, also of connections that there are, what it would change."""
    connect = sqlite3.connect

    def connected(*arguments: object, **keywords: object) -> Any:
        rows = connect(*arguments, **keywords)
        look_into(rows)
        return rows

    def look_into(rows: Any) -> None:
        with suppress(Exception):  # it is closed, or of another thread
            file = rows.execute("pragma database_list").fetchone()[2]
            if file and not file.startswith(scratch):
                rows.set_authorizer(told)

    def told(action: int, _: object, __: object, database: object, *___: object) -> int:
        if action in _CHANGES_OF_ROWS and database != "temp":
            note()
        return 0  # as it may; the kernel will refuse it

    sqlite3.connect = sqlite3.dbapi2.connect = connected
    for one in gc.get_objects():
        if issubclass(type(one), sqlite3.Connection):
            look_into(one)
