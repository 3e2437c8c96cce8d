"""What helps outside the two passes: in the data, the optimizer, an evaluation, a checkpoint."""

import importlib.util
from typing import Any

import pytest

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.batches import Batches
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import NCCL_SHM, PINNED
from forgather_mem.diagnose.oom.remedies import REMEDIES
from forgather_mem.diagnose.oom.remedy import Case
from forgather_mem.heap.census import Holding
from forgather_mem.heap.failed_call import CallbackFailure, FailedOperation
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.failures import replace
from tests.diagnose.oom.test_advice import MODEL_BYTES, failed, first, settings, texts


def test_what_passes_keep_has_no_part_in_a_batch_that_could_not_be_made() -> None:
    changes = advise(failed("data", requested_bytes=3 * GIB), settings()).changes
    assert [dict(change.set) for change in changes] == [
        {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
    ]


def test_the_first_optimizer_step_gets_an_optimizer_whose_state_fits() -> None:
    parts = {"parameters": 2 * GIB, "gradients": 2 * GIB, "optimizer": 3 * GIB}
    failure = failed("optimizer", parts=parts)
    advice = advise(failure, settings())
    change = advice.changes[0]
    assert change.set == {"optim": "adafactor"}
    numbers = MODEL_BYTES // 4
    assert change.predicted_bytes == 9 * GIB - 3 * GIB + MODEL_BYTES // 100 + 28 * (numbers // 50)
    assert advice.no_help is not None
    assert advice.no_help.startswith("a smaller batch (its memory is free by then)")
    assert first(failed("optimizer", parts=parts), settings(optim="adafactor")) == {"optim": "sgd"}


def test_evaluations_that_keep_all_predictions_and_those_whose_batch_is_too_large_differ() -> None:
    metrics = RunSettings(arguments={"per_device_eval_batch_size": 16}, has_metrics=True)
    assert first(failed("evaluate", "device", predictions=7), metrics) == {"eval_accumulation_steps": 1}
    assert first(failed("evaluate", predictions=7), metrics) == {"preprocess_logits_for_metrics": "argmax"}
    assert first(failed("evaluate", predictions=0), metrics) == {"per_device_eval_batch_size": 4}
    offered = [advise(failed("evaluate", predictions=number), metrics).changes for number in (2, 400)]
    eval_sizes = [any("per_device_eval_batch_size" in change.set for change in changes) for changes in offered]
    assert eval_sizes == [True, False], "the predictions of 400 batches are as large with smaller ones"
    assert first(failed("evaluate"), settings(per_device_eval_batch_size=64)) == {"per_device_eval_batch_size": 16}


@pytest.mark.parametrize(
    ("failure", "arguments", "change"),
    [
        (failed("data", workers_bytes=None), {"dataloader_num_workers": 4}, {"dataloader_num_workers": 0}),
        (
            failed("data", workers_bytes=8 * GIB, requested_bytes=2 * GIB),
            {"dataloader_num_workers": 8},
            {"dataloader_num_workers": 6},
        ),
        (
            failed("data", rows=8, length=40, requested_bytes=3 * GIB),  # the shape of the batch before it
            {},
            {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8},
        ),
        (failed("save", frames=("_save_checkpoint",)), {}, {"save_strategy": "no"}),
        (failed("save", frames=("_save_optimizer_and_scheduler",)), {}, {"save_only_model": True}),
        (failed("resume", frames=("_load_optimizer_and_scheduler",)), {}, {}),  # a file is moved away
        (failed("resume"), {}, {"resume_from_checkpoint": False}),
        (failed("startup", frames=("from_pretrained",)), {}, {"dtype": "bfloat16"}),
        (failed("startup", where="host", frames=("main", "Module.__init__")), {}, {"dtype": "bfloat16"}),
        (
            failed("generate"),
            {"predict_with_generate": True, "per_device_eval_batch_size": 8},
            {"per_device_eval_batch_size": 2},
        ),
        (failed("generate", rows=16), {}, {"rows": 4}),
    ],
)
def test_each_phase_has_its_own_first_change(
    failure: Failure, arguments: dict[str, Any], change: dict[str, Any]
) -> None:
    assert first(failure, settings(**arguments)) == change


def test_data_that_do_not_fit_at_the_start_are_mapped() -> None:
    advice = advise(failed("startup", frames=("read_csv",)), settings())
    assert texts(advice)[0].startswith("map the data instead of loading it")
    assert advice.fit == "not measured"


def test_one_array_that_is_made_at_the_start_is_made_in_parts_and_one_that_is_read_is_mapped() -> None:
    made = failed("startup", requested_bytes=GIB, array_type="int32", line="train.py:23", frames=("main", "one_hot"))
    change, data = advise(made, RunSettings()).changes
    assert change.text == "make less at once at train.py:23: 1.0 GiB are asked for there"
    assert change.note == "in parts, with what follows from it, or of a smaller type than int32"
    for frames in (("main", "load_rows"), ("main", "read_csv", "concat")):
        assert texts(advise(replace(made, frames=frames), RunSettings()))[0] == data.text


def of_own_loop(failure: Failure) -> list[str]:
    return [change.text for change in advise(failure, RunSettings(is_trainers=False)).changes]


def held(name: str, num_bytes: int, *, collects: bool = True) -> Holding:
    return Holding(name=name, num_bytes=num_bytes, collects=collects)


def test_a_checkpoint_that_is_there_twice_is_to_be_used_once() -> None:
    failure = failed("resume", census=[held("`checkpoint` of resume()", 3 * GIB), held("`rows` of main()", 2**20)])
    first_text, second = of_own_loop(failure)
    assert first_text == "use `checkpoint` of resume() again, or delete it before: 3.0 GiB"
    assert second.startswith("torch.load(..., mmap=True)")


def test_outside_of_loading_only_what_collects_something_can_be_less() -> None:
    variables = [held("`scores` of evaluate()", 3 * GIB), held("`rows` of main()", 2 * GIB, collects=False)]
    texts_of_it = of_own_loop(failed("evaluate", census=variables))
    assert texts_of_it[0] == "keep less in `scores` of evaluate(): 3.0 GiB"
    assert not any("rows" in text for text in texts_of_it)


def test_in_a_pass_what_is_kept_comes_before_what_is_not_measured() -> None:
    kept = [held("`KeepsCopies.copies`", 3 * GIB)]
    assert of_own_loop(failed("forward", rows=1, census=kept))[0] == "keep less in `KeepsCopies.copies`: 3.0 GiB"
    little = [held("`KeepsCopies.copies`", 2**20)]
    assert "copies" not in " ".join(of_own_loop(failed("forward", rows=1, census=little)))


def test_an_array_of_wide_numbers_is_made_of_narrow_ones_where_that_fits() -> None:
    failure = failed("startup", requested_bytes=GIB, array_type="float64", line="train.py:41")
    change = advise(failure, RunSettings()).changes[0]
    assert (change.text, change.in_script) == ("float32 instead of float64, train.py:41", {"dtype": "float32"})
    assert change.predicted_bytes == (failure.used_bytes or 0) + GIB // 2
    narrow = failed("startup", requested_bytes=3 * GIB, array_type="float32", line="train.py:41")
    assert not any(text.startswith("float") for text in of_own_loop(narrow))


def test_in_a_loop_of_ones_own_a_checkpoint_has_no_trainers_arguments() -> None:
    assert of_own_loop(failed("save")) == [
        "torch.save to a file, of the model, then of the optimizer, without a copy of them in memory"
    ]


def test_so_many_sequences_are_generated_at_once_as_may_come_to_their_end() -> None:
    def rows(requested_bytes: int) -> object:
        failure = failed("generate", rows=64, requested_bytes=requested_bytes, parts={"generation": GIB})
        return advise(failure, RunSettings(is_trainers=False)).changes[0].in_script["rows"]

    assert (rows(2**20), rows(16 * GIB)) == (16, 1)


def test_a_generation_in_a_callback_is_from_fewer_prompts() -> None:
    operation = FailedOperation(operands=(("some", (1024, 64)),))
    failure = failed("generate", callback=CALLBACK, line="t.py:8", operation=operation, requested_bytes=GIB, rows=1024)
    assert first(failure, TRAINERS) == {"rows": 128}, "the Trainer's own generation is another"


def test_a_sample_that_no_process_could_hold_is_not_a_matter_of_workers_or_batches() -> None:
    known = {"requested_bytes": 2 * GIB, "in_sample": True, "line": "train.py:35"}
    workers = settings(dataloader_num_workers=2)
    advice = advise(failed("data", limits_each=True, **known), workers)
    assert texts(advice) == ["less memory for one sample (train.py:35)"]
    # Where all processes share one limit, workers that are not there leave more of it
    assert first(failed("data", **known), workers) == {"dataloader_num_workers": 0}


def test_copies_of_all_tensors_at_once_are_the_first_to_leave_out() -> None:
    failure = failed("optimizer", frames=("main", "step", "_multi_tensor_adamw"))
    assert of_own_loop(failure)[0] == "foreach=False for the optimizer"


def test_an_evaluation_of_one_sample_at_a_time_gets_smaller_samples() -> None:
    assert of_own_loop(failed("evaluate", rows=1))[0].startswith("one sample in parts")


def test_where_nothing_is_known_of_the_batch_a_smaller_one_is_still_named() -> None:
    assert of_own_loop(failed("forward"))[-1].startswith("smaller batches")


def test_an_evaluation_of_a_whole_graph_is_about_its_edges_and_not_about_a_batch() -> None:
    edges = FailedOperation(operands=(("nodes", (8000, 192)), ("source", (120_000,))))
    whole = failed("evaluate", where="host", rows=2, length=120_000, line="gnn.py:38", operation=edges)
    whole = replace(whole, requested_bytes=88 * MIB)
    own_loop = RunSettings(is_trainers=False)
    text = "make less at once at gnn.py:38: 88.0 MiB are asked for there"
    assert advise(whole, own_loop).changes[0].text == text
    rows = replace(whole, operation=replace(edges, operands=(("x", (2, 192)),)))
    assert "per_device_eval_batch_size" in advise(rows, own_loop).changes[0].set


OWN = RunSettings(is_trainers=False)
GENERATION = {"predict_with_generate": True, "generation_num_beams": 4, "generation_max_length": 64}
STATES = {"adafactor": MIB, "bnb_8bit": 2 * MIB, "torch_8bit": 2 * MIB}
TRAINERS = replace(settings(per_device_eval_batch_size=8, **GENERATION), state_bytes=STATES)
CALLBACK = CallbackFailure(callback="Keeps.on_save", line="train.py:8", source="")
LIST = Holding(name="`outputs` of evaluate()", num_bytes=3 * GIB, collects=True)
GRAPHS = [Holding(name="`teacher`", kind="untrained", num_bytes=3 * GIB), Holding(kind="activations", num_bytes=GIB)]
PAIRS = FailedOperation(operands=(("q", (5000, 64)),), copied_bytes=GIB, copied=("model",))
UNUSED = {"where": "device", "reserved_unused_bytes": 3 * GIB, "requested_bytes": GIB}
CASES = [
    (failed("startup", kind=NCCL_SHM), OWN),
    (failed("data", kind=PINNED), TRAINERS),
    (failed("forward", census=GRAPHS, rows=1), OWN),
    (replace(failed("backward"), used_bytes=7 * GIB, free_bytes=GIB, parts={"parameters": 4 * GIB}), OWN),
    (failed("save", operation=PAIRS, line="train.py:4", requested_bytes=GIB), OWN),
    (failed("evaluate", operation=PAIRS, line="train.py:4", requested_bytes=GIB, census=[LIST]), OWN),
    (failed("data", operation=PAIRS, line="train.py:4", requested_bytes=GIB, array_type="float64"), OWN),
    (failed("data", in_sample=True, line="train.py:4", requested_bytes=8 * GIB, array_type="float64"), OWN),
    *((failed("save", callback=replace(CALLBACK, **more), **facts), OWN) for more, facts in (
        ({"is_users": False}, {}), ({"copied_bytes": GIB}, {"where": "device"}), ({}, {"rows": 8}), ({}, {}),
    )),
    *((failed("optimizer", where, frames=("_multi_tensor_adamw",)), chosen)
      for where in ("host", "device") for chosen in (OWN, TRAINERS)),
    *((failed("generate"), chosen) for chosen in (OWN, TRAINERS)),
    *((failed("save", frames=("_save_optimizer_and_scheduler",)), chosen) for chosen in (OWN, TRAINERS)),
    *((failed("resume", frames=("_load_optimizer_and_scheduler",)), chosen) for chosen in (OWN, TRAINERS)),
    *((failed("startup", frames=frames, line="train.py:4", requested_bytes=GIB), OWN)
      for frames in (("from_pretrained",), ("one_hot",))),
    *((failed("evaluate", where, predictions=2), RunSettings(has_metrics=True)) for where in ("host", "device")),
    (failed("evaluate", rows=8), OWN),
    (failed("forward", **UNUSED, parts={"private pools": 4 * GIB}), OWN),
    (failed("forward", **UNUSED, kind="cuDNN"), OWN),
]  # fmt: skip


def test_each_row_of_the_table_has_a_case(monkeypatch: pytest.MonkeyPatch) -> None:
    there = importlib.util.find_spec("torch")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: there)  # as if all libraries were
    cases = [Case(failure, chosen, Batches(failure, chosen, ())) for failure, chosen in CASES]
    done = failed("optimizer", parts={"optimizer": GIB})
    uses = [StepUse(step=1, rows=8, length=None, phases={"optimizer": GIB})]
    cases.append(Case(done, replace(TRAINERS, optimizer_bytes=GIB), Batches(done, TRAINERS, uses)))
    without = [row for row in REMEDIES if not any(True for case in cases for _ in row.of(case))]
    assert [row.text or row.set or row.changes for row in without] == []
