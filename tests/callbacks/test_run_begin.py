"""What only a training needs is loaded when one begins, and all of it then: at its end no memory may be left."""

from __future__ import annotations

import subprocess
import sys

_SCRIPT = """
import sys
from types import SimpleNamespace
from forgather_mem.callbacks import ClearCacheCallback, SimpleGarbageCollector, TBMemoryLogger

def loaded():
    return {name.removeprefix("forgather_mem.") for name in sys.modules if name.startswith("forgather_mem.")}

of_trainings = {"engine.run", "engine.summary", "reporting.build", "telemetry.report", "diagnose.oom.recognition"}
callback = SimpleGarbageCollector()
assert not of_trainings & loaded(), loaded()
state = SimpleNamespace(global_step=0, epoch=0.0, max_steps=2)
callback.on_train_begin(SimpleNamespace(output_dir=None), state, None)
assert of_trainings <= loaded(), loaded()
before = loaded()
callback.on_train_end(SimpleNamespace(output_dir=None), state, None)
assert callback.summary is not None
print(sorted(loaded() - before))
"""


def test_the_engine_and_the_report_are_loaded_when_a_training_begins_and_nothing_at_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
