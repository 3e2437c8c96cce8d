"""Run by test_two_ranks.py on two ranks: a real distributed training with every kind of callback of ours."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from forgather_mem.callbacks import JsonMemoryLogger, MemoryCallback, SimpleGarbageCollector, TBMemoryLogger
from tests.training import make_trainer


class SlowRank(TrainerCallback):
    """Rank 1 lags behind: nobody may wait for it but the training itself."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.process_index == 1 and state.global_step == 2:
            time.sleep(1.0)


if __name__ == "__main__":
    trainer = make_trainer(
        Path(sys.argv[1]),
        [
            SimpleGarbageCollector(collect_freq_step=2, verbose=True),
            TBMemoryLogger(rank_steps=2),
            JsonMemoryLogger(),
            MemoryCallback(),
            SlowRank(),
        ],
        ddp_backend="gloo",
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    trainer.train()
