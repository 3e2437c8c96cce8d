"""The growing JSON array: valid whatever happens to the process, the disk or the file, read back with json."""

import contextlib
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from datetime import date, datetime
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from forgather_mem.formats.json_array import JsonArrayFile, element
from forgather_mem.testing.small_run import in_child
from tests.sinks.faults import small_disk

WRITER = """
import sys
from pathlib import Path
from forgather_mem.formats.json_array import JsonArrayFile
file = JsonArrayFile(Path(sys.argv[1]))
assert "torch" not in sys.modules
number = 0
while True:
    file.append({"number": number, "text": "x" * (number * 37 % 600)})
    number += 1
    if number == 20:
        print("begun", flush=True)
"""


def read(path: Path) -> Any:
    return json.loads(path.read_bytes())


def test_the_file_is_a_valid_array_after_every_element(tmp_path: Path) -> None:
    file = JsonArrayFile(tmp_path / "new" / "log.json")
    for number in range(50):
        assert file.append({"number": number, "text": "x" * number * 100})
        assert [record["number"] for record in read(file.path)] == list(range(number + 1))
    assert file.problem() is None
    assert os.listdir(tmp_path / "new") == ["log.json"]


@pytest.mark.parametrize("most_chars", [600, 90_000])
@pytest.mark.parametrize("seed", range(4))
def test_kill_9_leaves_an_array_without_a_gap_and_what_it_tore_is_cut_off_when_the_array_goes_on(
    tmp_path: Path, seed: int, most_chars: int
) -> None:
    path = killed_writer(tmp_path, seed, WRITER.replace("% 600", f"% {most_chars}"))
    whole_lines = path.read_text().count("},\n")
    assert JsonArrayFile(path).append({"number": "the next"})
    *numbers, last = [record["number"] for record in read(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= max(20, whole_lines)
    assert last == "the next"


def killed_writer(folder: Path, seed: int, program: str) -> Path:
    """The file of a process that wrote without a pause until it was killed."""
    path = folder / "log.json"
    with subprocess.Popen([sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE) as writer:
        writer.stdout.readline()
        time.sleep(random.Random(seed).uniform(0.0, 0.05))
        writer.send_signal(signal.SIGKILL)
        writer.wait()
    return path


@pytest.mark.parametrize("size", [10, 5_000, 90_000])
def test_an_element_of_which_the_disk_takes_a_part_leaves_the_array_as_it_was(tmp_path: Path, size: int) -> None:
    """Byte for byte, whatever part that is."""
    with small_disk(tmp_path / "disk") as disk:
        file = JsonArrayFile(disk / "log.json")
        assert file.append({"number": 0})
        before = file.path.read_bytes()
        (disk / "ballast").touch()
        with contextlib.suppress(OSError), (disk / "ballast").open("ab", buffering=0) as ballast:
            while True:
                ballast.write(b"x" * 4096)
        taken = 0
        for _ in range(500):
            file._losses.retry_at = 0.0  # no pause
            taken += file.append({"text": "y" * size})
        assert taken < 500
        assert [record.get("number") for record in read(file.path)] == [0, *[None] * taken]
        assert file.path.read_bytes() == before or size == 10, "these fit into no block that it has"


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (b"", []), (b"\0\0\0", []), (b"[\n]\n", []), (b"[]", []), (b'[\n{"a":1}\n]\n     ', [{"a": 1}]),
        (b'[\n{"a":1},\n{"b":"]"}', [{"a": 1}, {"b": "]"}]), (b'[\n{"a":1},\n{"b":[1]', [{"a": 1}]),
        (b'[\n{"a":1},\n{"b":2}\0\0\0', [{"a": 1}, {"b": 2}]), (b'[\n{"a":1},\n{"b":\0\0\0]', [{"a": 1}]),
        (b'[{"a":1},]', [{"a": 1}]), (b'[\n  {\n    "a": 1\n  },\n  {\n    "b": 2\n', [{"a": 1}]),
        ('[{"a":"\u00e9\u4e2d"}]'.encode(), [{"a": "\u00e9\u4e2d"}]),
        (b'[\n{"a":1},\n{"b":2}\n]\n' + b" " * 5000, [{"a": 1}, {"b": 2}]),
    ],
)  # fmt: skip
def test_a_file_is_continued_and_what_was_torn_is_cut_off(tmp_path: Path, left: bytes, kept: list[Any]) -> None:
    path = tmp_path / "log.json"
    path.write_bytes(left)
    file = JsonArrayFile(path)
    assert file.append({"new": 1})
    assert file.append({"new": 2})
    assert read(path) == [*kept, {"new": 1}, {"new": 2}]


@given(st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20)), min_size=1, max_size=4), st.data())
def test_a_file_cut_anywhere_keeps_its_whole_elements(
    tmp_path_factory: pytest.TempPathFactory, records: list[dict[str, str]], data: st.DataObject
) -> None:
    path = tmp_path_factory.mktemp("cut") / "log.json"
    file = JsonArrayFile(path)
    ends = []
    for record in records:
        file.append(record)
        ends.append(path.stat().st_size - len("\n]\n"))
    cut = data.draw(st.integers(1, path.stat().st_size))
    os.truncate(path, cut)
    assert JsonArrayFile(path).append({"new": "1"})
    assert read(path) == [*records[: sum(end <= cut for end in ends)], {"new": "1"}]


def test_what_is_nested_beyond_reading_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text("[" * 200_000)
    assert not JsonArrayFile(path).append({"new": 1})
    assert path.read_text() == "[" * 200_000


def test_what_is_no_array_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "log.json"
    path.write_text('{"mine": 1}')
    file = JsonArrayFile(path)
    assert not file.append({"new": 1})
    assert path.read_text() == '{"mine": 1}'
    assert "holds no JSON array" in str(file.problem())


def test_two_writers_of_one_file_take_turns(tmp_path: Path) -> None:
    one, two = JsonArrayFile(tmp_path / "log.json"), JsonArrayFile(tmp_path / "log.json")
    for number in range(6):
        assert (one if number % 2 else two).append({"number": number})
    assert [record["number"] for record in read(one.path)] == list(range(6))


def test_a_deleted_file_is_made_again(tmp_path: Path) -> None:
    file = JsonArrayFile(tmp_path / "log.json")
    file.append({"number": 1})
    file.path.unlink()
    file.append({"number": 2})
    assert read(file.path) == [{"number": 2}]


def test_a_forked_child_writes_nothing(tmp_path: Path) -> None:
    file = JsonArrayFile(tmp_path / "log.json")
    file.append({"number": 1})
    assert in_child(lambda: str(file.append({"number": 2}))) == "False"
    assert read(file.path) == [{"number": 1}]


class Colour(Enum):
    RED = "red"


def test_values_that_json_has_no_form_for() -> None:
    itself: dict[str, Any] = {}
    itself["itself"] = itself
    forms = {
        "none": (None, None),
        "nan": (math.nan, None),
        "inf": (-math.inf, None),
        "numpy": (np.float32(0.5), 0.5),
        "array": (np.array([1, 2]), [1, 2]),
        "tensor": (torch.tensor(3.0), 3.0),
        "enum": (Colour.RED, "red"),
        "path": (Path("a/b"), "a/b"),
        "day": (date(2026, 11, 20), "2026-11-20"),
        "time": (datetime(2026, 11, 20, 12), "2026-11-20T12:00:00"),
        "bytes": (b"\xff", "b'\\xff'"),
        "set": ({1}, [1]),
        (1, 2): (True, True),
        "object": (object, "<class 'object'>"),
        "lone surrogate": ("\ud800", "\ud800"),
    }
    found = json.loads(element({name: value for name, (value, _) in forms.items()}))
    assert found == {str(name): expected for name, (_, expected) in forms.items()}
    assert json.loads(element(itself))["itself"]


def test_what_is_no_file_is_not_waited_for_and_a_planted_draft_is_not_followed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    log = JsonArrayFile(tmp_path / "pipe")
    assert not log.append({"a": 1})
    assert "not a regular file" in log.problem()
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".log.json.{os.getpid()}").symlink_to(victim)
    assert JsonArrayFile(tmp_path / "log.json").append({"a": 1})
    assert victim.read_text() == "precious"
