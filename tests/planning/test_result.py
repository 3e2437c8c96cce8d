"""What a log comes to."""

import json
from dataclasses import replace

import torch

from forgather_mem.planning.batches import PlannedShape
from forgather_mem.planning.result import Plan, plan_of_log
from forgather_mem.planning.storage_log import StorageLog

KIB = 1024


def one_step() -> Plan:
    log = StorageLog()

    def made(kib: int, part: str | None = None) -> torch.Tensor:
        tensor = torch.zeros(kib * KIB, dtype=torch.uint8)
        log.saw(tensor, part)
        return tensor

    weight = made(1, "parameters")
    log.begin("forward")
    kept, dropped = made(10), made(5)
    del dropped
    log.begin("backward")
    gradient, passing = made(1), made(3)
    log.saw(gradient, "gradients")
    del kept, passing
    log.begin("optimizer")
    del gradient
    log.begin("evaluate")
    evaluated, log.evaluates_with_graph = made(2), True
    plan = replace(plan_of_log(log, [PlannedShape(4, 16)], ["A note."], None), accumulation=2)
    del weight, evaluated
    return plan


def test_each_phase_has_its_peak_in_parts() -> None:
    assert [(row.phase, {name: size // KIB for name, size in row.parts.items()}) for row in one_step().phases] == [
        ("data", {"parameters": 1}),
        ("forward", {"parameters": 1, "activations": 10, "temporaries": 5}),
        ("backward", {"parameters": 1, "gradients": 1, "activations": 10, "temporaries": 3}),
        ("optimizer", {"parameters": 1, "gradients": 1}),
        ("evaluate", {"parameters": 1, "graphs of the evaluation": 2}),
    ]


def test_the_peak_is_that_of_the_highest_phase() -> None:
    plan = one_step()
    assert (plan.peak_bytes, plan.phase, plan.step) == (16 * KIB, "forward", 1)
    assert plan.parts == {"parameters": KIB, "activations": 10 * KIB, "temporaries": 5 * KIB}
    assert plan.shape() == "4 x 16, 2 batches a step"


def test_it_can_be_written_as_json() -> None:
    written = json.loads(json.dumps(one_step().to_dict()))
    assert written["peak_bytes"] == 16 * KIB
    assert written["phases"][0] == {"step": 1, "phase": "data", "bytes": KIB, "parts": {"parameters": KIB}}
