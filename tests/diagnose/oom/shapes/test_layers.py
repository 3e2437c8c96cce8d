"""How far a pass had come, by its layer."""

import pytest
import torch

from forgather_mem.diagnose.oom.shapes.layers import part_done


def blocks(num: int) -> torch.nn.Sequential:
    return torch.nn.Sequential(
        *(torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8)) for _ in range(num))
    )


def test_the_later_the_layer_the_more_is_done() -> None:
    parts = [part_done(blocks(4), f"{block}.2") for block in range(4)]
    assert parts == [0.25, 0.5, 0.75, 1.0]
    assert part_done(blocks(4), "2 (Sequential)") == pytest.approx(0.625), "it is half done"


def test_names_of_wrappers_are_no_part_of_a_layers_name() -> None:
    assert part_done(torch.nn.DataParallel(blocks(2)), "0.2") == 0.5


def test_little_is_never_taken_for_nothing_and_what_is_not_there_tells_nothing() -> None:
    assert part_done(blocks(100), "0.0") == 0.125
    assert [part_done(blocks(2), layer) for layer in ("CrossEntropyLoss", None)] == [None, None]
    assert part_done(None, "0") is None
