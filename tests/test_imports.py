"""What importing costs: looked at in `sys.modules` of a fresh interpreter, since time is noisy."""

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import forgather_mem

ROOT = Path(forgather_mem.__file__).parent.parent
HEAVY = ("torch", "transformers", "yaml", "jinja2", "tensorboard", "google.protobuf", "numpy", "accelerate")


def loaded_by(code: str) -> list[str]:
    """Which of the heavy packages a fresh interpreter holds after `code`."""
    script = f"{code}\nimport json, sys\nprint(json.dumps([m for m in {HEAVY!r} if m in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded: list[str] = json.loads(done.stdout.splitlines()[-1])
    return loaded


def test_importing_the_package_loads_nothing_heavy() -> None:
    assert loaded_by("import forgather_mem") == []


def test_what_the_waiting_parent_needs_loads_no_torch() -> None:
    of_parent = (
        "reporting.build reporting.text telemetry.records telemetry.metrics telemetry.triggers units formats.jsonl"
    )
    of_parent += " formats.ring engine.summary launch.outcome"
    code = "\n".join(f"import forgather_mem.{module}" for module in of_parent.split())
    assert not {"torch", "transformers", "tensorboard"} & set(loaded_by(code))


def test_the_template_half_loads_no_torch() -> None:
    code = "from forgather_mem import ConfigEnvironment; ConfigEnvironment().load_from_string('a: !list [1]')"
    assert not {"torch", "transformers", "tensorboard", "accelerate"} & set(loaded_by(code))


def test_a_rule_can_be_written_without_torch() -> None:
    assert loaded_by("from forgather_mem import Rule, Every, AtEvent, Above; Every(steps=1)") == []


def contracts() -> dict[str, dict[str, list[str]]]:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {contract["name"]: contract for contract in settings["tool"]["importlinter"]["contracts"]}


def test_every_part_of_the_package_has_its_layer() -> None:
    layers = contracts()["Imports go down only; the packages of one line don't import each other"]["layers"]
    assert len(layers) <= 12
    named = {name for row in layers for name in row.split(" | ")}
    tops = {name.split(".")[1] for name in named}
    assert tops == {name for name in parts() if not name.startswith("_")} - {"config"}


def test_no_part_is_forgotten_in_the_contracts_about_the_two_halves() -> None:
    parts_of_memory = {f"forgather_mem.{name}" for name in parts() if not name.startswith("_")}
    doors = {f"forgather_mem.{name}" for name in ("cli", "load", "launch", "config")}
    assert set(contracts()["The memory half knows nothing of templates"]["source_modules"]) == parts_of_memory - doors
    forbidden = set(contracts()["The template half knows nothing of the memory half"]["forbidden_modules"])
    shared = {f"forgather_mem.{name}" for name in ("units", "errors", "files", "config")}
    assert {name for name in forbidden if name.startswith("forgather_mem.")} == parts_of_memory - shared


def parts() -> set[str]:
    """What lies directly in the package: modules and packages."""
    root = Path(forgather_mem.__file__).parent
    return {path.stem for path in root.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
