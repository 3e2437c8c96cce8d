"""After a watched training has run out of memory it is planned in a fresh process, which can be ended at any time."""

import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from forgather_mem.cli.command import Command
from forgather_mem.launch.advice import with_planned_advice
from forgather_mem.telemetry.report import OomReport, RunReport
from tests.launch.commands import RUN, python, run
from tests.launch.test_failed_training import out_of_memory, report_of

ACCUMULATION = "gradient_accumulation_steps"


def advised(report: RunReport, folder: Path, script: str, most_s: float = 60) -> OomReport:
    (folder / "script.py").write_text(script)
    path = str(folder / "script.py")
    return with_planned_advice(report, Command([sys.executable, path], path, []), most_s).oom


LOOP = """
import os, resource
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.randn(256, 3, 64, 64), torch.randint(0, 10, (256,)))
BATCH, PARTS = int(os.environ.get("BATCH", 32)), int(os.environ.get("PARTS", 1))
loader = DataLoader(rows, batch_size=BATCH)
net = nn.Sequential(nn.Conv2d(3, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU())
net.extend([nn.Flatten(), nn.Linear(64 * 60 * 60, 10)])
optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
with open("/proc/self/statm") as file:
    used = int(file.read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + 130 * 2**20, resource.RLIM_INFINITY))
for number, (pictures, labels) in enumerate(loader):
    (nn.functional.cross_entropy(net(pictures), labels) / PARTS).backward()
    if number % PARTS == PARTS - 1:
        optimizer.step()
        optimizer.zero_grad()
print("done")
"""


@pytest.mark.soak  # many plans; of Trainers benchmarks/ooms.py applies what is told
def test_what_is_told_to_fit_lets_a_loop_of_the_scripts_own_finish(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    run([*RUN, "--advice-s", "300", "--report", "report.json", "train.py"], tmp_path)
    report = json.loads((tmp_path / "report.json").read_text())
    first = report["advice"][0]
    assert first["predicted_bytes"] < report["oom"]["limit_bytes"], report["oom"]["fit"]
    rows, parts = (first["in_script"][name] for name in ("per_device_train_batch_size", ACCUMULATION))
    assert (rows * parts, first["text"]) == (32, f"batch size {rows}, gradients of {parts} batches in each step")
    assert run(python("train.py"), tmp_path, BATCH=str(rows), PARTS=str(parts)).out.endswith("done\n")


def test_nothing_is_planned_where_nobody_wants_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    oom = advised(report_of(out_of_memory()), tmp_path, "raise SystemExit", 0)
    assert oom.fit == "not planned: --advice-s 0"
    assert "planning" not in capfd.readouterr().err


def test_a_report_of_a_run_with_memory_enough_stays_as_it_is() -> None:
    report = report_of()
    assert with_planned_advice(report, Command(["true"], "train.py", []), 60) is report


def test_a_launcher_is_not_started_again() -> None:
    found = with_planned_advice(report_of(out_of_memory()), Command(["true"], "train.py", [], is_python=False), 60)
    assert found.oom.fit == "not planned: a launcher started it"


def test_a_script_that_does_not_train_again_is_told_as_such(tmp_path: Path) -> None:
    oom = advised(report_of(out_of_memory()), tmp_path, "raise SystemExit(7)")
    assert oom.fit == "not planned: started again, it ended with 7 before its training"


@pytest.mark.fresh  # its limit goes with the process
def test_limits_are_raised_as_far_as_they_may_be_and_below_others_it_says_so(tmp_path: Path) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (2**45, 2**46))
    assert advised(report_of(out_of_memory()), tmp_path, "raise MemoryError").fit == (
        "not planned: planning it takes more memory than data (RLIMIT_DATA) leaves, and a hard "
        "limit can't be raised; a soft one can: ulimit -S"
    )
    assert resource.getrlimit(resource.RLIMIT_DATA) == (2**46, 2**46)


SLEEPS = "import os, time; open(PIDS, 'w').write(f'{os.getpid()} {os.fork()}'); time.sleep(100)"


def test_it_ends_in_time_with_all_of_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    oom = advised(report_of(out_of_memory()), tmp_path, SLEEPS.replace("PIDS", repr(str(pids))), 3)
    assert oom.fit == "not planned: it took more than 3 s (--advice-s)"
    assert all(map(is_gone, pids.read_text().split()))


def test_an_interrupt_ends_the_planning_and_nothing_else(tmp_path: Path) -> None:
    pids = tmp_path / "pids"

    def interrupt() -> None:
        while not pids.exists() or len(pids.read_text().split()) < 2:  # both of its processes
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    oom = advised(report_of(out_of_memory()), tmp_path, SLEEPS.replace("PIDS", repr(str(pids))))
    assert oom.fit == "not planned: interrupted"
    assert all(map(is_gone, pids.read_text().split()))


def is_gone(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
