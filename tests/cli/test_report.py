"""`forgather-mem report`, as a person types it."""

import itertools
import json
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from forgather_mem.cli.parser import CommandParser
from forgather_mem.cli.report import add_arguments
from tests.cli.commands import in_a_process
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import all_well, killed, merged, out_of_memory, text_of, written


def report(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return in_a_process("report", *arguments, cwd=folder)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    log_of(tmp_path / "out" / "forgather_mem" / "20261120-120000")
    written(all_well(), tmp_path / "out" / "forgather_mem" / "20261120-120000")
    return tmp_path


def test_the_newest_run_below_the_current_folder_is_shown_plain_in_a_pipe(folder: Path) -> None:
    done = report(folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == text_of(all_well()) + "\n"


@pytest.mark.parametrize("file", ["out/forgather_mem/20261120-120000/report.json", "theirs.json"])
def test_json_is_the_whole_report_also_of_its_file_alone(folder: Path, file: str) -> None:
    written(all_well(), folder).rename(folder / "theirs.json")
    done = report(folder, file, "--json")
    assert json.loads(done.stdout) == json.loads(json.dumps(all_well()))


def test_the_page_is_written_and_standard_output_stays_free(folder: Path) -> None:
    report(folder, "out", "--html", "page.html")
    done = report(folder, "out", "--json", "--html", "page.html")  # over an older one
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == 1
    assert done.stderr == "forgather-mem: the page is in page.html\n"
    page = (folder / "page.html").read_text()
    assert page.startswith("<!DOCTYPE html>")
    (data,) = re.findall(r"<script type=.application/json. id=.runs.>(.*?)</script>", page)
    assert json.loads(data)[0]["stacks"]


def test_the_page_is_served_until_ctrl_c(folder: Path) -> None:
    command = [sys.executable, "-m", "forgather_mem", "report", "out", "--serve"]
    served = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = served.stdout.readline().removeprefix("forgather-mem: ").strip()
    with urllib.request.urlopen(f"{address}runs", timeout=30) as answer:
        assert [run["name"] for run in json.load(answer)["runs"]] == ["forgather_mem/20261120-120000"]
    assert served.stdout.readline() == "Anyone with this address can read these runs. Ctrl-C ends it.\n"
    served.send_signal(signal.SIGINT)
    assert served.communicate(timeout=30) == ("", "")
    assert served.returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["nowhere"], 1, "there is no folder 'nowhere'"),
        (["ou"], 1, "did you mean 'out'?"),
        (["empty"], 1, "no run was found below 'empty': no report, log or event file"),
        (["notes.txt"], 1, "'notes.txt' is no report: it holds no JSON\n  give the folder of a run"),
        (["out", "--html", "no/such/page.html"], 1, "can't write 'no/such/page.html': No such file or directory"),
        (["out", "--html", "notes.txt"], 1, "'notes.txt' is there, and is no page that was written here"),
        (["out", "--serve", "--port", "65536"], 2, "--port"),
        (["empty", "--serve"], 1, "no run was found below 'empty'"),
        (["out", "--htm", "x"], 2, "report: there is no option '--htm'\n  did you mean '--html'?"),
        (["out", "other"], 2, "report: unexpected argument 'other'"),
    ],
)
def test_mistakes_get_one_message_and_no_traceback(folder: Path, arguments: list[str], code: int, message: str) -> None:
    (folder / "empty").mkdir()
    (folder / "notes.txt").write_text("mine")
    done = report(folder, *arguments)
    assert (done.returncode, done.stdout) == (code, "")
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert max(map(len, done.stderr.splitlines())) <= 100


def of_ranks() -> dict[str, Any]:
    ranks = (all_well(), killed())
    return merged([one | {"run": one["run"] | {"rank": rank, "world_size": 2}} for rank, one in enumerate(ranks)])


@pytest.mark.parametrize("make", [all_well, out_of_memory, killed, of_ranks])
def test_each_option_has_an_effect_or_is_refused_however_the_run_ended(make: Any, cli: Any, here: Path) -> None:
    parser = CommandParser("report", "")
    add_arguments(parser)
    names = [action.option_strings[-1] for action in parser._actions if action.option_strings]
    options = [(name, *{"--html": ["page.html"], "--port": ["1"]}.get(name, [])) for name in names if name != "--help"]
    written(make(), here)

    def told(*words: str) -> tuple[int, str, str]:
        (here / "page.html").write_text("")
        return (*cli("report", str(here), *words)[:2], (here / "page.html").read_text())

    for one, other in [((), option) for option in options] + [*itertools.combinations(options, 2)]:
        if other != ("--serve",) and {one[:1], other[:1]} != {("--serve",), ("--port",)}:  # which would go on
            code, *done = told(*one, *other)
            assert code == 2 or all([0, *done] != [*told(*alone)] for alone in ((one, other) if one else ((),))), other


def test_markdown_is_what_an_issue_asks_for(folder: Path) -> None:
    done = report(folder, "--markdown")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr, lines[0], lines[-1]) == (0, "", "```text", "```")
    assert lines[1].startswith("== forgather-mem ==")
