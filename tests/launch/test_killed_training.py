"""A training is killed in a forward pass: the shape of that batch is known all the same."""

import json
from pathlib import Path

import pytest

from forgather_mem.launch.failed_training import parsed_sizes
from tests.launch.commands import RUN
from tests.launch.forked_run import run_forked

SCRIPT = """
import os, signal, sys
sys.path.insert(0, os.environ["TESTS"])
import torch
from tests.training import Bigrams, make_trainer

class Ends(Bigrams):
    def forward(self, input_ids, labels):
        if input_ids.shape[1] == 48:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().forward(input_ids, labels)

def longer(rows, calls=[]):
    calls.append(1)
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    return {name: one.repeat(1, 3 if len(calls) == 4 else 1) for name, one in batch.items()}

trainer = make_trainer("out", model=Ends())
trainer.data_collator = longer
trainer.train()
"""


@pytest.mark.fresh
def test_the_batch_of_a_killed_training_is_told_before_it_runs(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    tests = str(Path(__file__).parent.parent.parent)
    result = run_forked([*RUN, "--report", "report.json", "train.py"], tmp_path, TESTS=tests)
    assert result.code == -9, result.err
    report = json.loads((tmp_path / "report.json").read_text())
    settings = report["run"]["settings"]
    assert (report["killed"]["phase"], settings["batch.rows"], settings["batch.length"]) == ("forward", "4", "48")
    assert parsed_sizes(settings["batch.sizes"]) == {"input_ids": (4, 48), "labels": (4, 48)}
    assert "planning" not in result.err, "memory was not the reason"
