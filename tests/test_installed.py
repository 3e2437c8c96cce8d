"""The wheel: built, installed into a clean environment, and a shipped template loaded from it."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
TEMPLATES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "templates").rglob("*.yaml"))


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return next(folder.glob("*.whl"))


def test_the_wheel_has_the_templates_and_nothing_but_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    assert {f"forgather_mem/{name}" for name in TEMPLATES} <= set(names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"forgather_mem"}
    assert "forgather_mem/py.typed" in names


def test_a_clean_environment_loads_a_template_from_the_wheel(wheel: Path, tmp_path: Path) -> None:
    environment = tmp_path / "clean"
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    python = environment / "bin" / "python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    # The dependencies come from here; the package must not: an editable install's .pth is not read from PYTHONPATH.
    variables = {**os.environ, "PYTHONPATH": sysconfig.get_paths()["purelib"], "PYTHONWARNINGS": "ignore"}
    script = (
        "import forgather_mem, sys; from forgather_mem import load_callbacks; "
        "print(forgather_mem.__file__); "
        "print([type(c).__name__ for c in load_callbacks('callbacks/memory.yaml')])"
    )
    done = subprocess.run(
        [str(python), "-c", script], cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    where, callbacks = done.stdout.splitlines()
    assert Path(where).is_relative_to(environment)
    assert callbacks == "['SimpleGarbageCollector', 'ClearCacheCallback', 'TBMemoryLogger']"
    listed = subprocess.run(
        [str(environment / "bin" / "forgather-mem"), "ls"], cwd=tmp_path, env=variables, capture_output=True, text=True
    )
    assert "callbacks/memory.yaml" in listed.stdout, listed.stderr
