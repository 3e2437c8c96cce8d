"""The largest batch that comes is planned, in the order of the sampler's own generator."""

from pathlib import Path

import numpy
import pytest
import torch

from forgather_mem.planning.loop.loaders import copy_when_written
from tests.launch.test_plans_of_loops import LOOPS, SLACK_BYTES, plan_of, real_peak_bytes


@pytest.mark.fresh
def test_a_shuffled_loader_with_a_generator_gives_the_batches_of_the_run(tmp_path: Path) -> None:
    loop = LOOPS["padded"].replace("rows, 2,", "rows, 2, shuffle=True, generator=torch.Generator().manual_seed(3),")
    assert loop != LOOPS["padded"]
    real, plan = real_peak_bytes(tmp_path, loop), plan_of(tmp_path, loop)
    assert plan["peak_bytes"] == pytest.approx(real, abs=SLACK_BYTES)


def test_a_batch_of_any_memory_is_copied() -> None:
    shared = torch.ones(3).share_memory_()
    for batch in (torch.ones(3), torch.from_numpy(numpy.ones(3)), shared, torch.eye(3).to_sparse()):
        copy_when_written(batch).zero_()
        assert batch.sum() == 3
