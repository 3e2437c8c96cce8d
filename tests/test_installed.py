"""The wheel: built, installed into a clean environment, where templates load and the commands run."""

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


@pytest.fixture(scope="module")
def clean(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of programs of an environment that has the wheel and nothing else."""
    environment = tmp_path_factory.mktemp("clean")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    programs = environment / "bin"
    pip = [sys.executable, "-m", "pip", "--python", str(programs / "python"), "install", "--no-compile"]
    subprocess.run([*pip, "--quiet", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return programs


def run(folder: Path, program: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # The dependencies come from here; the package must not: an editable install's .pth is not read from PYTHONPATH.
    places = os.pathsep.join((str(ROOT / "tests" / "quick_start"), sysconfig.get_paths()["purelib"]))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("FORGATHER_MEM", "COLUMNS"))}
    variables = {**kept, "PYTHONPATH": places, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [str(program), *words], cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done


def output(folder: Path, program: Path, *words: str) -> str:
    return run(folder, program, *words).stdout


def test_a_clean_environment_loads_a_template_from_the_wheel(clean: Path, tmp_path: Path) -> None:
    script = (
        "import forgather_mem; from forgather_mem import load_callbacks; "
        "print(forgather_mem.__file__); "
        "print([type(c).__name__ for c in load_callbacks('callbacks/memory.yaml')])"
    )
    where, callbacks = output(tmp_path, clean / "python", "-c", script).splitlines()
    assert Path(where).is_relative_to(clean.parent)
    assert callbacks == "['SimpleGarbageCollector', 'ClearCacheCallback', 'TBMemoryLogger']"


def test_pytest_starts_under_run_where_all_warnings_are_errors(clean: Path, tmp_path: Path) -> None:
    """Unlike an editable one, this installation lists all its files, whose packages pytest rewrites."""
    (tmp_path / "test_one.py").write_text("def test_one():\n    assert 1 == 1\n")
    words = ["-m", "pytest", "-W", "error", "-p", "no:cacheprovider", "test_one.py"]
    assert " 1 passed in " in output(tmp_path, clean / "forgather-mem", "run", *words)


def test_the_commands_run_from_the_wheel(clean: Path, tmp_path: Path) -> None:
    """As a person types them; the demo is a real training in processes of its own, whose leak is named."""
    ours = clean / "forgather-mem"
    assert "callbacks/memory.yaml" in output(tmp_path, ours, "ls")
    assert output(tmp_path, ours, "check", "callbacks/memory.yaml").startswith(
        "callbacks/memory.yaml: no problems found"
    )
    said = run(tmp_path, ours, "demo", "--steps", "128").stderr
    assert "== forgather-mem == demo.py == 128 steps in " in said
    assert "\nLEAK   tensors on the host grow 1.5 MiB a step" in said
    assert "  held by   MyTrainer.kept_logits     list, +1 item a step, 128 items, 191." in said  # one is smaller
    script = (tmp_path / "out/demo.py").read_text().splitlines()
    line = 1 + next(number for number, text in enumerate(script) if "kept_logits.append" in text)
    assert f"  added at  demo.py:{line}\n            {script[line - 1].strip()}\n" in said
    assert said.endswith("forgather-mem: the page is in out/demo.html\n")
    assert "MyTrainer.kept_logits keeps 1.5 MiB a step" in (tmp_path / "out/demo.html").read_text()
    assert "== 128 steps" in output(tmp_path, ours, "report", "out")
    output(tmp_path, ours, "report", "out", "--html", "page.html")
    assert "where the memory went" in (tmp_path / "page.html").read_text(encoding="utf-8")
