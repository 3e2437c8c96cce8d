"""Four ranks under torchrun, one of which ends by itself: it is named, however loud the others are."""

from pathlib import Path

import pytest

from tests.launch.commands import ROOT, RUN, run, taken_apart
from tests.launch.test_trainings import TORCHRUN

SCRIPT = str(ROOT / "tests/launch/ranks_die.py")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("how", "line"),
    [
        ("SIGKILL", "RANK 1 OF 4 FAILED FIRST, at step 12, data."),
        ("SIGSEGV", "RANK 1 OF 4 FAILED FIRST, at step 12, data."),
        ("raises", "RANK 1 OF 4 FAILED FIRST, after 11 steps: ValueError: no such row."),
        ("exits", "RANK 1 OF 4 FAILED FIRST, at step 12, data: exit code 3."),
        ("memory", "OUT OF MEMORY   host, rank 1, step 12, data"),
    ],
)
def test_of_four_ranks_the_one_that_ended_by_itself_is_named(how: str, line: str, tmp_path: Path) -> None:
    four = [word.replace("per_node=2", "per_node=4") for word in TORCHRUN]
    result = taken_apart(run([*RUN, *four, SCRIPT, how], tmp_path))
    assert result.plain.code == 1
    assert line in result.report.splitlines()
