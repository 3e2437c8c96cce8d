"""Each checkpoint fits, but not all that are kept (mmf#870: "use max_to_keep")."""

import os
from pathlib import Path

from common import Rows, make, model, options, peak_of

own = options(folder="out", steps=40)
trainer = make(
    model(vocabulary=4000, hidden=64),
    Rows(256),
    arguments={
        "output_dir": os.path.join(own.folder, "run"),
        "max_steps": own.steps,
        "save_strategy": "steps",
        "save_steps": own.steps // 8,
        "save_total_limit": 1 if own.fixed else None,
    },
)
peak_of(trainer.train)
files = [path for path in Path(own.folder, "run").glob("checkpoint-*/*") if path.is_file()]
print(f"checkpoint {sum(path.stat().st_size for path in files) / len({path.parent for path in files}) / 2**20:.1f} MiB")
