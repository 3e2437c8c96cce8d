"""A function in a forked child."""

from __future__ import annotations

import os
import signal

import pytest

from forgather_mem.errors import PlanError
from forgather_mem.planning.child import in_a_child


def test_the_child_may_change_what_it_likes() -> None:
    values = [1]
    assert in_a_child(lambda: values.append(2) or list(values)) == [1, 2]
    assert values == [1]


def test_it_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    in_a_child(lambda: print("of the child"))
    assert capfd.readouterr() == ("", "")


def test_an_error_comes_back_with_its_line() -> None:
    with pytest.raises(
        PlanError, match=r"test_child.py:\d+ \(.*ZeroDivisionError|test_child.py:\d+ .*division by zero"
    ):
        in_a_child(lambda: 1 // 0)


def test_a_refusal_comes_back_as_it_is() -> None:
    def refuse() -> None:
        raise PlanError("weights of 4 bits")

    with pytest.raises(PlanError, match=r"^weights of 4 bits$"):
        in_a_child(refuse)


def test_a_killed_child_is_told() -> None:
    with pytest.raises(PlanError, match="killed by SIGKILL"):
        in_a_child(lambda: os.kill(os.getpid(), signal.SIGKILL))
