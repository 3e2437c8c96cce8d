"""The examples on giving memory back, run as a reader runs them."""

import os
import re
from pathlib import Path

import pytest

from tests.forked import Forked

EXAMPLES = Path(__file__).parents[2] / "examples"


pytestmark = pytest.mark.fresh


def run(name: str, *arguments: str) -> str:
    code, out, err = Forked(EXAMPLES / name, arguments, EXAMPLES, os.environ).wait()
    assert code == 0, err
    return out


def test_a_service_that_cleans_up_stays_at_its_size() -> None:
    text = run("service_cleanup.py", "25")
    without, with_it = (int(number) for number in re.findall(r"^with\w*: +([+-]\d+) MiB$", text, re.M))
    assert without > 30  # five models of 12 MiB
    assert with_it < without / 2
    assert text.count("cleanup_after: Service.answer, call ") == 2


@pytest.mark.soak
def test_the_scenarios_of_the_documents_table_are_as_it_says() -> None:
    lines = run("when_to_clean_up.py", "services", "small", "failed").splitlines()[1:]
    assert len(lines) == 3
    for line in lines:
        without, with_it, verdict = line[38:].split()
        assert int(without) > 60
        assert int(with_it) < 20
        assert verdict == "yes"


def test_a_failed_trial_of_a_search_leaves_nothing() -> None:
    pytest.importorskip("optuna", reason="optuna is not installed")
    assert run("search_cleanup.py").splitlines()[-1].endswith("1 trial failed; 1 of 4 models alive")
