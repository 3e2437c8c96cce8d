"""What is told beside a plan is enough by what the census has found."""

from typing import Any

import pytest

from forgather_mem.diagnose.oom.context import RunSettings
from forgather_mem.diagnose.oom.remedies import may_help
from forgather_mem.units import GIB
from tests.diagnose.oom.failures import failure_of

# Of a training of 700 x 64 tokens that ran out half-way through its first pass: 36 tokens and bfloat16 did not fit
HALF_WAY = {"parts": {"parameters": 0.02, "activations": 3.0, "Python and libraries": 0.6}, "done_frac": 0.6}
STATE = {"parameters": 0.1, "optimizer": 0.2, "activations": 0.8}
ARGUMENTS = {"per_device_train_batch_size": 700, "gradient_accumulation_steps": 1, "optim": "adamw_torch"}
SETTINGS = RunSettings(arguments=ARGUMENTS, dtype="float32")
BATCH = "per_device_train_batch_size="
ALL = [f"{BATCH}175", "optim=", "optim=", "max length about 36", "the weights in bfloat16", "train fewer parameters"]


@pytest.mark.parametrize(
    ("phase", "facts", "told"),
    [
        ("forward", HALF_WAY, [BATCH + "175", "max length about 27"]),
        ("forward", {**HALF_WAY, "done_frac": 1.0}, [BATCH + "175", "max length about 36", "the weights in bfloat16"]),
        ("forward", {"parts": {}}, [BATCH + "175", "optim=", "optim=", "a smaller max length", "the weights in bf"]),
        ("forward", {**HALF_WAY, "requested_bytes": 9e3}, []),
        ("backward", {"parts": STATE, "requested_bytes": 0.5, "free_bytes": 0.31}, ALL),
        ("backward", {"parts": STATE, "requested_bytes": 0.5, "free_bytes": 0.15}, [ALL[0], *ALL[3:5]]),
        ("backward", {"parts": STATE, "requested_bytes": 0.5, "free_bytes": 0.9, "freed_bytes": 0.4}, ALL),
    ],
)
def test_what_can_not_be_enough_is_not_told_and_no_figure_reads_as_planned(
    phase: str, facts: dict[str, Any], told: list[str]
) -> None:
    sizes = {name: int(facts.get(name, 0) * GIB) for name in ("requested_bytes", "free_bytes", "freed_bytes")}
    parts = {part: int(size * GIB) for part, size in facts["parts"].items()}
    known = {"parts": parts, "used_bytes": sum(parts.values()), "done_frac": facts.get("done_frac", 1.0), **sizes}
    failure = failure_of(where="host", settings=SETTINGS, phase=phase, rows=700, length=64, **known)
    texts = [change.text for change in may_help(failure)]
    assert len(texts) == len(told), texts
    assert all(text.startswith(begin) for text, begin in zip(texts, told, strict=True)), texts
