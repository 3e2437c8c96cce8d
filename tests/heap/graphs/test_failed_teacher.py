"""A second model that records in a training step."""

import inspect
from pathlib import Path
from types import FrameType

import torch

from forgather_mem.heap.graphs.failed_teacher import vain_teacher
from forgather_mem.source.source_lines import line_name

STUDENT = torch.nn.Linear(4, 4)
OPTIMIZER = torch.optim.SGD(STUDENT.parameters())


def here(frame: FrameType | None) -> list[tuple[FrameType, int]]:
    assert frame is not None
    return [(frame, frame.f_lineno)]


def told(failed: list[tuple[FrameType, int]]) -> str | None:
    return vain_teacher(failed, STUDENT, OPTIMIZER)


def test_the_line_that_calls_it_is_told() -> None:
    teacher, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    wanted = teacher(x)
    line = inspect.currentframe().f_lineno - 1  # type: ignore[union-attr]
    assert told(here(inspect.currentframe())) == line_name(str(Path(__file__)), line)
    assert wanted.requires_grad


def test_one_that_records_nothing_is_not_told() -> None:
    teacher, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    with torch.no_grad():
        wanted = teacher(x)
    assert told(here(inspect.currentframe())) is None
    assert not wanted.requires_grad


def test_a_loss_that_goes_back_through_a_frozen_network_is_not_told() -> None:
    network, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    made = STUDENT(x)
    wanted = network(made), network(STUDENT(x))
    assert told(here(inspect.currentframe())) is None
    assert all(one.requires_grad for one in wanted)


def test_what_is_trained_is_not_told() -> None:
    model, x = STUDENT.eval(), torch.ones(2, 4)
    wanted = model(x)
    assert told(here(inspect.currentframe())) is None
    assert wanted.requires_grad


def answers(model: torch.nn.Module, x: torch.Tensor) -> list[tuple[FrameType, int]]:
    made = model(x)
    assert made.shape == (2, 4)
    return here(inspect.currentframe())


def test_of_a_function_that_both_models_are_given_to_the_line_that_gives_the_second_is_told() -> None:
    teacher, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    frame = inspect.currentframe()
    assert frame is not None
    inner = answers(teacher, x)
    assert told([(frame, frame.f_lineno - 1), *inner]) == line_name(str(Path(__file__)), frame.f_lineno - 1)


def test_a_second_model_whose_caller_records_nothing_is_not_told() -> None:
    teacher, x = torch.nn.Linear(4, 4).eval(), torch.ones(2, 4)
    frame = inspect.currentframe()
    assert frame is not None
    with torch.no_grad():
        failed = [(frame, frame.f_lineno), *answers(teacher, x)]
    assert told(failed) is None
