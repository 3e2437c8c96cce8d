"""The first training of a process is known, and so is what was before it."""

from __future__ import annotations

import os
import sys

import pytest

from forgather_mem.probes.startup import _Startup


class Training: ...


@pytest.fixture(autouse=True)
def nobody_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(sys, "ps1", raising=False)  # another test may have made a shell


def test_only_the_first_training_has_a_startup_also_when_it_is_gone() -> None:
    startup, first = _Startup(), Training()
    assert startup.was_before(first)
    del first
    assert not startup.was_before(Training())


def test_a_forked_process_has_a_startup_of_its_own() -> None:
    startup, first, second = _Startup(), Training(), Training()
    assert startup.was_before(first)
    child = os.fork()
    if not child:
        os._exit(0 if startup.was_before(second) and not startup.was_before(first) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert startup.was_before(first)


def test_where_somebody_types_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert not _Startup().was_before(Training())
