"""The shipped templates: each loads under the default policy, and a child changes one callback by its key."""

import re
from pathlib import Path
from typing import Any

import pytest

import forgather_mem
from forgather_mem import ConfigEnvironment, load_callbacks
from forgather_mem.actions import Adaptive
from forgather_mem.callbacks import ClearCacheCallback, MemoryCallback, SimpleGarbageCollector, TBMemoryLogger
from forgather_mem.telemetry.rule import Rule
from forgather_mem.triggers import AtEvent

LIBRARY = Path(forgather_mem.__file__).parent.parent / "templates"
SHIPPED = sorted(str(file.relative_to(LIBRARY)) for file in LIBRARY.rglob("*.yaml"))


def child(folder: Path, text: str, parent: str = "callbacks/memory.yaml") -> list[Any]:
    (folder / "mine.yaml").write_text(f'-- extends "{parent}"\n\n{text}')
    return load_callbacks("mine.yaml", searchpath=folder)


def told(rules: tuple[Rule, ...]) -> list[Any]:
    return [
        (rule.name, rule.when, [(type(work), getattr(work, "reading", None)) for work in rule.do]) for rule in rules
    ]


def head_of(name: str) -> str:
    text = (LIBRARY / name).read_text()
    found = re.match(r"(?:##.*\n)+", text)
    assert found, f"the first lines of {name} say what it is, and its variables"
    theirs = re.findall(r"those of (\S+\.yaml) and of (\S+\.yaml)", found[0])
    return found[0] + "".join(head_of(other) for pair in theirs for other in pair)


def test_the_first_lines_of_a_template_say_what_it_is_and_a_page_what_it_is_for() -> None:
    pages = "".join(page.read_text() for page in (LIBRARY.parent / "docs").rglob("*.md"))
    for name in SHIPPED:
        text, head = (LIBRARY / name).read_text(), head_of(name)
        assert len(head.splitlines()[0]) > 20, name
        assert f"{name}" in pages, f"a page of docs says what {name} is for"
        read = {*re.findall(r"{{-? *([a-z_]\w*)(?![\w(])", text), *re.findall(r"-- if (?:not )?(\w+)", text)}
        unknown = [one for one in read - {*re.findall(r"-- set (\w+)", text)} if not re.search(rf"\b{one}\b", head)]
        assert not unknown, f"'## Variables:' of {name} names {unknown}"


@pytest.mark.parametrize("name", [name for name in SHIPPED if name.startswith("callbacks/")])
def test_every_shipped_list_of_callbacks_loads_under_the_default_policy(name: str) -> None:
    callbacks = load_callbacks(name)
    assert isinstance(callbacks, list)
    assert all(hasattr(callback, "on_step_end") for callback in callbacks)
    page = (LIBRARY.parent / "docs/callbacks.md").read_text()
    keys = ConfigEnvironment().load(name).graph.target("trainer_callbacks").entries
    assert [key for key in keys if f"`{key}`" not in page] == [], "docs/callbacks.md lists the keys, to be extended by"


def test_the_base_template_is_an_empty_list() -> None:
    assert load_callbacks("callbacks/base_callbacks.yaml") == []


def test_memory_collects_where_a_pause_does_no_harm_and_backs_off_clears_and_logs() -> None:
    collector, clearer, logger = load_callbacks("callbacks/memory.yaml")
    assert type(collector) is SimpleGarbageCollector
    assert (collector.collect_freq_epoch, collector.collect_freq_step, collector.verbose) == (None, None, False)
    (rule,) = collector.rules
    assert repr(rule.when) == repr(AtEvent("evaluate", "save", "train_end"))
    assert isinstance(rule.do[0], Adaptive)
    assert isinstance(clearer.rules[0].do[0], Adaptive)
    assert type(clearer) is ClearCacheCallback
    assert (clearer.empty_cache_at, clearer.empty_cache_freq, clearer.garbage_collection) == ("epoch", 1, False)
    assert type(logger) is TBMemoryLogger
    assert told(logger.rules) == told(TBMemoryLogger().rules)


def test_memory_takes_its_variables() -> None:
    collector, clearer, logger = load_callbacks(
        "callbacks/memory.yaml", collect_freq_epoch=3, verbose=True, empty_cache_at="step", empty_cache_freq=10,
        every_steps=5, logging_dir="some where: else",
    )  # fmt: skip
    assert (collector.collect_freq_epoch, collector.verbose) == (3, True)
    assert (clearer.empty_cache_at, clearer.empty_cache_freq) == ("step", 10)
    assert logger.rules[0].when.every_steps == 5
    assert logger.sinks[0].logging_dir == "some where: else"


def test_a_child_replaces_one_callback_by_its_key_and_leaves_the_others_in_their_places(tmp_path: Path) -> None:
    replaced = """\
[callback_list]
    == super()
    clear_cache: !singleton:forgather_mem.callbacks:ClearCacheCallback
        empty_cache_at: step
        empty_cache_freq: 100
"""
    collector, clearer, logger = child(tmp_path, replaced)
    assert (type(collector), type(logger)) == (SimpleGarbageCollector, TBMemoryLogger)
    assert (clearer.empty_cache_at, clearer.empty_cache_freq) == ("step", 100)


def test_a_child_drops_one_callback_by_setting_its_key_to_null(tmp_path: Path) -> None:
    callbacks = child(tmp_path, "[callback_list]\n    == super()\n    gc: null\n")
    assert [type(callback) for callback in callbacks] == [ClearCacheCallback, TBMemoryLogger]


def test_a_child_adds_a_callback_and_what_it_depends_on(tmp_path: Path) -> None:
    added = """\
[callback_dependencies]
    == super()
.define: &clear !singleton:forgather_mem.actions:ClearCache

[callback_list]
    == super()
    under_pressure: !singleton:forgather_mem.callbacks:MemoryCallback
        rules:
            - !singleton:forgather_mem:Rule
                when: !singleton:forgather_mem:Above { name: device/reserved_frac, limit: 0.92 }
                do: [ *clear ]
"""
    *memory, mine = child(tmp_path, added)
    assert len(memory) == 3
    assert type(mine) is MemoryCallback
    assert mine.rules[0].when.limit.value == 0.92


def test_watch_writes_out_what_the_memory_callback_does_without_arguments() -> None:
    written = load_callbacks("callbacks/watch.yaml")[0]
    default = MemoryCallback()
    assert type(written) is MemoryCallback
    assert told(written.rules) == told(default.rules)
    assert [(type(sink), sink.key) for sink in written.sinks] == [(type(sink), sink.key) for sink in default.sinks]


def test_watch_changes_nothing_in_the_process_it_watches() -> None:
    for callback in load_callbacks("callbacks/watch.yaml"):
        works = [work for rule in getattr(callback, "rules", ()) for work in rule.do]
        assert not [work for work in works if getattr(work, "books", "")]
        assert not [work for work in works if getattr(work, "host_mark", False)]
        assert not [work for work in works if getattr(work, "reset_peaks", False) and getattr(work, "device", True)]


def test_the_demo_is_made_of_yaml_under_the_default_policy_down_to_the_trainer(tmp_path: Path) -> None:
    config = ConfigEnvironment().load(
        "configs/demo.yaml", steps=7, hidden_size=16, num_layers=1, output_dir=str(tmp_path)
    )
    assert {"model", "train_dataset", "eval_dataset", "training_args", "trainer_callbacks", "trainer"} <= set(
        config.targets
    )
    trainer = config["trainer"]
    assert trainer.args.max_steps == 7
    assert trainer.args.output_dir == str(tmp_path)
    assert trainer.model.config.hidden_size == 16
    assert len(trainer.train_dataset) == 3 * trainer.args.per_device_train_batch_size
    assert [type(callback) for callback in trainer.callback_handler.callbacks if isinstance(callback, TBMemoryLogger)]


def test_the_demo_trains_with_another_template_of_callbacks(tmp_path: Path) -> None:
    variables = {"callbacks": "callbacks/watch.yaml", "logging_dir": str(tmp_path)}
    callbacks = ConfigEnvironment().load("configs/demo.yaml", **variables)
    kinds = [type(callback).__name__ for callback in callbacks.construct("trainer_callbacks")]
    assert kinds[0] == "MemoryCallback"
    assert "SimpleGarbageCollector" not in kinds
