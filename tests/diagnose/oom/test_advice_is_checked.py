"""What stands under WOULD HAVE FIT: it has a prediction, never above the limit, never below what is in use."""

from typing import Any

from forgather_mem.diagnose.oom.advice import advise
from forgather_mem.diagnose.oom.context import RunSettings, StepUse
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.units import GIB, MIB
from tests.diagnose.oom.failures import failure_of
from tests.diagnose.oom.test_advice import settings

LIMIT = 1098 * MIB


def in_the_optimizer(**known: Any) -> Failure:
    parts = {"parameters": 400 * MIB, "gradients": 400 * MIB}
    return failure_of(
        where="host", phase="optimizer", step=1, used_bytes=LIMIT - 40 * MIB, free_bytes=40 * MIB,
        requested_bytes=400 * MIB, parts=parts, **known,
    )  # fmt: skip


def test_what_would_not_fit_stands_under_no_help() -> None:
    # One tensor is nearly the whole model, so that Adafactor's float32 copies of it take more than Adam's state
    numbers = 100 * 2**20
    chosen = RunSettings(
        arguments={"optim": "adamw_torch", "per_device_train_batch_size": 8},
        trained_numbers=numbers, trained_bytes=4 * numbers, largest_trained=numbers, state_bytes={"adafactor": MIB},
    )  # fmt: skip
    advice = advise(in_the_optimizer(), chosen)
    predicted = [change.predicted_bytes for change in advice.changes if change.predicted_bytes is not None]
    assert all(size <= LIMIT for size in predicted)
    assert not any("adafactor" in change.text for change in advice.changes)
    assert "adafactor' alone (about 3.8 GiB of 1.1 GiB)" in (advice.no_help or "")


def test_a_prediction_is_never_below_what_a_smaller_batch_took() -> None:
    """Readings above the line, as of one long sample among many short ones."""
    uses = [StepUse(step=n, rows=8, length=100 + n, phases={"forward": (1000 + n) * MIB}) for n in range(1, 40)]
    high = StepUse(step=40, rows=8, length=120, phases={"forward": 3000 * MIB})
    failure = failure_of(
        where="device", phase="forward", step=41, rows=8, length=4000, used_bytes=4600 * MIB, free_bytes=100 * MIB,
        requested_bytes=200 * MIB, parts={"activations": 3900 * MIB},
    )  # fmt: skip
    for change in advise(failure, settings(model_bytes=MIB), [*uses, high]).changes:
        assert change.predicted_bytes is None or change.predicted_bytes >= 3000 * MIB


def test_one_long_sample_that_needs_it_all_in_backward_is_not_told_to_go_alone() -> None:
    """Only the ends of phases were read: the backward pass had given back its gradients by then."""
    token, held, logits_frac = 0.2 * MIB, 0.3 * GIB, 6.0 / 9.4
    uses = []
    for step in range(1, 40):
        size = int(held + 8 * (200 + 5 * step) * token)
        uses.append(StepUse(step=step, rows=8, length=200 + 5 * step, phases={"forward": size, "backward": size}))
    failure = failure_of(
        where="device", phase="forward", step=40, rows=8, length=6000, used_bytes=7 * GIB, free_bytes=GIB,
        requested_bytes=6 * GIB, parts={"activations": int(6.7 * GIB)},
    )  # fmt: skip
    first = advise(failure, settings(model_bytes=MIB), uses).changes[0]
    rows, length = first.set.get("per_device_train_batch_size", 8), first.in_script.get("max_length", 6000)
    assert isinstance(length, int)
    assert isinstance(rows, int)
    forward = rows * length * token
    assert held + forward + logits_frac * forward < 8 * GIB, "the gradient of the logits comes on top"
