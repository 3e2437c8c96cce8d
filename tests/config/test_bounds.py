"""Whatever stands in a template, the answer comes within a second of CPU and 200 MB, or says where it stopped.

A part of the corpus (bounds.yaml) is run here through a load and a construction; tests/soak runs all of it,
through every command, with the bound on time.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

HERE = Path(__file__).parent
CORPUS = yaml.load((HERE / "bounds.yaml").read_text(), yaml.CSafeLoader)
LARGE = ("many %TAG lines", "many anchors and an alias like them", "a long key above many lists", "many callbacks")
SMALL = [case["name"] for case in CORPUS if "repeat" not in case and case["name"] not in LARGE]
CASES = [*SMALL[::15], *LARGE]
RUNNER = """
import json, sys
sys.path.insert(0, {here!r})
import bounds
from tests.warm_renderer import share
share()
bounds.warm_up()
names = json.loads(sys.stdin.read())
for case in [case for case in bounds.corpus() if case["name"] in names]:
    commands = ["construct", *["check"] * ("variables" in case)]
    answer = bounds.answer(bounds.written_out(case), case.get("variables"), commands=commands)
    print(json.dumps([case["name"], answer]), flush=True)
"""


@pytest.fixture(scope="module")
def answers():
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", RUNNER.format(here=str(HERE))]
    done = subprocess.run(
        command, input=json.dumps(CASES), capture_output=True, text=True, env=environment, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(map(json.loads, done.stdout.splitlines()))


def test_every_case_was_run(answers):
    assert len(CORPUS) >= 150
    assert set(answers) == set(CASES)


def test_no_case_takes_much_memory_or_ends_in_another_error(answers):
    sys.path.insert(0, str(HERE))
    import bounds

    for name, answer in answers.items():
        # Time is the soak test's: a busy machine makes a second of CPU longer.
        assert not bounds.faults(answer, max_cpu_s=5), name


def test_a_refusal_says_where(answers):
    for name, answer in answers.items():
        for command in answer["commands"].values():
            if command["end"] == "TemplateError":
                assert command["message"].startswith("t.yaml:"), (name, command["message"])
