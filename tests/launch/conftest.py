"""A folder to run commands in, with a package of the name transformers that fails."""

from pathlib import Path

import pytest

from tests.launch.scripts import BROKEN_TRANSFORMERS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in BROKEN_TRANSFORMERS.items():
        (tmp_path / "broken" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "broken" / name).write_text(text)
    return tmp_path
