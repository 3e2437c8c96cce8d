"""What differs in a watched process for who looks is what docs/run.md names, no more and no less."""

import json
import re
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from tests.forked import Forked
from tests.launch.commands import ROOT, RUN, environment, python, run
from tests.launch.forked_run import run_forked, watched_forked

PAGE = (ROOT / "docs" / "run.md").read_text()
MOST_DESCRIPTORS = 6
Difference = tuple[str, str]  # of what, its name


def seen(folder: Path, words: Sequence[str], kind: str, **more: str) -> list[dict[str, Any]]:
    """What the script sees when it begins, in step 20, and at its end."""
    (folder / "seen.py").write_text((Path(__file__).parent / "seen.py").read_text())
    done = run([*words, "seen.py", kind, "found.json"], folder, **more)
    assert done.code == 0, done.err
    return json.loads((folder / "found.json").read_text())


def differences(alone: Sequence[dict[str, Any]], watched: Sequence[dict[str, Any]]) -> set[Difference]:
    assert len(alone) == len(watched) == 3
    found = set()
    for ours, theirs in zip(watched, alone, strict=True):
        assert ours.keys() == theirs.keys()
        for thing in ours:
            names = ours[thing].keys() | theirs[thing].keys()
            found |= {(thing, name) for name in names if ours[thing].get(name) != theirs[thing].get(name)}
    return found


def rows() -> Iterator[Difference]:
    """The names that stand in the first two columns of the page's table, each with what it belongs to."""
    table = PAGE.partition("What a script can notice:\n\n")[2].partition("\n\n")[0]
    for row in table.splitlines()[2:]:
        things, names = row.strip("|").split("|")[:2]
        for name in re.findall(r"`([^`]+)`", names):
            yield things.strip().strip("`"), name


def is_named(difference: Difference, row: Difference) -> bool:
    (thing, name), (row_thing, pattern) = difference, row
    if pattern == "sys.builtin_module_names":
        return thing == row_thing and name in sys.builtin_module_names
    return thing == row_thing and fnmatchcase(name, pattern)


# In the first, nothing but Python's own has been imported when it begins
KINDS: dict[str, dict[str, str]] = {"plain": {"PYTHONPATH": ""}, "trainer": {}}


@pytest.mark.slow
@pytest.mark.parametrize("kinds", [["plain"], pytest.param(list(KINDS), marks=pytest.mark.soak)], ids=["plain", "all"])
def test_a_watched_script_sees_what_the_page_names_and_nothing_else(tmp_path: Path, kinds: list[str]) -> None:
    met = set()
    for kind in kinds:
        more = KINDS[kind]
        alone, watched = (seen(tmp_path, words, kind, **more) for words in (python(), RUN))
        found = differences(alone, watched)
        assert not {one for one in found if not any(is_named(one, row) for row in rows())}, kind
        met |= {row for row in rows() if any(is_named(one, row) for one in found)}
        begun = [sum(look["/proc/self/fd"].values()) for look in alone]
        held = [sum(look["/proc/self/fd"].values()) for look in watched]
        assert max(ours - theirs for ours, theirs in zip(held, begun, strict=True)) <= MOST_DESCRIPTORS
    if kinds == list(KINDS):
        assert met | {("gc", "get_freeze_count"), ("sys", "gettrace")} == set(rows()), "each row is met by one of them"


@pytest.mark.slow
@pytest.mark.fresh
def test_attach_has_no_more_files_open(tmp_path: Path) -> None:
    script = Path(__file__).parent / "seen.py"
    code, _, err = Forked(script, ["attached", "found.json"], tmp_path, environment()).wait()
    assert code == 0, err
    begun, held, ended = (sum(it["/proc/self/fd"].values()) for it in json.loads((tmp_path / "found.json").read_text()))
    assert begun < held <= begun + MOST_DESCRIPTORS
    assert ended == begun


FEW = f"""
import os, resource, sys, torch

model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
# Some numbers below the limit may be free, and others above it taken
numbers = sorted(set(range(1000)) - set(map(int, os.listdir("/proc/self/fd"))))
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (numbers[8 + {MOST_DESCRIPTORS} + 1], hard))
files = []
for step in range(60):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().mean().backward()
    optimizer.step()
    if 20 <= step < 28:
        files.append(open(f"file{{step}}", "w+"))
    for file in files:
        file.write(f"{{step}} ")
print(len(files), sum(file.tell() for file in files))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
"""


@pytest.mark.fresh
def test_a_script_with_few_descriptors_left_has_its_own(tmp_path: Path) -> None:
    """What its files need, what we hold, and one for a file of the kernel's that is read and closed again."""
    (tmp_path / "few.py").write_text(FEW)
    code, out, err = Forked(tmp_path / "few.py", [], tmp_path, environment()).wait()
    assert (code, err) == (0, "")
    watched = watched_forked(["few.py"], tmp_path)
    assert (watched.plain.code, watched.plain.out, watched.plain.err) == (code, out, err)
    (log,) = tmp_path.glob("forgather_mem/*/memory.rank0.jsonl")
    assert '"step":60' in log.read_text().replace(" ", "")


@pytest.mark.fresh
def test_a_script_that_closes_all_files_and_gets_our_numbers_has_its_own_alone(tmp_path: Path) -> None:
    """As daemons do; nothing of ours is written into its files or closes one, and no failure is told."""
    (tmp_path / "closing.py").write_text((Path(__file__).parent / "closing.py").read_text())
    done = run_forked([*RUN, "closing.py"], tmp_path)
    assert (done.code, done.out) == (0, "True {4}\n"), done.err
    assert "failed" not in done.err
