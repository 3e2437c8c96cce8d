"""Two ranks: rank 0 alone writes TensorBoard and prints, each rank has its JSONL, nobody waits for anybody."""

import json
import os
import signal
from pathlib import Path

import pytest

from forgather_mem.reporting.run_dir import run_report
from forgather_mem.reporting.text import report_text
from tests.events import event_folders, scalars
from tests.forked import SCRIPTS, on_ranks
from tests.launch.commands import environment, run


@pytest.mark.slow
@pytest.mark.fresh
def test_with_every_callback_rank_0_writes_and_prints_and_every_rank_has_its_own_lines(tmp_path: Path) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FORGATHER_MEM_STRICT": "1"}
    ended = on_ranks(Path(__file__).parent / "two_ranks.py", [str(tmp_path / "out")], tmp_path, environment)
    said = [out + err for _, out, err in ended]
    assert [code for code, _, _ in ended] == [0, 0], said[0] + said[1]
    assert said[0].count("Garbage collection finished in") == 3
    assert "Garbage collection" not in said[1]
    for line in ("training starts", "step 2/6"):  # InfoCallback's and ProgressCallback's
        assert line in said[0]
        assert line not in said[1]
    assert len(event_folders(tmp_path / "out")) == 1
    assert len(list((tmp_path / "out").rglob("trainer_logs.json"))) == 1
    points = scalars(tmp_path / "out")
    assert "mem_ranks/rss_max_gib" in points
    for tag in ("train-loss", "grad_norm_total", "textgen/time_ms"):
        assert [step for step, _ in points[tag]] == [1, 2, 3, 4, 5, 6]
    lines = sorted((tmp_path / "out" / "forgather_mem").rglob("memory.rank*.jsonl"))
    assert [path.name for path in lines] == ["memory.rank0.jsonl", "memory.rank1.jsonl"]
    assert len({path.parent for path in lines}) == 1
    steps = [json.loads((tmp_path / "out" / f"collections.rank{rank}.json").read_text()) for rank in (0, 1)]
    assert steps[0] == steps[1]
    assert steps[0][:2] == [0, 2]
    gaps = {later - earlier for earlier, later in zip(steps[0], steps[0][1:], strict=False)}
    assert max(gaps) >= 4, "collections this dear are stretched, on both ranks alike"
    told = [json.loads((tmp_path / "out" / f"alerts.rank{rank}.json").read_text()) for rank in (0, 1)]
    stopped_at = told[1]["stopped_at"]
    assert told[0] == {"alerts": [], "stopped_at": stopped_at}, "rank 1 alone is near its wall, both stop"
    assert [(alert["rank"], alert["step"]) for alert in told[1]["alerts"]] == [(1, 7)]
    assert 7 < stopped_at < 40
    assert (tmp_path / "out" / "alert" / f"checkpoint-{stopped_at}").exists(), "both have saved"
    assert "rank 1, step 7: mine/level_frac is 95.0 %, above 90.0 %" in said[1]


@pytest.mark.fresh
@pytest.mark.parametrize("is_real", [False, pytest.param(True, marks=pytest.mark.soak)], ids=["forks", "torchrun"])
def test_without_run_a_rank_that_was_killed_is_named_too(tmp_path: Path, is_real: bool) -> None:
    script, folder = Path(__file__).parent / "killed_rank.py", tmp_path / "out"
    if is_real:  # which ends rank 0 while that closes; it has time to hear that the other one has gone
        torchrun = [str(SCRIPTS / "torchrun"), "--nproc_per_node=2", "--monitor_interval=3"]
        paths = f"{Path(__file__).parents[2]}{os.pathsep}{os.environ['PYTHONPATH']}"
        done = run([*torchrun, str(script), str(folder), "60"], tmp_path, PYTHONPATH=paths)
        assert done.code == 1
    else:
        ended = on_ranks(script, [str(folder), "0.5"], tmp_path, environment())
        assert [code for code, _, _ in ended] == [1, -signal.SIGKILL], ended
    report = run_report(folder)
    told = report_text(report)
    assert "RANK 1 OF 2 FAILED FIRST, at step 3, backward.\n  The others: 1 ended by an exception." in told
    assert (report.ranks[0].error or "").startswith("RuntimeError: ")
