"""`forgather-mem compare`: what stands first, what it compares, and how it ends."""

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from forgather_mem.cli.app import dispatch
from forgather_mem.reporting.build import write_report
from tests.comparing.runs import plan, run

OLD, NEW = {"arguments.optim": "sgd"}, {"arguments.optim": "adamw_torch"}


def compare(folder: Path, *arguments: str) -> SimpleNamespace:
    """How the command ends in that folder, and what it prints."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = dispatch(["compare", *arguments])
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("COLUMNS", raising=False)
    write_report(run(500, settings=OLD, optimizer=0), tmp_path / "old" / "forgather_mem" / "20261120-120000")
    write_report(run(560, settings=NEW, optimizer=60), tmp_path / "new")
    write_report(run(561, settings=NEW, optimizer=60), tmp_path / "new2")
    write_report(run(502, settings=OLD, optimizer=0), tmp_path / "same")
    return tmp_path


def test_the_part_and_the_setting_stand_first(folder: Path) -> None:
    done = compare(folder, "old", "new")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:3] == [
        "new: the optimizer's state +60.0 MiB. Of resident memory it takes 60.0 MiB more",
        "  at the peak (host).",
        "optimizer: optim adamw_torch instead of sgd",
    ]


def test_each_is_compared_with_the_first_and_several_runs_may_be_one_side(folder: Path) -> None:
    done = compare(folder, "old,same", "new/report.json,new2", "same", "--json")
    first, second = json.loads(done.stdout)
    assert (first["before"], first["after"]) == ("old and 1 more", "new and 1 more")
    assert [one["part"] for one in first["explained_by"]] == ["optimizer"]
    assert (second["after"], second["explained_by"]) == ("same", [])


def test_as_markdown_it_can_be_pasted(folder: Path) -> None:
    lines = compare(folder, "old", "new", "--markdown").stdout.splitlines()
    assert lines[0].startswith("**new: the optimizer's state +60.0 MiB. Of resident memory it takes 60.0 MiB more")
    assert "| optimizer | 0 B | 60.0 MiB | +60.0 MiB |" in lines


def test_all_runs_are_on_one_page(folder: Path) -> None:
    done = compare(folder, "old,same", "new/report.json", "--html", "page.html")
    assert (done.returncode, done.stderr) == (0, "forgather-mem: the page is in page.html\n")
    page = (folder / "page.html").read_text()
    (runs,) = re.findall(r'<script type="application/json" id="runs">(.*?)</script>', page)
    first, *others = json.loads(runs)
    assert [first["name"], *(one["name"] for one in others)] == ["new", "old", "same"]
    assert (first["badge"], first["verdict"][:43]) == ("COMPARED", "new: the optimizer's state +60.0 MiB. Of re")
    assert others[0]["badge"] != "COMPARED"


def test_a_plan_is_on_the_page_with_its_phases(folder: Path) -> None:
    phases = {"forward": {"activations": 30, "parameters": 12}, "backward": {"activations": 50, "parameters": 12}}
    (folder / "plan.json").write_text(json.dumps({"plans": [plan(phases)], "settings": {}}))
    done = compare(folder, "plan.json", "plan.json", "--html", "page.html")
    assert (done.returncode, done.stderr) == (0, "forgather-mem: the page is in page.html\n")
    (runs,) = re.findall(r' id="runs">(.*?)</script>', (folder / "page.html").read_text())
    one = json.loads(runs)[1]
    assert (one["badge"], one["verdict"]) == ("PLANNED", "62.0 MiB of tensors at the planned peak, in backward.")
    assert one["text"].split("\n")[:2] == [
        "== forgather-mem == training == planned, not run ".ljust(80, "="),
        "PLAN      predicted 62.0 MiB of tensors at the peak (backward)",
    ]
    (table,) = one["tables"]
    assert (table["header"], table["rows"][0]) == (
        ["part", "forward", "backward"], ["activations", "30.0 MiB", "50.0 MiB"]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("after", "limit", "code"),
    [("new", "growth:2%", 3), ("new", "growth:70%", 0), ("same", "growth:0%", 0), ("new2", "growth:0.05", 3)],
)
def test_growth_above_the_limit_ends_with_3(folder: Path, after: str, limit: str, code: int) -> None:
    done = compare(folder, "old", after, "--fail-on", limit)
    assert done.returncode == code
    assert (f"--fail-on {limit}: memory has grown by at least " in done.stderr) == bool(code)


def test_growth_of_the_parts_is_taken_of_their_own_sum(folder: Path) -> None:
    write_report(run(500, settings=OLD, optimizer=20), folder / "small")
    write_report(run(501, settings=OLD, optimizer=24), folder / "larger")
    done = compare(folder, "small", "larger", "--fail-on", "growth:2%")
    assert done.returncode == 3
    assert done.stderr == "forgather-mem: --fail-on growth:2%: memory has grown by at least 3.3% (parts)\n"


def test_a_run_that_has_not_finished_does_not_pass_for_one_that_has_not_grown(folder: Path) -> None:
    whole = run(500, settings=OLD, optimizer=0)
    write_report(replace(whole, run=replace(whole.run, end="oom")), folder / "a long name of a run")
    done = compare(folder, "old", "a long name of a run", "--fail-on", "growth:2%")
    assert done.returncode == 4
    assert done.stderr == (
        "forgather-mem: --fail-on growth:2%: a long name of a run has not finished: it\n  may have grown later\n"
    )
    assert compare(folder, "old", "a long name of a run").returncode == 0


def test_a_run_is_not_judged_by_itself_and_the_decision_stands_first_in_a_page(folder: Path) -> None:
    timed = run(500, settings=OLD, optimizer=0)
    write_report(replace(timed, run=replace(timed.run, wall_s=3.0)), folder / "timed")
    for first, after, code, decision in (
        ("timed", "./timed", 4, "timed and ./timed are the same run"),
        ("old", "new", 3, "memory has grown by at least 59.9% (parts)"),
        ("old", "same", 0, "memory has not grown by more"),
    ):
        done = compare(folder, first, after, "--fail-on", "growth:2%", "--markdown")
        assert (done.returncode, done.stdout.split("**")[1]) == (code, f"--fail-on growth:2%: {decision}")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["old"], 2, "give two runs or more"),
        (["old", "nowhere"], 1, "there is no folder 'nowhere'"),
        (["old", "ne"], 1, "did you mean"),
        (["old", "notes.json"], 1, "'notes.json' is no report: "),
        (["old", "refused.json"], 1, "'refused.json' is of no plan: train.py:5"),
        (["old", "new", "--fail-on", "growth:much"], 2, "--fail-on 'growth:much' is no limit"),
        (["old", "new", "--fail-on", "growth:2"], 2, "give one like growth:2%"),
        (["old", "new", "--fail-on", "leak"], 2, "give one like growth:2%"),
        (["old", "new", "--fail-on", "growth:-1%"], 2, "is no limit"),
        (["old", ""], 2, "an argument is empty is a variable of the shell not set?"),
        (["old", ","], 1, "there is no folder ','"),
        (["old", "nowhere", "--fail-on", "growth:2%"], 4, "there is no folder 'nowhere'"),
        (["notes.json", "old", "--fail-on", "growth:2%"], 4, "'notes.json' is no report: "),
    ],
)
def test_a_mistake_is_explained(folder: Path, arguments: list[str], code: int, message: str) -> None:
    (folder / "notes.json").write_text("[]")
    (folder / "refused.json").write_text('{"refused": "train.py:5"}')
    done = compare(folder, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    in_a_page = compare(folder, *arguments, "--markdown").stdout  # as a job's summary, where nobody sees the rest
    assert in_a_page.startswith("**Memory could not be judged: ")
    assert message in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_plans_are_compared_with_each_other_and_with_runs(folder: Path) -> None:
    sizes = {"backward": {"activations": 80.0, "optimizer": 28.0}, "optimizer": {"optimizer": 28.0}}
    larger = {**sizes, "backward": {"activations": 90.0, "optimizer": 28.0}}
    (folder / "a.json").write_text(json.dumps({"plans": [plan(sizes)], "settings": OLD}))
    (folder / "b.json").write_text(json.dumps({"plans": [plan(larger)], "settings": NEW}))
    write_report(run(500, settings=NEW, planned=larger), folder / "planned")
    for after in ("b.json", "planned"):
        done = compare(folder, "a.json", after)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.startswith(f"{after} takes 10.0 MiB more at the planned peak: activations +10.0 MiB")
        assert "arguments.optim" in done.stdout
    assert compare(folder, "a.json", "b.json", "--fail-on", "growth:2%").returncode == 3
    (folder / "dumped.json").write_text(json.dumps({**plan(larger), "rows": 16, "notes": []}))
    done = compare(folder, "a.json", "dumped.json")
    assert done.stdout.startswith("dumped.json takes 10.0 MiB more at the planned peak: activations +10.0 MiB in\n")
    assert "batch.rows 16 instead of 8" in done.stdout
    assert "dumped.json: no settings" in " ".join(done.stdout.split())
    assert "arguments.optim" not in done.stdout
    for sides in (("a.json", "new"), ("new", "a.json")):
        done = compare(folder, *sides, "--fail-on", "growth:2%")
        assert (done.returncode, done.stdout, compare(folder, *sides).returncode) == (4, "", 1)
        assert done.stderr == (
            "forgather-mem: of a.json the plan is compared, and new has none\n"
            "  `forgather-mem run --plan` makes one of a Trainer's training\n"
        )
    (folder / "two.json").write_text(json.dumps({"plans": [plan(sizes), plan(larger)], "settings": OLD}))
    assert "two.json: only the first of its 2 plans is read; " in compare(folder, "a.json", "two.json").stdout
    (folder / "c.json").write_text(json.dumps({"plans": [{"phases": [{"phase": 3}]}]}))
    assert "is no report: " in compare(folder, "a.json", "c.json").stderr


def test_a_run_without_settings_is_compared_and_it_says_so(folder: Path) -> None:
    bare = run(500)
    write_report(replace(bare, run=replace(bare.run, settings={})), folder / "older")
    done = compare(folder, "older", "new")
    assert "older: no settings" in " ".join(done.stdout.split())
    assert done.returncode == 0
