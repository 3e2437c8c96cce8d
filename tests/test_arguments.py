"""Every switch, number and share that our parts take is checked when one is built, and named with its value."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import pytest

from forgather_mem import actions, callbacks, probes, sinks
from forgather_mem.actions import Collect
from forgather_mem.callbacks import (
    ClearCacheCallback,
    GradLogger,
    MemoryCallback,
    SimpleGarbageCollector,
    TBMemoryLogger,
    TextgenCallback,
)
from forgather_mem.callbacks.base import RuleCallback
from forgather_mem.telemetry.rule import Rule
from forgather_mem.telemetry.triggers import Above, AtEvent, Below, Every
from forgather_mem.trackers import BatchMemoryProfiler, EpochMemoryMonitor, monitor_memory, track_memory

# By annotation
WRONG: dict[str, tuple[object, ...]] = {
    "bool": (1, "yes"),
    "int": (0, -1, 2.5, True, "3"),
    "int | None": (0, -1, 2.5, True, "3"),
    "float": (0, -1.0, "3", "80%", True),
}
NEEDED: dict[str, dict[str, Any]] = {"TextgenCallback": {"prompts": ["x"]}, "PrometheusSink": {"path": "a.prom"}}
# Tested in their own files, or any number will do
OTHERS = {"generation", "keep", "max_bytes", "vanishing", "exploding"}


def wrong_arguments() -> Iterator[tuple[type[Any], str, object]]:
    for module in (actions, callbacks, probes, sinks):
        for kind in (getattr(module, name) for name in module.__all__):
            if not inspect.isclass(kind) or kind is actions.HeapHold:
                continue
            for name, parameter in inspect.signature(kind).parameters.items():
                # What our own code alone sets need not be checked: the switches of probes, actions and sinks
                if name not in OTHERS and (parameter.annotation != "bool" or issubclass(kind, RuleCallback)):
                    more = (1.5,) if name.endswith("_frac") else ()
                    yield from ((kind, name, value) for value in (*WRONG.get(str(parameter.annotation), ()), *more))


def test_a_wrong_argument_is_named_when_its_part_is_built() -> None:
    tried = list(wrong_arguments())
    assert len(tried) > 150
    for kind, name, value in tried:
        if (kind, name) != (callbacks.TextgenCallback, "reset_peaks"):
            with pytest.raises(ValueError, match=rf"^{kind.__name__}\({name}={re.escape(repr(value))}\): "):
                kind(**{**NEEDED.get(kind.__name__, {}), name: value})


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Rule(Every(steps=1), []), r"name one probe or action, or more"),
        (lambda: Rule(Every(steps=1), ["collect"]), r"'collect'.*can't be"),
        (lambda: Rule(Every(steps=1), [Collect]), r"Collect \.\.\.\]\): this is a class; write Collect\(\)"),
        (lambda: Rule("step_end", [print]), r"give a trigger"),
        (lambda: Every(steps=0), r"Every\(steps=0\): a period is 1 step or more"),
        (lambda: Every(steps=1.5), r"Every\(steps=1.5\): a period is a whole number of steps"),
        (lambda: Every(), r"give either steps or epochs"),
        (lambda: Every(steps=1, epochs=1), r"give either steps or epochs"),
        (lambda: Every(epochs=1, at="evaluate"), r"epochs are counted at epoch_end"),
        (lambda: Every(steps=1, at="step_finish"), r"there is no event 'step_finish'; the events are: init_end"),
        (lambda: AtEvent(), r"name one event or more"),
        (lambda: Above("device/reservd_frac", 0.9), r"did you mean 'device/reserved_frac'\?"),
        (lambda: Above("host/rss_bytes", "2GB"), r"write 2GiB"),
        (lambda: Above("host/rss_bytes", "2GiB", rearm="3GiB"), r"rearm must not be above the limit"),
        (lambda: Below("host/rss_bytes", "2GiB", rearm="1GiB"), r"Below.*rearm must not be below the limit"),
        (lambda: Above("host/rss_bytes", float("nan")), r"must be finite"),
        (lambda: Above("device/reserved_frac", 92), r"limit 92 of .*a share is 1 at most; write 0.92 or '92%'"),
        (lambda: SimpleGarbageCollector(None), r"give collect_freq_epoch or collect_freq_step"),
        (lambda: TBMemoryLogger(metrics=["host", "devise"]), r"did you mean 'device'\?"),
        (lambda: TBMemoryLogger(metrics=[]), r"name one group or more"),
        (lambda: MemoryCallback(["collect"]), r"each is a Rule"),
        (lambda: MemoryCallback(3), r"rules=3\): give a list of rules"),
        (lambda: MemoryCallback(sinks="x"), r"sinks='x'\): give a list of sinks"),
        (lambda: TBMemoryLogger("runs"), r"summary_writer='runs'\).*use logging_dir"),
        (lambda: TBMemoryLogger(logging_dir=3), r"logging_dir=3\): give a folder's name"),
        (lambda: MemoryCallback([], ["tb"]), r"a sink has a method write"),
        (lambda: TextgenCallback(), r"prompts=None\): give a list of texts"),
        (lambda: TextgenCallback([]), r"prompts=\[\]\)"),
        (lambda: TextgenCallback([1]), r"prompts=\[1\]\)"),
        (lambda: TextgenCallback(["x"], generation_config={"temprature": 0.7}), r"'temprature'.*no such settings"),
        (lambda: TextgenCallback(None, ["x"], {"max_new_tokens": -1}), r"max_new_tokens"),
        (lambda: GradLogger(track_layers="layer.0"), r"track_layers='layer.0'\): give a list of names"),
        (lambda: GradLogger(track_layers=[""]), r"give a list of names"),
        (lambda: EpochMemoryMonitor(enabled="false"), r"EpochMemoryMonitor\(enabled='false'\): enabled is true or"),
        (lambda: BatchMemoryProfiler(enabled=1), r"BatchMemoryProfiler\(enabled=1\): enabled is true or false"),
        (lambda: EpochMemoryMonitor(verbose_batches=-1), r"verbose_batches=-1\): give a whole number of 0 or more"),
        (lambda: EpochMemoryMonitor(verbose_batches=2.5), r"verbose_batches=2.5\): give a whole number"),
        (lambda: track_memory(len), r"track_memory\(<built-in function len>\): give a label"),
        (lambda: monitor_memory(int), r"<class 'int'> is no function: decorate a function or a method"),
        (lambda: TBMemoryLogger(metrics="host"), r"metrics='host'\): give a list of groups: host, device"),
        (lambda: TBMemoryLogger(metrics=None), r"metrics=None\): give a list of groups"),
        (lambda: TBMemoryLogger(metrics=[["host"]]), r"metrics=\[\['host'\]\]\): the groups are host, device"),
        (lambda: TBMemoryLogger(metrics=["hots"]), r"metrics=\['hots'\]\): the groups are .*; did you mean 'host'"),
        (lambda: TBMemoryLogger(hparams="lr"), r"hparams='lr'\): give names and values"),
        (lambda: ClearCacheCallback(empty_cache_at="batch"), r"empty_cache_at='batch'\).*'epoch' or 'step'"),
        (lambda: ClearCacheCallback(when=0.9), r"when=0.9.*give a trigger"),
        (
            lambda: ClearCacheCallback(when=Every(steps=2), empty_cache_freq=2),
            r"empty_cache_freq=2\): give either when, or a period",
        ),
        (
            lambda: ClearCacheCallback(when=Every(steps=2), empty_cache_at="step"),
            r"empty_cache_at='step'.*give either when",
        ),
        (lambda: Rule(Every(steps=1), [Collect()], budget_frac=0), "give a share above 0"),
        (lambda: Rule(Every(steps=1), [Collect()], budget_frac=1.5), "give a share above 0"),
        (lambda: Rule(AtEvent("save"), [Collect()], budget_frac=0.01), "it stretches Every"),
        (lambda: Rule(Every(epochs=1), [Collect()], budget_frac=0.01), "it stretches Every"),
    ],
)
def test_what_else_is_wrong_is_said_when_it_is_built(build: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()
