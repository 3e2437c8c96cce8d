"""What values take, each storage once; the rest is tested where a loop is watched."""

import numpy as np
import torch

from forgather_mem.diagnose.alerts.running_loop import bytes_in


def test_each_storage_counts_once_and_whole() -> None:
    tensor, array = torch.zeros(256), np.zeros(64)
    assert bytes_in([tensor[:1], {"same": [tensor, "text"]}, (array[:2], array)]) == 1024 + 512
