"""In a script under `forgather-mem plan`: its Trainer is planned where it would train, and then the script ends.

Nothing is imported before the script does it. There is no accelerator, whatever the machine has: sizes don't depend on
one, and a training that is planned must not take memory on it.
"""

from __future__ import annotations

import json
import os
import sys

from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

REQUEST, ANSWER = "request.json", "answer.json"
_ARGUMENTS, _TRAINER, _MODELS = "transformers.training_args", "transformers.trainer", "transformers.modeling_utils"


def meetings() -> dict[str, Callable[[], object]]:
    """What is to be done once the script has imported a module, by its name."""
    found: dict[str, Callable[[], object]] = {_ARGUMENTS: _allow_half_precision, _TRAINER: _plan_instead}
    if _request()["meta"]:
        found[_MODELS] = _leave_weights_unread
    return found


def _request() -> dict[str, object]:
    with open(os.path.join(os.environ[run_session.PLAN], REQUEST), encoding="utf-8") as file:
        return dict(json.load(file))


def _plan_instead() -> None:
    from forgather_mem.planning.answers import answer_to

    trainers = sys.modules[_TRAINER].Trainer
    original = trainers.train

    def train(trainer: object, *_: object, **__: object) -> None:
        trainers.train = original  # which is planned
        answer = answer_to(_request(), trainer)
        with open(os.path.join(os.environ[run_session.PLAN], ANSWER), "w", encoding="utf-8") as file:
            json.dump(answer, file)
        raise SystemExit(0)

    trainers.train = train


def _allow_half_precision() -> None:
    """Let arguments ask for what only an accelerator can do. float16 has the sizes of bfloat16, which the host has."""
    module = sys.modules[_ARGUMENTS]
    check = module.TrainingArguments.__post_init__

    def checked(arguments: object) -> None:
        if arguments.fp16:  # type: ignore[attr-defined]
            arguments.fp16, arguments.bf16 = False, True  # type: ignore[attr-defined]
        arguments.tf32 = None  # type: ignore[attr-defined]
        check(arguments)

    module.is_torch_bf16_gpu_available = lambda: True  # type: ignore[attr-defined]
    module.TrainingArguments.__post_init__ = checked


def _leave_weights_unread() -> None:
    """From now on parameters have a size and no memory, and no checkpoint is read."""
    from forgather_mem.planning.unread import leave_weights_unread

    leave_weights_unread(sys.modules[_MODELS].PreTrainedModel)
