"""`run --baseline`: memory that has grown ends the command with 3."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from forgather_mem.launch import outcome
from forgather_mem.launch.outcome import against_baseline
from tests.comparing.runs import run


def test_a_file_is_written_compared_with_and_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(outcome, "say", said.append)
    file = str(tmp_path / "memory.json")
    grown, missing = against_baseline(file, [run()], update=False)
    assert (grown, [sentence.split(":")[0] for sentence in missing]) == ([], ["--baseline"])
    assert against_baseline(file, [run()], update=True) == ([], [])
    assert said == [f"forgather-mem: the baseline is in {file}"]
    assert against_baseline(file, [run()], update=False) == ([], [])
    assert said[1:] == [f"forgather-mem: no growth above what is allowed since the baseline {file}"]
    assert against_baseline(file, [run(optimizer=30)], update=False)[0] == [
        "optimizer: 24.0 MiB in the baseline, 30.0 MiB now, 25.0 % more",
        f"this is more than allowed_growth in {file}; --update-baseline accepts it",
    ]
    assert against_baseline(file, [run(optimizer=30)], update=True) == ([], [])
    (tmp_path / "memory.json").write_text("lr: 0.1")  # while it ran
    assert against_baseline(file, [run()], update=True)[1][0].startswith(f"--baseline: {file!r} is no baseline")
    assert (tmp_path / "memory.json").read_text() == "lr: 0.1"


def test_the_command_ends_with_3_when_it_takes_more_and_with_its_own_code_otherwise(tmp_path: Path) -> None:
    def command(size: int, *options: str) -> tuple[int, str]:
        words = [sys.executable, "-m", "forgather_mem", "run", "--baseline", "memory.json", *options]
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FORGATHER_MEM")}
        done = subprocess.run(
            [*words, "-c", f"import time; kept = bytearray({size}); time.sleep(0.3); raise SystemExit({size % 2})"],
            cwd=tmp_path, env=kept, capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip
        return done.returncode, done.stderr

    code, printed = command(2**20)
    assert (code, printed.split("\n  ")[-1]) == (2, "--update-baseline writes it\n")
    assert command(2**20, "--update-baseline")[0] == 0
    assert command(2**20)[0] == 0
    code, printed = command(2**27)
    assert code == 3
    assert "forgather-mem: the peak of host: " in printed
    code, printed = command(2**27 + 1)
    assert code == 1, "a command that failed is not compared"
    assert "forgather-mem: --baseline: not compared with, since the command ended with 1\n" in printed
    before = (tmp_path / "memory.json").read_bytes()
    assert "not written, since" in command(2**27 + 1, "--update-baseline")[1]
    assert (tmp_path / "memory.json").read_bytes() == before
