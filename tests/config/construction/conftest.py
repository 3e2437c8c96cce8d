"""A module of constructors that remember how they were called."""

import sys

import pytest

from tests.config.construction.parts import PARTS


@pytest.fixture
def parts(tmp_path, monkeypatch):
    (tmp_path / "parts_of_test.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    import parts_of_test

    yield parts_of_test
    del sys.modules["parts_of_test"]
