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


@pytest.mark.alone(forked=True)
def test_what_is_known_of_a_part_is_known_of_another_that_begins_elsewhere() -> None:
    mode = Pretending(StorageLog())
    rows = mode.unknown(torch.zeros(4, 8))
    with mode:
        halves = [row[4:] for row in rows.unbind()]
        pairs = [row.view(2, 4).view(torch.int32) for row in rows.unbind()]
        strided = [row.as_strided((2,), (1,)) for row in rows.unbind()]
    assert [one.storage_offset() for one in halves] == [4, 12, 20, 28]
    assert [one.storage_offset() for one in pairs] == [0, 8, 16, 24]
    assert [one.storage_offset() for one in strided] == [
        row.as_strided((2,), (1,)).storage_offset() for row in torch.zeros(4, 8)
    ]
    assert len(mode._known._known) < 12  # not four of each
