"""README and docs are run as they stand.

In reading order, each file in a fresh folder and process:

- a block under `<!-- file: NAME -->` is written to that file; a page may show the output first and the file after it;
  under `<!-- file: NAME; the test has "A" for "B" -->` with A for B, so that it trains less;
- a `python` block is executed, all blocks of a file in one namespace; a block under `<!-- not run: REASON -->` is not;
- a `console` block's `$ command` lines are executed and their output compared with the lines that follow; commands of
  ours are forks, with what they start, but for those of one page in `make soak`;
- with `FORGATHER_MEM=0` the `python` blocks end no script either, but for those under `<!-- switched on: REASON -->`;
- a `text` block under `<!-- output -->` is what the python block before it printed;
- a page under `<!-- needs: MODULE -->` is skipped where that is not installed: `make recipes` installs it.

In an expected output `...` stands for anything; numbers match any number, since they are measured ones, milliseconds
match seconds, and MiB any unit of size. A page that shows figures which differ between machines in more than their
digits names them in the note above the block, `<!-- ...; varies: "step 24" "23.5 machine" -->`: each stands for
anything, too.
"""

import contextlib
import io
import os
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import accelerate
import pytest
from _pytest.mark import ParameterSet

from tests.forked import SCRIPTS
from tests.frozen_heap import freeze
from tests.shell import ForkedCommands

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
_BLOCK = re.compile(r"(?:<!-- (?P<note>[^>]*?) -->\n+)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S)
_NEEDS = re.compile(r"<!-- needs: ([\w.]+) -->")
REAL = ROOT / "README.md"  # its commands are programs that are started, too
SWITCHED_OFF = ("docs/run.md", "docs/trackers.md")  # README's scripts: telemetry/test_switch.py; others: soak
_OF_SLOW_MACHINES = r"^forgather-mem: (planning the training|the script runs up).* s\n"  # what a plan waits for
_OF_TRANSFORMERS_4 = "max_steps is given, it will override any value given in num_train_epochs\n"
_INSTEAD = re.compile(r'"([^"]+)" for "([^"]+)"')
_VARIES = re.compile(r'"([^"]+)"')
_LINK = re.compile(r"\]\((?!https?:)([^)\s]+)")
_NUMBER = r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?"


@dataclass(frozen=True)
class Block:
    kind: str
    note: str
    body: str
    line: int


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for match in _BLOCK.finditer(text):
        line = text.count("\n", 0, match.start("body"))
        yield Block(match["kind"], " ".join((match["note"] or "").split()), match["body"], line)


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def is_run(block: Block) -> bool:
    return block.kind == "python" and not block.note.startswith(("file: ", "not run"))


def with_what_it_needs(page: Path, *marks_of_all: pytest.MarkDecorator) -> ParameterSet:
    """The page as a parameter; skipped where a package is not installed."""
    lacks = [name for name in _NEEDS.findall(page.read_text(encoding="utf-8")) if find_spec(name) is None]
    marks = [pytest.mark.skip(reason=f"{name} is not installed: make recipes") for name in lacks]
    return pytest.param(page, marks=[*marks, *marks_of_all], id=name_of(page).removeprefix("docs/"))


PYTHON = [page for page in PAGES if any(map(is_run, blocks(page)))]
RUN = [page for page in PAGES if any(is_run(block) or block.kind == "console" for block in blocks(page))]


def write_file(block: Block, folder: Path) -> None:
    name, _, smaller = block.note.removeprefix("file: ").partition(";")
    body, target = block.body, folder / name
    for value, shown in _INSTEAD.findall(smaller):
        assert shown in body, f"line {block.line}: nothing in this block reads {shown!r}"
        body = body.replace(shown, value)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(body, encoding="utf-8")


def without_what_varies(block: Block) -> str:
    """The block's text, with `...` in place of what its note says differs between machines."""
    text = block.body
    for varying in _VARIES.findall(block.note.partition("varies: ")[2]):
        text, found = re.subn(r"\s+".join(map(re.escape, varying.split())), "...", text)
        assert found, f"line {block.line}: nothing in this block reads {varying!r}"
    return text


def assert_output(printed: str, expected: str, where: str) -> None:
    """`expected` describes `printed`: `...` is anything, a number any number, ms are s, spaces and rules any width."""
    pattern = re.sub("={4,}", "==+", re.escape(" ".join(expected.split())))
    pattern = re.sub(r"(?:\\-)?\d+(?:,\d{3})*(?:\\\.\d+)?(?:e\\?-?\d+)?", lambda _: _NUMBER, pattern)
    pattern = re.sub(re.escape(_NUMBER + r"\ ") + r"m?s(?![A-Za-z])", lambda _: _NUMBER + r"\ m?s", pattern)
    pattern = re.sub(re.escape(_NUMBER + r"\ ") + r"[KMG]iB\b", lambda _: _NUMBER + r"\ [KMG]?i?B", pattern)
    pattern = pattern.replace(re.escape(" ..."), ".*?").replace(re.escape("..."), ".*?")  # a blank and nothing, too
    printed = re.sub(_OF_SLOW_MACHINES, "", printed.replace(_OF_TRANSFORMERS_4, ""), flags=re.M)
    flat = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", printed).split())
    assert re.fullmatch(pattern, flat, re.S), f"{where}: expected\n{expected}\nbut it printed\n{printed}"


def run_console(body: str, folder: Path, programs: str, where: str) -> None:
    """`programs` are folders with what the commands start."""
    environment = {**os.environ, "COLUMNS": "80", "PATH": f"{programs}:{os.environ['PATH']}"}
    for part in re.split(r"^\$ ", body, flags=re.M)[1:]:
        command, _, expected = part.partition("\n")
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, timeout=300,
        )  # fmt: skip
        if expected.strip():
            assert_output(done.stdout, expected, f"{where}: $ {command}")
        else:
            assert done.returncode == 0, f"{where}: $ {command}\n{done.stdout}"


@pytest.mark.fresh
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("page", [*map(with_what_it_needs, RUN)])
def test_a_page_runs_as_it_stands(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A full collection when each training begins, which has nothing to do with ours
    monkeypatch.setattr(accelerate.utils.memory, "clear_device_cache", lambda garbage_collection=False: None)
    freeze()  # nor have those that look through all that torch and transformers are
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with ForkedCommands() as forks:
        run_page(page, tmp_path, f"{forks}:{SCRIPTS}")


@pytest.mark.soak
@pytest.mark.fresh
@pytest.mark.filterwarnings("default")
def test_the_first_page_runs_with_programs_that_are_started(tmp_path: Path, own_folder: None) -> None:
    run_page(REAL, tmp_path, str(SCRIPTS))


def run_page(page: Path, folder: Path, programs: str) -> None:
    names: dict[str, object] = {"__name__": "__main__"}
    printed = ""
    for block in reversed(list(blocks(page))):
        if block.note.startswith("file: "):
            write_file(block, folder)  # of two with one name the first is there at the beginning
    for block in blocks(page):
        where = f"{name_of(page)}:{block.line}"
        if block.note.startswith("not run"):
            assert block.note.removeprefix("not run").strip(": "), f"{where}: say why it is not run"
        elif block.note.startswith("file: "):
            write_file(block, folder)
        elif block.note == "output":
            assert_output(printed, without_what_varies(block), where)
        elif block.kind == "python":
            out = io.StringIO()
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
                exec(compile("\n" * block.line + block.body, str(page), "exec"), names)
            printed = out.getvalue()
        elif block.kind == "console":
            run_console(without_what_varies(block), folder, programs, where)


@pytest.mark.alone(forked=True)
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "page",
    [with_what_it_needs(page, *([] if name_of(page) in SWITCHED_OFF else [pytest.mark.soak])) for page in PYTHON],
)
def test_switched_off_a_page_runs_to_its_end(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FORGATHER_MEM", "0")
    names: dict[str, object] = {"__name__": "__main__"}
    for block in (*reversed(list(blocks(page))), *blocks(page)):
        if block.note.startswith("file: "):
            write_file(block, tmp_path)
    for block in blocks(page):
        if block.kind == "python" and not block.note.startswith(("file: ", "not run", "switched on: ")):
            exec(compile("\n" * block.line + block.body, str(page), "exec"), names)


def test_every_link_within_the_project_leads_somewhere() -> None:
    """To a file, and to a heading of it; `make docs` says the same of the site."""
    for page in PAGES:
        for target in _LINK.findall(without_code(page)):
            path, _, heading = target.partition("#")
            file = page.parent / path if path else page
            assert file.exists(), f"{name_of(page)} links to {target}"
            assert not heading or file.suffix != ".md" or heading in headings(file), f"{name_of(page)}: {target}"


def without_code(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def headings(page: Path) -> set[str]:
    """As GitHub and mkdocs name them in addresses."""
    found = re.findall(r"^#+ (.*)$", without_code(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in found}
