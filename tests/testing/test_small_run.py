"""The trainings that the checks drive."""

import os
import time
from collections.abc import Mapping

import pytest

from forgather_mem.telemetry.events import EVENTS
from forgather_mem.telemetry.records import Moment, Sample
from forgather_mem.testing import check_work
from forgather_mem.testing.small_run import in_child, require


def test_a_work_sees_every_event_that_a_training_has() -> None:
    seen = set()

    def note(moment: Moment, sample: Sample) -> Mapping[str, float]:
        seen.add(moment.event)
        return {}

    check_work(lambda: note)
    assert seen == set(EVENTS) - {"init_end"}, "`train` of testing/small_run.py fires them"


def test_what_a_forked_child_says_or_how_it_ended_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forgather_mem.testing.small_run._CHILD_S", 1)
    assert in_child(lambda: None) is None
    assert in_child(lambda: str(os.getpid() != os.getppid())) == "True"
    assert in_child(lambda: str(1 / 0)) == "raises ZeroDivisionError('division by zero')"
    assert in_child(lambda: os._exit(3)) == "ends the process, by status 3"
    assert in_child(lambda: time.sleep(60)) == "hangs: not done after 1 seconds"


def test_a_requirement_holds_also_where_python_leaves_asserts_out() -> None:
    require(True, "never said")
    with pytest.raises(AssertionError, match=r"^said$"):
        require("", "said")
