"""Templates of a stranger: none may run code, hang, eat the memory, or end in anything but our error.

The attacks are data (attacks/*.yaml); attack_runner.py runs each in a child process with limits and a witness, which
takes a tenth of a second of CPU, and more where a process of its own renders it, which is a warm one here and a new one
in `make soak`. Every eighth of a file is run here, of those that are rendered every sixteenth, and all by `make soak`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.forked import Forked
from tests.fresh import IN_CHILD

pytestmark = pytest.mark.alone(forked=True)
HERE = Path(__file__).parent
FROZEN = HERE / "frozen_set" / "attacks.yaml"  # nobody looked at it while the limits were made
FILES = [*sorted((HERE / "attacks").glob("*.yaml")), FROZEN]
RENDERED = (HERE / "attacks" / "jinja.yaml", FROZEN)
EVERY = 8
MAX_GROWN_MIB = 200
MAX_CPU_S = 15
MAX_MESSAGE_CHARS = 2_500


def of(file: Path) -> list[dict[str, Any]]:
    return list(yaml.load(file.read_text(), yaml.CSafeLoader))


ATTACKS = [(file.stem, attack) for file in FILES for attack in of(file)]


def run(files: list[Path], *options: str) -> dict[tuple[str, str], dict[str, Any]]:
    runner, root, in_fork = HERE / "attack_runner.py", str(HERE.parents[1]), IN_CHILD in os.environ
    arguments = [*map(str, files), *["--warm"] * in_fork, *options]
    environment = {**os.environ, "PYTHONPATH": root, "OMP_NUM_THREADS": "1"}
    if in_fork and "--heavy" in options:
        code, out, err = Forked(runner, arguments, HERE, environment).wait()
    else:
        done = subprocess.run(
            [sys.executable, runner, *arguments], capture_output=True, text=True, env=environment, timeout=1200
        )
        code, out, err = done.returncode, done.stdout, done.stderr
    assert code == 0, err[-2000:]
    results = [json.loads(line) for line in out.splitlines()]
    return {(result["file"], result["name"]): result for result in results}


@pytest.fixture(scope="module")
def results(all_results):
    """How every attack ended: half of them in a process as small as possible, the others beside torch."""
    return {key: result for key, result in all_results.items() if not result["unsafe"]}


@pytest.fixture(scope="module")
def attacks():
    """Those that are run: the file of each, and its name."""
    found = [(file.stem, attack["name"]) for file in FILES for attack in of(file)[:: EVERY * (1 + (file in RENDERED))]]
    return found + [(file, attack["name"]) for file, attack in ATTACKS if attack.get("unsafe")]


@pytest.fixture(scope="module")
def all_results(attacks):
    only = ("--only", *map("/".join, attacks))
    return {**run(FILES, *only), **run(FILES, "--heavy", *only)}


def test_there_are_enough_attacks_and_all_were_run(attacks, all_results):
    assert len(ATTACKS) >= 120
    assert set(all_results) == set(attacks)


@pytest.mark.parametrize("group", [file.stem for file in FILES])
def test_no_attack_runs_code(results, group):
    for (file, name), result in results.items():
        if file == group:
            assert not result["canary"], name
            assert result["seen"] == [], name
            assert result["heard"] == 0, name


@pytest.mark.parametrize("group", [file.stem for file in FILES])
def test_every_attack_ends_in_our_error(results, group):
    for (file, name), result in results.items():
        if file == group:
            wanted = ["loaded"] if result["loads"] else ["TemplateError"]
            wanted += ["loaded"] * (file == FROZEN.stem)  # within the bounds
            assert result["end"] in wanted, (name, result)


def test_no_attack_takes_long_or_much_memory(results):
    for key, result in results.items():
        assert result["cpu_s"] < MAX_CPU_S, (key, result["cpu_s"])
        assert result["grown_mib"] < MAX_GROWN_MIB, (key, result["grown_mib"])


def test_no_message_is_too_long_or_moves_a_cursor(results):
    for key, result in results.items():
        assert result["length"] <= MAX_MESSAGE_CHARS, (key, result["length"])
        assert all(char.isprintable() or char == "\n" for char in result["message"]), key


def test_the_witness_sees_what_the_same_templates_do_where_everything_is_allowed(tmp_path):
    """The attacks are real: without the policy they write the canary, and the witness reports it."""
    names = {
        "os.system",
        "subprocess.run",
        "exec",
        "open",
        "call with a refused partial",
        "a file of code beside the template",
    }
    chosen = [attack for _, attack in ATTACKS if attack["name"] in names]
    file = tmp_path / "some.yaml"
    file.write_text(yaml.safe_dump(chosen))
    for (_, name), result in run([file], "--unsafe").items():
        assert result["canary"], name
        assert result["seen"], name


def test_the_listener_hears_what_the_same_templates_open_where_everything_is_allowed(all_results):
    witnesses = [result for result in all_results.values() if result["unsafe"]]
    assert len(witnesses) >= 2
    for result in witnesses:
        assert result["heard"] > 0, result
        assert any("connect" in event for event in result["seen"]), result
