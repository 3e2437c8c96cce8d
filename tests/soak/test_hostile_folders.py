"""Hostile folders: each file as each thing, values of report and log as each other, the ring's bytes.

Each test tries a random `HOSTILE_CASES` of its cases (200, or all with 0), chosen by `HOSTILE_SEED`: all of them take
an hour.
"""

import json
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.formats import ring_writer as layout
from forgather_mem.formats.ring import read_ring
from tests import hostile_folders as hostile
from tests.hostile_folders import FILES, FOLDERS, MODES, THINGS, VALUES, Make, Reporter, paths_in
from tests.reporting.report_fixtures import killed, leaking, out_of_memory
from tests.test_hostile_folders import real_run as a_real_run
from tests.test_hostile_folders import reporter as a_reporter

pytestmark = pytest.mark.soak
reporter, real_run = a_reporter, a_real_run
NUM_CASES = int(os.environ.get("HOSTILE_CASES", "200"))
SEED = int(os.environ.get("HOSTILE_SEED", "20261122"))


def all_answer(reporter: Reporter, real_run: Path, tmp_path: Path, cases: Iterator[tuple[str, Make]]) -> None:
    """Each chosen case in one of the modes in turn; what fails is told all at once."""
    wrong, every = [], list(enumerate(cases))
    chosen = random.Random(SEED).sample(every, min(NUM_CASES or len(every), len(every)))
    print(f"{len(chosen):,} of {len(every):,} cases")
    folder = tmp_path / "run"
    for number, (name, make) in sorted(chosen, key=lambda case: case[0]):
        shutil.copytree(real_run, folder)
        make(folder)
        try:
            hostile.check(reporter, folder, MODES[number % 4])
        except AssertionError as error:
            wrong.append(f"{name}, {MODES[number % 4]}: {error}")
        if name in FOLDERS:
            subprocess.run(["rm", "-rf", str(folder)], check=True)  # it may be too deep for Python
        else:
            shutil.rmtree(folder)
    assert not wrong, f"{len(wrong)} of {len(chosen)}:\n" + "\n".join(wrong[:20])


@pytest.mark.parametrize("file", ["all", *FILES])
def test_each_file_as_each_thing(file: str, reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    cases = ((thing, hostile.replaced(file, thing)) for thing in THINGS for _ in MODES)
    all_answer(reporter, real_run, tmp_path, cases)


@pytest.mark.parametrize("folder", FOLDERS)
def test_each_folder(folder: str, reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    all_answer(reporter, real_run, tmp_path, ((folder, FOLDERS[folder]) for _ in MODES))


REPORTS = {"killed": killed(), "leak": leaking(), "oom": out_of_memory()}


@pytest.mark.parametrize("kind", REPORTS)
def test_each_value_of_a_report_as_each_other(kind: str, reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    report: dict[str, Any] = json.loads(json.dumps(REPORTS[kind]))
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "report.json").write_text(json.dumps(report))
    cases = (
        (f"{path}: {value!r:.60}", hostile.report_with(path, value)) for path in paths_in(report) for value in VALUES
    )
    all_answer(reporter, tmp_path / "base", tmp_path, cases)


def test_each_value_of_a_log_as_each_other(reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    lines = (real_run / "memory.rank0.jsonl").read_bytes().splitlines()
    kinds = {json.loads(line).get("kind", json.loads(line)["type"]): number for number, line in enumerate(lines)}
    cases = (
        (f"{kind} {path}: {value!r:.60}", hostile.line_with(number, path, value))
        for kind, number in kinds.items()
        for path in paths_in(json.loads(lines[number]))
        for value in VALUES[:: 1 if kind != "verdict" else 7]
    )
    all_answer(reporter, real_run, tmp_path, cases)


def test_each_value_of_a_black_box_as_each_other(reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    def cases() -> Iterator[tuple[str, Make]]:
        for path in ((), *paths_in(read_ring(real_run / "ring.rank0").header)):
            for value in VALUES:
                yield f"{path}: {value!r:.60}", hostile.ring_header_with(path, value)
        for word in range(7):
            for at in range(layout.STATE_AT, layout.SAMPLES_AT, 8):
                yield f"state {at}, {word}", hostile.ring_with(at, word)
            for at in range(0, layout.SAMPLE.size, 8):
                yield f"record {at}, {word}", hostile.ring_with(layout.SAMPLES_AT + at, word, layout.SAMPLE.size)

    all_answer(reporter, real_run, tmp_path, cases())


def test_event_files_with_any_bytes(reporter: Reporter, real_run: Path, tmp_path: Path) -> None:
    cases = ((f"seed {seed}", hostile.mutated_events(seed)) for seed in range(300))
    all_answer(reporter, real_run, tmp_path, cases)
