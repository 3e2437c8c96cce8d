"""What importing costs: looked at in `sys.modules` of a fresh interpreter, since time is noisy."""

import tomllib
from pathlib import Path

import pytest

import forgather_mem
from tests.programs import printed_by

ROOT = Path(forgather_mem.__file__).parent.parent
LIBRARIES = "torch transformers tensorboard numpy accelerate google.protobuf"
HEAVY = f"{LIBRARIES} yaml jinja2"
OF_PARENT = (
    "reporting.build", "reporting.text", "telemetry.records", "telemetry.metrics", "telemetry.triggers", "units",
    "formats.jsonl", "formats.ring", "engine.summary", "launch.outcome",
)  # fmt: skip
NOT_LOADED = {
    "import forgather_mem": HEAVY,
    "from forgather_mem import Rule, Every, AtEvent, Above; Every(steps=1)": HEAVY,
    "from forgather_mem import ConfigEnvironment; ConfigEnvironment().load_from_string('a: !list [1]')": LIBRARIES,
    "\n".join(f"import forgather_mem.{module}" for module in OF_PARENT): f"{LIBRARIES} yaml",
    "import forgather_mem.reclaim.release": LIBRARIES,
    "sys.modules['IPython'] = None; import forgather_mem.notebook": "torch",
    "from forgather_mem.sinks import ConsoleSink, JsonlSink, TrainerLogSink, Capture": LIBRARIES,
    "from forgather_mem.sinks import TensorBoardSink": "torch tensorflow transformers numpy",
    "import forgather_mem.testing.pytest_plugin": "torch yaml",
    "import forgather_mem.system.cgroups": "typing pathlib re dataclasses",
}


@pytest.mark.parametrize("code", NOT_LOADED, ids=[f"what {number}" for number in range(len(NOT_LOADED))])
def test_what_begins_quickly_loads_nothing_that_takes_time(code: str) -> None:
    script = f"import sys; before = set(sys.modules)\n{code}\nprint(*set(sys.modules) - before)"
    assert not set(NOT_LOADED[code].split()) & set(printed_by(script).split())


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
