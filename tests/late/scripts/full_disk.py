"""The disk has no room for the first checkpoint, after all the steps before it (open_lm#154, dolly#139)."""

import os
from pathlib import Path

from common import Rows, make, model, options, peak_of

own = options(folder="out", steps=40)
trainer = make(
    model(vocabulary=4000, hidden=128),
    Rows(256),
    arguments={
        "output_dir": os.path.join(own.folder, "run"),
        "max_steps": own.steps,
        "save_strategy": "steps",
        "save_steps": own.steps,
        "save_only_model": own.fixed,
    },
)
peak_of(trainer.train)
files = [path for path in Path(own.folder, "run").glob("checkpoint-*/*") if path.is_file()]
print(f"checkpoint {sum(path.stat().st_size for path in files) / len({path.parent for path in files}) / 2**20:.1f} MiB")
