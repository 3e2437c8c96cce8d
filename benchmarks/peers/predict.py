"""What a training will take, foretold and real, in fresh processes: `python predict.py NAME`; prints JSON, in bytes.

Real and ours as in benchmarks/plan.py. accelerate's from the same configuration by the functions of its command, which
asks a hub for the model: "Training using Adam", for a batch of one, as its page says.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from accelerate import init_empty_weights
from accelerate.commands.estimate import estimate_training_usage
from accelerate.utils import calculate_maximum_sizes

from benchmarks.plan import CASES, in_a_process, measure

if __name__ == "__main__":
    case = next(case for case in CASES if case.name == sys.argv[1])
    ours, real, _, _ = in_a_process(measure, case)
    with init_empty_weights():
        empty = case.build(attn_implementation=case.attention)
    size, _ = calculate_maximum_sizes(empty)
    accelerate = max(estimate_training_usage(size, "float32").values())
    print(json.dumps({"real": real, "ours": ours, "accelerate": accelerate}))
