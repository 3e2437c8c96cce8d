"""The largest batch that comes is planned, in the order of the sampler's own generator."""

from pathlib import Path

import pytest

from tests.launch.test_plans_of_loops import LOOPS, SLACK_BYTES, plan_of, real_peak_bytes


@pytest.mark.fresh
def test_a_shuffled_loader_with_a_generator_gives_the_batches_of_the_run(tmp_path: Path) -> None:
    loop = LOOPS["padded"].replace("rows, 2,", "rows, 2, shuffle=True, generator=torch.Generator().manual_seed(3),")
    assert loop != LOOPS["padded"]
    real, plan = real_peak_bytes(tmp_path, loop), plan_of(tmp_path, loop)
    assert plan["peak_bytes"] == pytest.approx(real, abs=SLACK_BYTES)
