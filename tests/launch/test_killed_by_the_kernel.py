"""A container's limit is reached, and the kernel kills: on machines where a test may make a control group."""

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from forgather_mem.system.cgroups import memory_groups
from forgather_mem.units import MIB
from tests.launch.commands import ROOT, RUN, report_in, run, taken_apart

LIMIT_BYTES = 80 * MIB
KILLS = yaml.safe_load(Path(__file__).with_name("kills.yaml").read_text(encoding="utf-8"))
NAMES = {1: ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes"), 2: ("memory.max", "memory.swap.max")}


def limited_group() -> Path | None:
    """A new group with a limit, below the outermost one of ours that lets us."""
    for root, version in reversed(list(memory_groups())):
        limit, with_swap = NAMES[version]
        folder = Path(root) / f"forgather_mem_test_{time.time_ns()}"
        with suppress(OSError):
            folder.mkdir()
            try:
                (folder / limit).write_text(str(LIMIT_BYTES))
            except OSError:
                folder.rmdir()
                raise
            with suppress(OSError):  # a kernel that does not count swap
                (folder / with_swap).write_text(str(LIMIT_BYTES if version == 1 else 0))
            return folder
    return None


def inside(group: Path, limit_mib: int) -> list[str]:
    names = "memory.memsw.limit_in_bytes", "memory.limit_in_bytes", "memory.max"
    for file in filter(Path.exists, map(group.joinpath, names)):
        file.write_text(str(limit_mib * MIB))
    return ["sh", "-c", f'echo $$ > {group}/cgroup.procs && exec "$@"', "sh"]


def report_of_a_kill(folder: Path, group: Path, limit_mib: int, text: str, *options: str) -> dict[str, Any]:
    (folder / "script.py").write_text(text)
    run([*inside(group, limit_mib), *RUN, *options, "script.py"], folder)
    return report_in(folder)


@pytest.fixture
def group() -> Iterator[Path]:
    folder = limited_group()
    if folder is None:
        pytest.skip("no memory control group can be made here")
    yield folder
    deadline = time.monotonic() + 30
    while folder.exists() and time.monotonic() < deadline:
        with suppress(OSError):  # the dead are still being taken out of it
            folder.rmdir()
        time.sleep(0.05)


def test_the_report_names_the_limit_and_the_kernels_counter(tmp_path: Path, group: Path) -> None:
    (tmp_path / "grows.py").write_text(
        "import time\nrows = []\nprint('begin', flush=True)\n"
        "for _ in range(1000):\n    rows.append(bytearray(2**22))\n    time.sleep(0.02)\n"
    )
    result = taken_apart(run([*inside(group, 80), *RUN, "grows.py"], tmp_path))
    assert result.plain.out == "begin\n"
    assert result.plain.code == -9
    told = " ".join(result.report.split())
    assert "KILLED BY THE KERNEL: the container's memory limit, 80.0 MiB, was reached" in told
    assert "(oom_kill 0 -> 1)" in told
    report = report_in(tmp_path)
    assert (report["host"]["limit_bytes"], report["host"]["limit_kind"]) == (LIMIT_BYTES, "cgroup")
    assert 0.4 * LIMIT_BYTES < report["host"]["rss_peak_bytes"] <= 1.1 * LIMIT_BYTES


@pytest.mark.parametrize("left_mib", [4, pytest.param(16, marks=pytest.mark.soak)])
def test_a_failure_near_the_limit_is_told_and_not_looked_into(tmp_path: Path, group: Path, left_mib: int) -> None:
    (tmp_path / "fails.py").write_text(
        "import torch\nfrom forgather_mem.system.memory_limit import MemoryLimit\n"
        f"left = MemoryLimit().deadliest().free_bytes - {left_mib * MIB}\n"
        "rows = bytearray(left)\nfor at in range(0, left, 4096):\n    rows[at] = 1\n"
        "torch.empty(2**50)\n"
    )
    result = taken_apart(run([*inside(group, 400), *RUN, "fails.py"], tmp_path))
    assert result.plain.code == 1
    assert result.plain.err.endswith("(Cannot allocate memory)\n"), "the script's own words are there"
    assert "OUT OF MEMORY" in result.report
    words = " ".join(result.report.split())
    looked = "were left below a limit at which the kernel kills (container)" not in words
    assert looked == (left_mib == 16), words


@pytest.mark.slow
def test_who_holds_the_most_is_told_before_a_kill_and_that_it_was_in_torch_save(tmp_path: Path, group: Path) -> None:
    text = KILLS["holder"]
    report = report_of_a_kill(tmp_path, group, 710, text, "--advice-s", "0")
    killed = report["killed"]
    assert (killed["step"], killed["phase"]) == (23, "save")
    assert "MiB are in `kept`, added at script.py:8." in killed["why_now"]
    assert report["advice"][0]["text"].startswith("keep less in `kept`: ")
    assert killed["in_use"]["there before the first step"] < 300 * MIB, "without pages of files"


@pytest.mark.slow
def test_who_holds_the_most_is_told_also_where_only_passes_came_near_the_limit(tmp_path: Path, group: Path) -> None:
    text = KILLS["holder beside passes"]
    killed = report_of_a_kill(tmp_path, group, 710, text, "--advice-s", "0")["killed"]
    assert "MiB are in `kept`, added at script.py:8." in killed["why_now"]


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["eval", "train"])
def test_what_a_sum_of_evaluated_losses_keeps_is_told_before_a_kill(tmp_path: Path, group: Path, mode: str) -> None:
    text = KILLS["losses"].format(mode=mode)
    report = report_of_a_kill(tmp_path, group, 710, text, "--advice-s", "0")
    assert "earlier passes in `total`." in report["killed"]["why_now"]
    assert "no_grad()" in report["advice"][0]["text"]


PASSES = KILLS["passes"]
SORTS = KILLS["sorts"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("does", "why", "advice"),
    [(PASSES, "graphs of up to 8 passes", "backward() after each"), (SORTS, "made at", "less at once at script.py:")],
)
def test_a_plan_tells_which_passes_or_which_line_took_so_much(
    tmp_path: Path, group: Path, does: str, why: str, advice: str
) -> None:
    text = f"import torch\nmodel = torch.nn.Linear(64, 256)\noptimizer = torch.optim.SGD(model.parameters())\n{does}"
    report = report_of_a_kill(tmp_path, group, 400, text)
    assert why in report["killed"]["why_now"], report["killed"]
    assert report["advice"][0]["text"].startswith(advice)


@pytest.mark.slow
def test_what_workers_take_before_the_first_step_is_theirs(tmp_path: Path, group: Path) -> None:
    text = KILLS["workers"]
    report = report_of_a_kill(tmp_path, group, 500, text, "--advice-s", "0")
    assert report["killed"]["num_workers"] == 2, report["killed"]
    held = report["killed"]["in_use"]
    assert held["batches loaded ahead"] > 100 * MIB, "shared memory, of no process"
    assert sum(held.values()) == pytest.approx(500 * MIB, rel=0.02)
    assert "batches loaded ahead by 2 workers x prefetch_factor 24." in report["killed"]["why_now"]
    advice = [change["text"] for change in report["advice"]]
    assert advice[:2] == ["DataLoader(prefetch_factor=2)", "DataLoader(num_workers=0)"]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [0, 3])
def test_a_generation_is_told_with_what_it_was_asked_for(tmp_path: Path, group: Path, steps: int) -> None:
    text = KILLS["generation"].format(steps=steps)
    killed = report_of_a_kill(tmp_path, group, 560, text)["killed"]
    assert killed["phase"] == "generate"
    asked = "2,000 x 16 tokens: 1,000 prompts x num_return_sequences 2, at most 200 new tokens each."
    assert killed["why_now"].startswith(asked)


@pytest.mark.slow
@pytest.mark.parametrize("part", ["after the training", "evaluation"])
def test_a_kill_after_the_training_is_told_as_one_for_memory_with_what_there_was(
    tmp_path: Path, group: Path, part: str
) -> None:
    then = "trainer.evaluation_loop = fills\ntrainer.predict(trainer.train_dataset)\n"
    (tmp_path / "predicts.py").write_text(
        f"import sys, torch\nsys.path.insert(0, {str(ROOT)!r})\nfrom tests.training import make_trainer\n"
        "trainer, kept = make_trainer('out'), []\ndef fills(*_, **__):\n    while True:\n"
        f"        kept.append(torch.ones(3 * 2**20))\ntrainer.train()\n{'fills()' if part != 'evaluation' else then}"
    )
    result = taken_apart(run([*inside(group, 710), *RUN, "predicts.py"], tmp_path))
    told, report = " ".join(result.report.split()), report_in(tmp_path / "out")
    assert "710.0 MiB, was reached (oom_kill 0 -> 1). Last sign of life: training ended after step " in told
    assert ("Why now: All predictions are kept until its end." in told) == (part == "evaluation")
    assert report["killed"]["in_use"][part] > 200 * MIB
    is_told = "preprocess_logits_for_metrics" in report["advice"][0]["text"] if report["advice"] else False
    assert is_told == (part == "evaluation")
    assert report["host"]["rss_peak_bytes"] > 0.9 * 710 * MIB
