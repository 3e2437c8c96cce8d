"""What only a training needs is loaded when one begins, what only its report needs when it ends."""

from tests.programs import printed_by

_SCRIPT = """
import sys
from types import SimpleNamespace
from forgather_mem.callbacks import ClearCacheCallback, SimpleGarbageCollector, TBMemoryLogger

def loaded():
    return {name.removeprefix("forgather_mem.") for name in sys.modules if name.startswith("forgather_mem.")}

of_trainings = {"engine.run", "engine.summary", "diagnose.oom.recognition"}
of_reports = {"reporting.build", "telemetry.report"}
callback = SimpleGarbageCollector()
assert not (of_trainings | of_reports) & loaded(), loaded()
state = SimpleNamespace(global_step=0, epoch=0.0, max_steps=2)
callback.on_train_begin(SimpleNamespace(output_dir=None), state, None)
assert of_trainings <= loaded(), loaded()
assert not of_reports & loaded(), "they take most of a MiB beside the training"
callback.on_train_end(SimpleNamespace(output_dir=None), state, None)
assert callback.summary is not None
assert of_reports <= loaded()
"""


def test_the_engine_is_loaded_when_a_training_begins_and_the_report_when_it_ends() -> None:
    printed_by(_SCRIPT)  # which ends well
