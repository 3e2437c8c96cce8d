"""What an operation makes is the same when it is known as when it was new."""

import pytest
import torch

from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.storage_log import StorageLog


@pytest.mark.alone(forked=True)  # a plan counts what other tests have left alive
def test_each_result_is_logged_with_its_storage() -> None:
    mode = Pretending(log := StorageLog())
    weight = mode.unknown(torch.zeros(256))
    with mode:
        for times in range(1, 3):  # the second time it is known what is made
            double = weight * 2
            half = double[:128]
            assert list(log.sizes) == [1024] * times
            assert half.shape == (128,)
            assert half.untyped_storage()._cdata == double.untyped_storage()._cdata
            assert log.alive_bytes == 1024
            del double, half
        assert [weight[:0].unbind() for _ in range(2)] == [(), ()]
        with torch.inference_mode():
            assert [weight.expand(2, -1).is_inference() for _ in range(2)] == [False, False]
            parts = [row[4:].storage_offset() for row in mode.unknown(torch.zeros(4, 8)).unbind()]
        assert parts == [4, 12, 20, 28]  # the first is new, the others are known
