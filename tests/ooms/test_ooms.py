"""Some of the scripts that run out of memory; all are run by benchmarks/ooms.py and `make soak`."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.forked import Forked
from tests.launch.commands import ROOT, environment
from tests.launch.forked_run import run_forked

BENCHMARK = ROOT / "benchmarks" / "ooms.py"


@pytest.fixture(scope="module")
def ooms() -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_of_ooms", BENCHMARK)
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def forked(words: list[str], folder: Path) -> tuple[int, str]:
    """For `start`; a Trainer's script is started as a real command."""
    folder.mkdir()
    result = run_forked(words, folder, PYTHONPATH=str(ROOT))
    return result.code, traceback_of(result.err)


def traceback_of(stderr: str) -> str:
    return sys.modules["benchmark_of_ooms"].traceback_in(stderr)


@pytest.mark.slow
@pytest.mark.fresh
@pytest.mark.parametrize("name", ["data", "plain_loop"])
def test_it_is_explained_and_ends_as_alone(ooms: ModuleType, name: str, tmp_path: Path) -> None:
    code, _, said = Forked(ooms.SCRIPTS / f"{name}.py", [], tmp_path, environment()).wait()
    found = ooms.outcome_of(name, plain=False, advice=False, start=forked)
    assert found.told in found.phases
    assert found.requested_is_exact
    assert (code, traceback_of(said)) == found.watched, "exit code and traceback"
    assert found.report["run"]["end"] == "oom"
    assert found.report["run"]["exit_code"] == 1
    assert found.report["advice"]


@pytest.mark.fresh
@pytest.mark.parametrize(
    ("name", "start"), [("startup", forked), pytest.param("optimizer", None, marks=pytest.mark.soak)]
)
def test_phase_and_size_are_right_at_a_real_limit(ooms: ModuleType, name: str, start: Any) -> None:
    found = ooms.outcome_of(name, plain=False, advice=False, start=start)
    assert found.told in found.phases
    assert found.requested_is_exact
    assert found.watched[0] == 1
    assert found.oom["limit"] in ("data (RLIMIT_DATA)", "address space (RLIMIT_AS)")
