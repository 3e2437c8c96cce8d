"""What users build on stays as it is: names, signatures, help texts, error texts, the report's JSON.

`UPDATE_SNAPSHOTS=1 pytest tests/test_promises.py` writes `tests/snapshots` anew: a changed line there is a change
that users see, so it belongs into CHANGELOG.md.
"""

import importlib
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from forgather_mem import ConfigEnvironment, TemplateError, callbacks
from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.cli.app import COMMANDS, dispatch
from tests.reporting.report_fixtures import all_well, killed, leaking, out_of_memory

SNAPSHOTS = Path(__file__).parent / "snapshots"
CALLBACKS = [name for name in callbacks.__all__ if issubclass(getattr(callbacks, name), RuleCallback)]
HOOKS = (
    "ClearCacheHook", "ClearCacheHookConfig", "PipelineHookArgs", "PipelineHooks", "PipelineHooksConfig", "HookContext",
)  # fmt: skip
PROMISED = {
    "forgather_mem": (
        "attach", "plan", "load_callbacks", "ConfigEnvironment", "Policy", "TemplateError", "Rule", "Every", "AtEvent",
        "Above", "Below", "MemoryMonitor", "MemoryTracker", "EpochMemoryMonitor", "BatchMemoryProfiler", "track_memory",
        "monitor_memory", "release_memory", "cleanup", "cleanup_after", "retry_on_oom", "TrainingLoop",
    ),
    "forgather_mem.callbacks": CALLBACKS,
    "forgather_mem.callbacks.hooks": HOOKS,
    "forgather_mem.callbacks.lightning": ("LightningCallbacks",),
    "forgather_mem.sinks": ("TensorBoardSink", "JsonlSink", "ConsoleSink", "TrainerLogSink", "Capture"),
    "forgather_mem.actions": ("Collect", "ClearCache", "TrimHost"),
    "forgather_mem.probes": ("HostProbe", "DeviceProbe", "PhaseProbe", "PythonProbe", "TensorProbe", "WorkerProbe"),
    "forgather_mem.triggers": ("Every", "AtEvent", "Above", "Below"),
    "forgather_mem.trackers": (
        "MemoryMonitor", "MemoryTracker", "EpochMemoryMonitor", "BatchMemoryProfiler", "track_memory", "monitor_memory",
    ),
    "forgather_mem.demo": ("StdlibText",),
    "forgather_mem.notebook": ("load_ipython_extension",),
    "forgather_mem.testing": ("check_sink", "check_work"),
}  # fmt: skip


def compare(name: str, text: str) -> None:
    """`text` is what the snapshot of this name says."""
    path = SNAPSHOTS / name
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} has changed, a promise to users"


def described(module: str, name: str) -> Iterator[str]:
    """The name's signature, and those of its public methods."""
    thing = getattr(importlib.import_module(module), name)
    yield f"{module}.{name}{signature(thing)}"
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        for method in sorted(vars(thing)):
            if not method.startswith("_") and callable(getattr(thing, method)):
                yield f"    .{method}{signature(getattr(thing, method))}"


def signature(thing: Callable[..., Any]) -> str:
    try:
        found = inspect.signature(thing)
    except ValueError:
        return "(...)"
    parameters = [parameter.replace(annotation=parameter.empty) for parameter in found.parameters.values()]
    return re.sub(r" at 0x\w+", "", str(found.replace(parameters=parameters, return_annotation=found.empty)))


def test_every_promised_name_has_the_signature_that_it_had() -> None:
    lines = [line for module, names in PROMISED.items() for name in names for line in described(module, name)]
    compare("api.txt", "\n".join(lines) + "\n")


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_reads_as_it_did(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")
    assert dispatch([*command.split(), "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    compare(f"help_{command or 'all'}.txt", "\n".join(line.rstrip() for line in lines) + "\n")


REPORTS = {"all_well": all_well, "leaking": leaking, "out_of_memory": out_of_memory, "killed": killed}


@pytest.mark.parametrize("name", REPORTS)
def test_the_reports_json_has_the_keys_and_values_that_it_had(name: str) -> None:
    report = REPORTS[name]()
    report["run"]["versions"] = {}
    compare(f"report_{name}.json", json.dumps(report, indent=1) + "\n")


def test_errors_of_templates_read_as_they_did(tmp_path: Path, own_folder: None) -> None:
    cases = yaml.safe_load((SNAPSHOTS / "bad_templates.yaml").read_text(encoding="utf-8"))
    told = []
    for case in cases:
        with pytest.raises(TemplateError) as caught:
            ConfigEnvironment(tmp_path).load_from_string(case).construct()
        told.append(f"--- {case.rstrip()}\n{caught.value}\n")
    assert len(told) > 30
    compare("template_errors.txt", "\n".join(told).replace(str(tmp_path), "FOLDER"))
