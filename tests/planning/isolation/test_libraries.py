"""What libraries would change without asking Python is told, and goes on where it can."""

import mmap
import sqlite3
from contextlib import suppress
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Literal

import numpy
import pytest
import torch

from tests.planning.isolation.test_acts import HAS_LANDLOCK, Act, folder, insert, result_in_a_child
from tests.trees import tree

__all__ = ["folder"]


def mapped(folder: Path) -> str:
    with (folder / "old").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        memory[:2] = b"OF"
        return str(memory[:5])


def mapped_by_numpy(folder: Path, mode: Literal["r+", "w+"] = "r+") -> str:
    rows = numpy.memmap(folder / "old", dtype="u1", mode=mode, shape=(3,))
    rows[:2] = 65
    rows.flush()
    return str(bytes(rows))


def mapped_by_torch(folder: Path) -> list[int]:
    rows = torch.from_file(f"{folder / 'old'}", shared=True, size=3, dtype=torch.uint8)
    rows[0] = 1
    return rows.tolist()


MAPPED: list[tuple[Act, str]] = [
    (mapped, "b'OF la'"),
    (mapped_by_numpy, "b'AA '"),
    (lambda folder: mapped_by_numpy(folder, "w+"), "b'AA\\x00'"),
    (mapped_by_torch, "[1, 102, 32]"),
]


@pytest.mark.parametrize(("act", "result"), MAPPED)
def test_what_is_written_into_a_mapped_file_stays_in_memory(folder: Path, act: Act, result: str) -> None:
    before = tree(folder)
    came_to, (line,) = result_in_a_child(act, folder)
    assert came_to == result
    assert line.startswith("test_libraries.py:")
    assert tree(folder) == before


@pytest.mark.skipif(not HAS_LANDLOCK, reason="this kernel has no Landlock")
def test_what_would_be_written_into_tables_is_named_also_where_the_connection_was_there(folder: Path) -> None:
    rows, of_memory = sqlite3.connect(folder / "rows.db"), sqlite3.connect(":memory:")

    def acts(_: Path) -> str:
        of_memory.execute("create table rows (number)")
        of_memory.execute("insert into rows values (1)")
        insert(folder)
        return "went on"

    def caught(_: Path) -> str:
        with suppress(sqlite3.OperationalError):
            rows.execute("delete from rows")
        with suppress(sqlite3.OperationalError):
            insert(folder)
        return str(rows.execute("select number from rows").fetchone())

    before = tree(folder)
    came_to, (line,) = result_in_a_child(acts, folder)
    assert (came_to, "insert into rows values (8)" in line) == ("OperationalError", True)
    came_to, lines = result_in_a_child(caught, folder)
    assert came_to == "(7,)"
    assert ["delete from rows" in line for line in lines] == [True, False]
    assert tree(folder) == before
    rows.close()
    of_memory.close()


def test_memory_with_a_name_is_read_and_neither_written_nor_made_nor_removed(tmp_path: Path) -> None:
    there = SharedMemory(create=True, size=16)

    def acts(_: Path) -> str:
        attached, made = SharedMemory(there.name), SharedMemory(f"{there.name}_new", create=True, size=16)
        attached.buf[1] = made.buf[0] = 1
        attached.unlink()
        return str(bytes(attached.buf[:2]))

    try:
        there.buf[0] = 7
        came_to, (line,) = result_in_a_child(acts, tmp_path)
        assert came_to == "b'\\x07\\x01'"
        assert "create=True" in line
        again = SharedMemory(there.name)
        assert bytes(again.buf[:2]) == b"\x07\x00"
        again.close()
        with pytest.raises(FileNotFoundError):
            SharedMemory(f"{there.name}_new")
    finally:
        there.unlink()
