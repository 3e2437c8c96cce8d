"""The recipe for Slurm as Slurm runs it, but for Slurm: `srun` and `scontrol` stand in, the signal is a real one."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.test_docs import ROOT, blocks, write_file

PROGRAMS = {
    "srun": """exec setsid --wait bash -c 'echo $$ > step; exec "$@"' srun "$@"\n""",  # a step has a group of its own
    "scontrol": 'echo "$@" >> asked\n',
    "forgather-mem": f'exec {sys.executable} -m forgather_mem "$@"\n',
    "python": f'exec {sys.executable} "$@"\n',
}


def started(folder: Path, restarts: int) -> subprocess.Popen[str]:
    slurm = {"SLURM_SUBMIT_DIR": str(folder), "SLURM_JOB_ID": "1234", "SLURM_RESTART_COUNT": str(restarts)}
    variables = {**os.environ, **slurm, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(["bash", "job.sbatch"], cwd=folder, env=variables, stderr=subprocess.PIPE, text=True)


def wait_for_steps(folder: Path) -> None:
    """Until the training has begun: its log begins at the first step."""
    until = time.monotonic() + 200
    while not list(folder.rglob("memory.rank0.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.2)


@pytest.mark.soak
def test_a_job_saves_once_asks_to_be_requeued_once_and_goes_on_where_it_was(tmp_path: Path) -> None:
    for block in blocks(ROOT / "docs" / "recipes" / "slurm.md"):
        if block.note.startswith("file: "):
            write_file(block, tmp_path)
    (tmp_path / "bin").mkdir()
    for name, text in PROGRAMS.items():
        (tmp_path / "bin" / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / "bin" / name).chmod(0o755)
    saved = []
    for restarts in range(2):
        job = started(tmp_path, restarts)
        wait_for_steps(tmp_path / "memory" / f"1234-{restarts}")
        os.killpg(int((tmp_path / "step").read_text()), signal.SIGUSR1)  # as Slurm: not to the job's shell
        _, said = job.communicate(timeout=200)
        assert job.returncode == 0, said
        assert "== forgather-mem == train.py ==" in said
        saved.append(torch.load(tmp_path / "checkpoint.pt")["step"])
    assert (tmp_path / "asked").read_text() == "requeue 1234\n" * 2
    assert 0 < saved[0] < saved[1] < 2000
