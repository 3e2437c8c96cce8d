"""The budget of lines is kept by a count that knows code from prose, and fails above a row."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODULE = '''"""A module.

Two lines of prose.
"""

# a comment
LIMIT, OTHER = 3, 4.5


def double(x: int) -> int:
    """Twice."""
    return (
        2 * x
    )
'''


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with one module of five lines of code, of which its pyproject.toml says this number."""
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "budget.py", tmp_path / ".ci")
    (tmp_path / "forgather_mem" / "page" / "assets").mkdir(parents=True)
    (tmp_path / "forgather_mem" / "module.py").write_text(MODULE, encoding="utf-8")
    return tmp_path


def checked(project: Path, package: int, *words: str) -> subprocess.CompletedProcess[str]:
    """The check with this row for the package."""
    rows = "tests = 0\nbenchmarks = 0\njavascript = 0\nany = 0\ndictionaries_of_any = 0\nlong_functions = 0\n"
    text = f"[tool.forgather_mem.budget]\npackage = {package}\nnumeric_constants = 2\n{rows}"
    (project / "pyproject.toml").write_text(f"{text}[tool.forgather_mem.budget.folders]\ntop = 9\n", encoding="utf-8")
    command = [sys.executable, str(project / ".ci" / "budget.py"), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_prose_costs_nothing_and_a_line_too_many_fails(project: Path) -> None:
    assert checked(project, 5).returncode == 0
    over = checked(project, 4)
    assert over.returncode == 1
    assert "over the budget: package: 5, of 4" in over.stderr


def test_a_folder_without_a_row_and_a_constant_too_many_fail(project: Path) -> None:
    (project / "forgather_mem" / "new").mkdir()
    (project / "forgather_mem" / "new" / "module.py").write_text("SECONDS = -2 * 0.5\n", encoding="utf-8")
    over = checked(project, 9).stderr
    assert "package.new: 1, and no row" in over
    assert "numeric_constants: 3, of 2" in over


def test_rows_are_lowered_to_what_stands(project: Path) -> None:
    assert checked(project, 7, "--lower").returncode == 0
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    assert "package = 5\n" in text
    assert "top = 5\n" in text
