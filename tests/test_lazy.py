"""Public names are listed once, in a stub, and loaded on first use."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import forgather_mem

ROOT = Path(forgather_mem.__file__).parent
PACKAGES = ["forgather_mem", "forgather_mem.callbacks", "forgather_mem.sinks"]


@pytest.mark.parametrize("package", PACKAGES)
def test_each_name_is_there_listed_and_of_the_module_that_the_stub_names(package: str) -> None:
    module = importlib.import_module(package)
    lines = [line.split() for line in Path(f"{module.__file__}i").read_text().splitlines() if line.startswith("from ")]
    assert lines
    for _, source, _, name, _, shown_as in lines:
        assert name == shown_as, "a stub shows `import X as X` only"
        assert getattr(module, name) is getattr(importlib.import_module(source), name)
        assert name in module.__all__
        assert name in dir(module)


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'forgather_mem' has no attribute 'MemoryMonitr'"):
        forgather_mem.MemoryMonitr  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'attch'"):
        from forgather_mem import attch  # type: ignore[attr-defined]  # noqa: F401


def test_from_an_archive_too(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "ours.zip", "w") as archive:
        for path in (path for end in ("py", "pyi", "txt") for path in ROOT.rglob(f"*.{end}")):
            archive.write(path, Path("forgather_mem") / path.relative_to(ROOT))
    code = "import forgather_mem; print(forgather_mem.__file__, forgather_mem.Every(steps=3).steps)"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env={"PYTHONPATH": str(tmp_path / "ours.zip")}, capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.stdout.split() == [str(tmp_path / "ours.zip" / "forgather_mem" / "__init__.py"), "3"], done.stderr
