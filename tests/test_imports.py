"""What importing costs: looked at in `sys.modules` of a fresh interpreter, since time is noisy."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import forgather_mem

HEAVY = ("torch", "transformers", "yaml", "jinja2", "tensorboard", "google.protobuf", "numpy", "accelerate")


def loaded_by(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter holds after `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import forgather_mem") == []


@pytest.mark.parametrize(
    "module",
    ["report", "sample", "units", "formats.jsonl", "summary", "metrics", "triggers", "formats.ring", "launch.outcome"],
)
def test_what_the_waiting_parent_needs_loads_no_torch(module: str) -> None:
    assert not {"torch", "transformers", "tensorboard"} & set(loaded_by(f"import forgather_mem.{module}"))


def test_the_template_half_loads_no_torch() -> None:
    code = "from forgather_mem import ConfigEnvironment; ConfigEnvironment().load_from_string('a: !list [1]')"
    assert not {"torch", "transformers", "tensorboard", "accelerate"} & set(loaded_by(code))


def test_a_rule_can_be_written_without_torch() -> None:
    assert loaded_by("from forgather_mem import Rule, Every, AtEvent, Above; Every(steps=1)") == []


@pytest.mark.parametrize("name", forgather_mem.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(forgather_mem, name) is not None
    assert name in dir(forgather_mem)


def test_a_misspelt_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'load_callback'"):
        forgather_mem.load_callback  # noqa: B018


def test_no_module_is_forgotten_in_the_contracts_about_the_two_halves() -> None:
    root = Path(forgather_mem.__file__).parent
    settings = tomllib.loads((root.parent / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {contract["name"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}
    names = {path.stem for path in root.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    modules = {f"forgather_mem.{name}" for name in names if not name.startswith("_")}
    doors = {f"forgather_mem.{name}" for name in ("cli", "load", "launch", "config")}
    assert set(contracts["The memory half knows nothing of templates"]["source_modules"]) == modules - doors
    forbidden = set(contracts["The template half knows nothing of the memory half"]["forbidden_modules"])
    shared = {f"forgather_mem.{name}" for name in ("units", "errors", "config")}
    assert {name for name in forbidden if name.startswith("forgather_mem.")} == modules - shared
