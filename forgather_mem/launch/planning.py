"""In a script under `forgather-mem plan`: its Trainer is planned where it would train, and then the script ends.

Nothing is imported before the script does it. There is no accelerator, whatever the machine has: sizes don't depend on
one, and a training that is planned must not take memory on it.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import weakref

from forgather_mem.launch.backward_passes import BackwardPasses
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_OPTIMIZERS = "torch.optim.optimizer"
_MOST_PASSES = 3
_WHAT_TO_DO = "ended at its first steps: plan that loop in Python, by forgather_mem.plan(step, model, optimizer, batch)"
_ARGUMENTS, _TRAINER, _MODELS = "transformers.training_args", "transformers.trainer", "transformers.modeling_utils"


def meetings() -> dict[str, Callable[[], object]]:
    """What is to be done once the script has imported a module, by its name."""
    found: dict[str, Callable[[], object]] = {
        _ARGUMENTS: _allow_what_devices_do,
        _TRAINER: _plan_instead,
        _OPTIMIZERS: _end_at_the_first_step,
    }
    if _request()["meta"]:
        found[_MODELS] = _leave_weights_unread
    return found


def _request() -> dict[str, object]:
    with open(os.path.join(os.environ[run_session.PLAN], run_session.REQUEST), encoding="utf-8") as file:
        return dict(json.load(file))


def _plan_instead() -> None:
    from forgather_mem.planning.answers import answer_to

    trainers = sys.modules[_TRAINER].Trainer
    original = trainers.train

    def train(trainer: object, *_: object, **__: object) -> None:
        trainers.train = original  # which is planned
        _answer(answer_to(_request(), trainer))
        raise SystemExit(0)

    trainers.train = train


def _answer(answer: dict[str, object]) -> None:
    with open(os.path.join(os.environ[run_session.PLAN], run_session.ANSWER), "w", encoding="utf-8") as file:
        json.dump(answer, file)


def _end_at_the_first_step() -> None:
    """Let no loop without a Trainer train, which may take hours.

    The script ends at the first step of an optimizer; without one, where parameters are changed by hand, after its
    third `backward()`: a script may do one or two for another reason.
    """

    def stepping(*_: object) -> None:
        from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

        from forgather_mem.heap.source_lines import calling_line
        from forgather_mem.planning.pretending import Pretending

        if any(isinstance(mode, Pretending) for mode in _get_current_dispatch_mode_stack()):
            return  # a step of a plan
        if not os.path.exists(os.path.join(os.environ[run_session.PLAN], run_session.ANSWER)):
            where = calling_line() or "the command"
            _answer({"problem": f"{where} trains without a transformers Trainer, and was {_WHAT_TO_DO}"})
        raise SystemExit(1)

    sys.modules[_OPTIMIZERS].register_optimizer_step_pre_hook(stepping)
    if (autograd := sys.modules.get("torch.autograd")) is not None:
        BackwardPasses(autograd, stepping, _MOST_PASSES)


def plan_before_training(trainers: type) -> None:
    """Plan each trainer of this class before its first training, and say what comes of it."""
    original = trainers.train  # type: ignore[attr-defined]
    met: weakref.WeakSet[Any] = weakref.WeakSet()  # also those that are being planned, in the child that does it

    @functools.wraps(original)
    def train(trainer: Any, *arguments: object, **keywords: object) -> object:
        from forgather_mem.telemetry.guard import FailureGuard

        if trainer not in met:
            met.add(trainer)
            FailureGuard().call("plan", _plan_and_tell, trainer)
        try:
            return original(trainer, *arguments, **keywords)
        except BaseException as error:
            from forgather_mem.system.call_wrapping import without_frames

            error.__traceback__ = without_frames(error.__traceback__, __file__)
            raise

    trainers.train = train  # type: ignore[attr-defined]


def _plan_and_tell(trainer: Any) -> None:
    from forgather_mem.errors import PlanError, say
    from forgather_mem.planning.entry import plan
    from forgather_mem.planning.result import PLANS

    if trainer in PLANS or run_session.rank_and_size()[1] > 1:
        return
    try:
        text = plan(trainer, on_device=trainer.args.device.type != "cpu").text()
    except PlanError as error:
        text = f"forgather-mem: no plan: {error}"
    say(text)


def _allow_what_devices_do() -> None:
    """Let arguments ask for what only accelerators can do: float16, which has the sizes of bfloat16, and FSDP."""
    module = sys.modules[_ARGUMENTS]
    check = module.TrainingArguments.__post_init__

    def checked(arguments: object) -> None:
        if arguments.fp16:  # type: ignore[attr-defined]
            arguments.fp16, arguments.bf16 = False, True  # type: ignore[attr-defined]
        arguments.tf32 = None  # type: ignore[attr-defined]
        check(arguments)
        if getattr(arguments, "fsdp_plugin_args", None):
            arguments.fsdp = None  # type: ignore[attr-defined]  # which a Trainer refuses in one process

    module.is_torch_bf16_gpu_available = lambda: True  # type: ignore[attr-defined]
    module.TrainingArguments.__post_init__ = checked


def _leave_weights_unread() -> None:
    """From now on parameters have a size and no memory, and no checkpoint is read."""
    from forgather_mem.planning.changes import leave_weights_unread

    leave_weights_unread(sys.modules[_MODELS].PreTrainedModel)
