"""What the table offers: for each place something, the smallest change first, and nothing that is set already."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from forgather_mem.diagnose.oom import memory_in_use, remedies
from forgather_mem.diagnose.oom.context import AHEAD, RunSettings
from forgather_mem.diagnose.oom.explanation import explained
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import NCCL_SHM, OF_TORCH, PINNED
from forgather_mem.diagnose.oom.remedies import REMEDIES, may_help, plannable, smaller_batches
from forgather_mem.engine import settings
from forgather_mem.heap.census import Holding, Kind
from forgather_mem.heap.failed_call import CallbackFailure
from forgather_mem.telemetry.events import PHASES
from forgather_mem.telemetry.report import Change
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.failures import failure_of

ARGUMENTS = {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "optim": "adamw_torch"}
BATCH_4 = "per_device_train_batch_size=4, gradient_accumulation_steps=2"
BATCH_2 = "per_device_train_batch_size=2, gradient_accumulation_steps=4"
ROWS = Holding(name="`rows`", num_bytes=GIB, collects=True)
GRAPH = Holding(name="`teacher`", kind="untrained", num_bytes=GIB)
NO_ROOM = {"used_bytes": 7 * GIB, "free_bytes": GIB, "census": [ROWS], "trained_bytes": 4 * GIB}
COPY = CallbackFailure(callback="Keeps.on_save", line="train.py:9", source="", copied_bytes=MIB)


def case_of(phase: str, arguments: dict[str, Any] | None = None, length: int | None = None, **settings: Any) -> Failure:
    """As it is planned."""
    chosen = RunSettings(arguments={**ARGUMENTS, **(arguments or {})}, **settings)
    return failure_of(phase=phase, settings=chosen, rows=8, length=length, is_planned=True)


def texts(phase: str, arguments: dict[str, Any] | None = None, **facts: Any) -> list[str]:
    """As a report names them."""
    known = {name: facts.pop(name) for name in ("has_metrics", "is_trainers", "returned") if name in facts}
    settings = RunSettings(arguments={**ARGUMENTS, **(arguments or {})}, can_checkpoint=True, **known)
    failure = failure_of(**{"where": "host", "phase": phase, "step": 3, "rows": 8, "is_first": True, **facts})
    return [change.text for change in explained(replace(failure, settings=settings))[1]]


@pytest.mark.parametrize(
    ("rows", "accumulation", "sizes"),
    [
        (8, 1, [(4, 2), (2, 4), (1, 8)]),
        (8, 4, [(4, 8), (2, 16), (1, 32)]),
        (6, 1, [(3, 2), (2, 3), (1, 6)]),
        (7, 1, [(1, 7)]),
        (1, 4, []),
    ],
)
def test_a_step_in_smaller_parts_has_as_many_rows(rows: int, accumulation: int, sizes: list[tuple[int, int]]) -> None:
    case = case_of("forward", {"per_device_train_batch_size": rows, "gradient_accumulation_steps": accumulation})
    assert [tuple(change.set.values()) for change in smaller_batches(case)] == sizes
    summed = replace(case, settings=replace(case.settings, is_trainers=False))
    summed.census = [replace(GRAPH, kind="activations", num_passes=3)]
    assert smaller_batches(summed) == [], "one backward pass goes through several"


# For each row of the table a place where it is offered
PLACES: list[tuple[str, dict[str, Any], str]] = [
    ("forward", {}, BATCH_2),
    ("backward", {}, "gradient_checkpointing=True"),
    ("optimizer", {}, "optim='adafactor'"),
    ("data", {"arguments": {"dataloader_num_workers": 4}}, "dataloader_num_workers=0"),
    (
        "forward",
        {"in_use": {AHEAD: GIB}, "arguments": {"loader.prefetch_factor": "16"}},
        "dataloader_prefetch_factor=2",
    ),
    ("evaluate", {"arguments": {"per_device_eval_batch_size": 8}}, "per_device_eval_batch_size=2"),
    ("evaluate", {"has_metrics": True}, "prediction_loss_only=True"),
    ("evaluate", {"has_metrics": True, "returned": "output_attentions"}, "model.config.output_attentions = False"),
    ("generate", {}, "generate from one prompt at a time"),
    ("generate", {"each_prompt": ("num_beams", 4)}, "num_beams=1"),
    ("save", {}, "save_strategy='no'"),
    ("save", {"is_trainers": False}, "torch.save to a file, of the model, then of the optimizer"),
    ("save", {"frames": ("_save_optimizer_and_scheduler",)}, "save_only_model=True"),
    ("resume", {}, "start from the checkpoint's weights"),
    ("startup", {"functions": ("Module.__init__",)}, "the weights in bfloat16"),
    ("save", {"callback": COPY}, "torch.save to a file in Keeps.on_save (train.py:9), not a copy"),
    ("forward", {"kind": NCCL_SHM}, "a larger /dev/shm"),
    ("data", {"kind": PINNED}, "dataloader_pin_memory=False"),
    ("forward", {"census": [GRAPH]}, "torch.no_grad() around what `teacher` computes"),
    ("evaluate", {"census": [replace(GRAPH, kind="activations", num_passes=1)]}, "torch.no_grad() around the eval"),
    ("backward", {"census": [replace(GRAPH, kind="earlier")]}, "detach() what `teacher` keeps, or backward()"),
    ("backward", {"census": [replace(GRAPH, kind="earlier", num_passes=2)]}, "backward() after each pass, without"),
    ("backward", NO_ROOM, "fewer trained parameters"),
    ("evaluate", {"where": "device", "has_metrics": True}, "eval_accumulation_steps=1"),
    ("data", {"line": "train.py:9", "requested_bytes": GIB, "used_bytes": GIB}, "less at once at train.py:9: 1.0 GiB"),
    ("backward", {"census": [replace(GRAPH, kind="activations", num_passes=3)]}, "backward() after each pass"),
    ("save", {"census": [replace(GRAPH, kind="object", is_unused=True)]}, "delete `teacher` when it is no longer read"),
    ("optimizer", {"census": [replace(GRAPH, kind="copy", num_items=3)]}, "keep less in `teacher`: 1.0 GiB"),
    ("other", {"census": (ROWS,), "used_bytes": 2 * GIB}, "keep less in `rows`: 1.0 GiB"),
    (
        "evaluate",
        {"census": (replace(ROWS, is_joined=True),)},
        "keep a running count or sum instead of `rows`: 1.0 GiB",
    ),
    ("other", {"census": (ROWS,), "used_bytes": 2 * GIB, "frames": ("main",)}, "use `rows` again, or delete it before"),
    ("forward", {"where": "device", "kind": f"CUDA {OF_TORCH}", "reserved_unused_bytes": GIB}, "PYTORCH_CUDA_ALLOC_CO"),
]


@pytest.mark.parametrize(("phase", "facts", "text"), PLACES, ids=lambda value: value if isinstance(value, str) else "")
def test_for_each_place_there_is_something_to_do(phase: str, facts: dict[str, Any], text: str) -> None:
    told = texts(phase, **facts)
    assert any(one.startswith(text) for one in told), told


@pytest.fixture
def offered(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[tuple[Failure, Change]]]:
    """By number of its row what each remedy offers in these places, with the case."""
    found: dict[int, list[tuple[Failure, Change]]] = {number: [] for number in range(len(REMEDIES))}

    def noting(number: int, case: Failure) -> list[Change]:
        changes = [*REMEDIES[number].of(case)]
        found[number] += [(case, change) for change in changes]
        return changes

    table = [one._replace(of=functools.partial(noting, number)) for number, one in enumerate(REMEDIES)]
    with monkeypatch.context() as patch:
        patch.setattr(remedies, "REMEDIES", tuple(table))
        for phase, facts, _ in PLACES:
            texts(phase, **facts)
        for phase in PHASES:
            may_help(case_of(phase, length=512, attention="eager"))
    return found


def test_each_row_is_offered_in_a_place_and_what_it_sets_is_read_and_not_offered_again(offered: Any) -> None:
    for number, remedy in enumerate(REMEDIES):
        assert offered[number], f"a line in PLACES for {remedy}"
        for case, change in offered[number]:
            assert change.set.keys() <= {*settings.ARGUMENTS}, (
                "in `ARGUMENTS` of engine/settings.py, or it is never seen as set"
            )
            arguments = {**case.settings.arguments, **change.set}
            again = replace(case, settings=replace(case.settings, arguments=arguments))
            assert not change.set or change.text not in [one.text for one in remedy.offers(again)]
    sets = {name for changes in offered.values() for _, change in changes for name in change.set}
    page = (Path(__file__).parents[3] / "docs" / "oom_advice.md").read_text(encoding="utf-8")
    assert [name for name in sets if f"`{name}" not in page] == [], "when it is suggested, in docs/oom_advice.md"


def test_what_a_remedy_makes_smaller_is_a_part_that_is_found_in_memory() -> None:
    census = {Holding(name="`x`", kind=kind).part for kind in get_args(Kind)}
    found = {*memory_in_use.TENSORS, *memory_in_use._OF_PHASE.values(), *memory_in_use._UNFINISHED.values(), *census}
    assert [part for row in REMEDIES for part in row.reduces if not any(one.startswith(part) for one in found)] == [], (
        "`reduces` has names of `in_use`: Holding.part of heap/census.py, and diagnose/oom/memory_in_use.py"
    )


def test_of_what_no_plan_tells_it_is_said_why() -> None:
    assert [row for row in REMEDIES if row.unplanned and " " not in row.unplanned] == []
    told = {one.text for phase in PHASES for _, ladder in plannable(case_of(phase)) for one in ladder}
    unplanned = [one for row in REMEDIES if row.unplanned for phase in PHASES for one in row.offers(case_of(phase))]
    assert told
    assert told.isdisjoint(one.text for one in unplanned)


def test_what_changes_nothing_comes_first_and_what_changes_the_training_says_so() -> None:
    changes = may_help(case_of("forward", length=512, can_checkpoint=True, attention="eager"))
    assert [change.text.partition("=")[0] for change in changes[:3]] == [
        "per_device_train_batch_size", "attn_implementation", "gradient_checkpointing",
    ]  # fmt: skip
    assert (changes[2].note or "").startswith("slower")
    notes = [change.note or "" for change in may_help(case_of("evaluate", has_metrics=True))[-2:]]
    assert all(note.startswith("changes only the evaluation") for note in notes)
    assert all((change.note or "").startswith("changes the training") for change in changes[3:])
    assert {"optim", "max_length"} <= {name for change in changes[3:] for name in (*change.set, *change.in_script)}


def test_what_is_set_already_is_not_offered() -> None:
    arguments = {"activation_checkpointing": True, "optim": "sgd", "per_device_train_batch_size": 1}
    changes = may_help(case_of("forward", arguments, can_checkpoint=True, attention="sdpa", dtype="bfloat16"))
    assert changes == []
    told = explained(failure_of(where="host", phase="forward", settings=RunSettings(arguments=arguments)))[0]
    assert "activation_checkpointing (it is on)" in (told.no_help or "")


def test_where_a_model_is_made_the_data_is_not_the_reason() -> None:
    assert texts("startup", frames=("load_rows",))[0].startswith("map the data")
    assert texts("startup", frames=("main",)) == [], "nothing is loaded"
    assert texts("generate", frames=("_prefill",)) == ["generate from one prompt at a time, then from more"]
    assert texts("startup", frames=("Module.__init__",))[0].startswith("the weights in bfloat16")


def test_where_the_model_itself_is_saved_it_does_not_help_to_save_it_alone() -> None:
    assert texts("save") == ["save_strategy='no'"]


def test_without_the_optimizers_state_a_checkpoint_takes_what_was_in_use() -> None:
    saving = failure_of(where="host", phase="save", frames=("_save_optimizer_and_scheduler",), used_bytes=GIB)
    first, *others = explained(replace(saving, settings=RunSettings(arguments=ARGUMENTS)))[1]
    assert (first.text, first.predicted_bytes) == ("save_only_model=True", GIB)
    assert all(change.predicted_bytes is None for change in others)


def test_what_makes_the_largest_part_of_a_plan_smaller_is_planned_first() -> None:
    first, _ = next(plannable(case_of("evaluate", has_metrics=True), "results"))
    assert first.of_plan == "results"


def test_ladders_are_whole_where_they_are_planned() -> None:
    ladders = [ladder for _, ladder in plannable(case_of("forward", length=100, can_checkpoint=True))]
    assert [change.text for change in ladders[0]] == [BATCH_4, BATCH_2, smaller_batches(case_of("forward"))[-1].text]
    assert [change.set for change in ladders[1]] == [{"gradient_checkpointing": True}]
    every = [change.in_script for ladder in ladders for change in ladder]
    lengths = [in_script["max_length"] for in_script in every if "max_length" in in_script]
    assert lengths == [75, 56, 42, 31, 23, 17, 12]
    assert list(plannable(case_of("save"))) == []


def test_beside_a_cause_no_smaller_batch_is_named() -> None:
    assert BATCH_2 in texts("backward")
    for facts in ({"census": [GRAPH]}, NO_ROOM):
        assert not [text for text in texts("backward", **facts) if "batch_size" in text]


def test_that_no_batch_fits_is_told_of_what_the_gradients_need_beside_what_a_training_needs() -> None:
    facts = {**NO_ROOM, "in_use": {"optimizer": 8 * GIB}}
    told = next(one.note for one in may_help(failure_of(phase="backward", **facts)) if "LoRA" in one.text)
    assert told == "changes the training; no batch fits: gradients alone need 2.0 GiB more than there is"
    kept = {**facts, "census": [replace(ROWS, num_bytes=3 * GIB)]}
    assert not [one for one in may_help(failure_of(phase="backward", **kept)) if "no batch fits" in str(one.note)]


def test_activations_of_a_training_step_are_no_cause() -> None:
    assert texts("forward", census=[replace(GRAPH, kind="activations")]) == texts("forward")


def test_where_a_trainer_joins_what_it_keeps_a_smaller_evaluation_batch_is_not_offered() -> None:
    facts = {"phase": "evaluate", "arguments": {"per_device_eval_batch_size": 8}, "has_metrics": True}
    for part, offered in (("evaluation (`tensors` of nested_concat())", False), ("`rows`", True)):
        found = texts(**facts, in_use={part: 4 * GIB}, used_bytes=7 * GIB)
        assert ("per_device_eval_batch_size=2" in found, "prediction_loss_only=True" in found) == (offered, True)


def test_where_graphs_are_kept_a_smaller_evaluation_batch_is_not_offered() -> None:
    held = Holding(name="`val_loss`", kind="earlier", num_bytes=4 * GIB, num_passes=25)
    found = texts("evaluate", census=[held], used_bytes=7 * GIB)
    assert not [text for text in found if "eval_batch_size" in text]
