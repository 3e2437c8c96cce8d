"""Run by test_memory_alert.py on two ranks: one of them is near its wall, both stop at the same step."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from forgather_mem import Every, Rule
from forgather_mem.callbacks import MemoryAlert, MemoryCallback
from forgather_mem.callbacks.memory_alert import Alert
from forgather_mem.sample import Moment, Sample
from tests.training import make_trainer


def level(moment: Moment, sample: Sample) -> Mapping[str, float]:
    """A reading that rises on rank 1 only."""
    return {"mine/level_frac": 0.95 if moment.run.rank == 1 and moment.step >= 7 else 0.2}


if __name__ == "__main__":
    folder, alerts = Path(sys.argv[1]), list[Alert]()
    trainer = make_trainer(
        folder,
        [
            MemoryCallback([Rule(when=Every(steps=1), do=[level])]),
            MemoryAlert({"mine/level_frac": "90%"}, {}, None, call=alerts.append, save=True, stop=True),
        ],
        rows=512,
        max_steps=40,
        ddp_backend="gloo",
        dataloader_pin_memory=False,
        disable_tqdm=True,
    )
    trainer.train()
    told = {"alerts": [dataclasses.asdict(alert) for alert in alerts], "stopped_at": trainer.state.global_step}
    (folder / f"rank{trainer.args.process_index}.json").write_text(json.dumps(told))
