"""In a script under `forgather-mem plan`: its Trainer is planned where it would train, and then the script ends.

It ends with all of its processes, and none of its code runs after the plan: no `finally`, no exit handler, no thread.
What it has done on the outside before is noted. Nothing is imported before the script does it. There is no accelerator,
whatever the machine has: sizes don't depend on one, and a training that is planned must not take memory on it.
"""

from __future__ import annotations

import functools
import io
import json
import os
import signal
import sys
import time
from _thread import allocate_lock, get_ident
from contextlib import suppress

from forgather_mem.planning.isolation.acts import ACTS, acted_on
from forgather_mem.planning.isolation.processes import end_processes
from forgather_mem.planning.private_state import around_passes, leave_compiler_unloaded, leave_weights_unread, surround
from forgather_mem.telemetry import run_session

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, NoReturn

_OPTIMIZERS = "torch.optim.optimizer"
_MOST_NAMED = 5
_ARGUMENTS, _TRAINER, _MODELS = "transformers.training_args", "transformers.trainer", "transformers.modeling_utils"


def meetings() -> dict[str, Callable[[], object]]:
    """What is to be done once the script has imported a module, by its name; from now on its acts are noted."""
    acts = _Acts()
    sys.dont_write_bytecode = True
    sys.addaudithook(acts.look)
    found: dict[str, Callable[[], object]] = {
        _ARGUMENTS: _allow_what_devices_do,
        _TRAINER: functools.partial(_plan_instead, acts),
        _OPTIMIZERS: functools.partial(_plan_loops, acts),
        "torch._dynamo": lambda: sys.modules["torch"].compiler.set_stance("force_eager"),
    }
    if (request := _request())["meta"]:
        found[_MODELS] = functools.partial(leave_weights_unread, acts.missing)
    if "failed" in request:
        found["resource"] = _leave_limits
        with suppress(OSError), open("/proc/self/oom_score_adj", "w") as score:  # others may train here
            score.write("1000")
        # Whoever waits for the plan may be gone by then, and it is not to fail again; in 2 s more it may still answer
        signal.alarm(max(1, int(request["failed"]["until_s"] - time.time()) + 2))  # type: ignore[index]
    return {name: functools.partial(_done_or_ended, meet, acts) for name, meet in found.items()}


def _done_or_ended(meet: Callable[[], object], acts: _Acts) -> None:
    """Where the script can't be met it doesn't train, either."""
    try:
        meet()
    except Exception as error:  # noqa: BLE001  # ours, or that of a torch that we don't know
        _end({"problem": f"planning has failed with {error!r}"}, acts)


class _Acts:
    """What a script does on the outside until it is planned; from then on nothing of it does anything there.

    Its threads don't, nor what runs in the thread that plans: handlers of forks, finalizers, a data set's `__len__`.
    """

    def __init__(self) -> None:
        self._done: dict[str, None] = {}
        self.missing: list[str] = []  # notes on what torch doesn't have
        self.planner: tuple[int, int] | None = None  # its process and thread
        self._turn = allocate_lock()
        self._not_noted = os.environ[run_session.PLAN], "/dev/", "/proc/"
        self.may_go_on = False

    def look(self, event: str, arguments: tuple[object, ...]) -> None:
        """For `sys.addaudithook`."""
        # Asked of all that Python does, as `id`
        names = acted_on(event, arguments) if event.startswith(ACTS) else None
        if names is None or (names and all(name.startswith(self._not_noted) for name in names)):
            return
        if self.planner is not None and self.planner[0] != os.getpid():
            return  # children that plan have a rule of their own
        if event == "os.kill" and self.planner == (os.getpid(), get_ident()):
            return  # a child that plans, and is asked or ended
        if self.planner is not None and event != "os.kill":
            if self.planner[1] == get_ident() or not self.may_go_on:
                raise PermissionError(f"{event}: a plan acts on nothing")
            with self._turn:  # until it is known whether the script goes on
                pass
        self._done[" ".join(["write" if event == "open" else event, *map(repr, names)])] = None

    def end(self) -> None:
        """This thread plans, or ends it."""
        self.planner = os.getpid(), get_ident()

    def answer(self, made: Callable[[], dict[str, object] | None], may_go_on: bool = False) -> None:
        """Answer with what this makes, and end. Returns in a child that is planned, and where there is no answer.

        Args:
            made: Makes it. Another thread that would answer waits for the end.
            may_go_on: Whether the script goes on where there is no answer: until then its files stay open.
        """
        if self.planner is not None and self.planner[0] != os.getpid():
            return
        with self._turn:
            self.may_go_on = may_go_on
            self.end()
            _answer(made, self)
            if self.planner == (os.getpid(), get_ident()):  # else it is the child
                self.planner = None

    def notes(self) -> list[str]:
        """A sentence with the first few, if there are any."""
        more, here = len(self._done) - _MOST_NAMED, f"'{os.environ.get('PWD')}/"
        near_first = sorted(self._done, key=lambda act: "'/" in act and here not in act)
        text = ", ".join(near_first[:_MOST_NAMED]) + (f" and {more:,} more" if more > 0 else "")
        return [*self.missing, *([f"Before it was planned the script acted as in a run: {text}."] if text else [])]


def _request() -> dict[str, object]:
    with open(os.path.join(os.environ[run_session.PLAN], run_session.REQUEST), encoding="utf-8") as file:
        return dict(json.load(file))


def _leave_limits() -> None:
    """The script sets none on its memory: what is planned is to tell what was too much."""
    module = sys.modules["resource"]

    def limited(limit: Callable[..., None], which: int, limits: tuple[int, int]) -> None:
        if which not in (module.RLIMIT_AS, module.RLIMIT_DATA):
            limit(which, limits)

    surround("resource:setrlimit", limited, [])


def _plan_instead(acts: _Acts) -> None:
    def train(original: Callable[..., object], trainer: object, *arguments: object, **keywords: object) -> object:
        acts.answer(lambda: _answer_to(trainer, acts))
        return original(trainer, *arguments, **keywords)  # which is planned, in a child

    surround(f"{_TRAINER}:Trainer.train", train, acts.missing)


def _plan_loops(acts: _Acts) -> None:
    """Plan a loop without a Trainer where it begins: at the first call of a model.

    A model may be called for another reason. If no training follows there, as far as that can be planned, the script
    goes on, and is planned at its first backward pass, or the first step of an optimizer. torch's engine hears of all
    passes, by whichever function.
    """
    leave_compiler_unloaded()
    module = sys.modules["torch.nn.modules.module"].Module
    call = module.__call__

    def begins(is_late: bool) -> None:
        from forgather_mem.planning.loop.script import Script

        module.__call__ = call
        acts.answer(lambda: _answer_to(Script(is_late), acts), may_go_on=not is_late)

    def called(one: Any, *arguments: object, **keywords: object) -> object:
        from forgather_mem.system.tracing import is_traced

        if acts.planner is None and next(one.parameters(), None) is not None and not is_traced() and not _is_planned():
            begins(is_late=False)
            return module.__call__(one, *arguments, **keywords)  # in the child it is that of the planned loop
        return call(one, *arguments, **keywords)

    def passed(backward: Callable[..., object], *arguments: object, **keywords: object) -> object:
        result = backward(*arguments, **keywords)
        stepping()
        return result

    def stepping(*_: object) -> None:
        if not _is_planned():
            begins(is_late=True)

    module.__call__ = called
    around_passes(passed, acts.missing)
    sys.modules[_OPTIMIZERS].register_optimizer_step_pre_hook(stepping)


def _answer_to(training: object, acts: _Acts) -> dict[str, object] | None:
    """The plans that are asked for; or, of a training that has failed, what would have fitted."""
    from forgather_mem.planning.answers import answer_to

    request = _request()
    failed = request.get("failed")
    if not isinstance(failed, dict):
        return answer_to(request, training)
    from forgather_mem.launch.failed_training import FailedTraining
    from forgather_mem.launch.planned_remedies import remedies_for

    answer: dict[str, object] | None = None
    for answer in remedies_for(FailedTraining(**failed), training):
        _write(answer, acts)  # who waits for it may end this process at any time
    return answer


def _answer(made: Callable[[], dict[str, object] | None], acts: _Acts) -> None:
    """Answer, and end; but go on in a child that is planned, and where there is nothing to answer."""
    import traceback

    from forgather_mem.planning.isolation.child import GoesOn, without_handlers, write_no_files

    try:
        by = "it was ended by"
        again = without_handlers(lambda number, _: _end({"problem": f"{by} {signal.Signals(number).name}"}, acts))
        if not acts.may_go_on:
            write_no_files([1, 2, *(stream.fileno() for stream in _streams())])
        answer = made()
    except GoesOn:
        return
    except BaseException as error:  # noqa: BLE001  # an interrupt, too: nothing of the script's shall handle it
        answer = {"problem": f"planning has failed with {error!r}"}
        with suppress(BaseException):
            traceback.print_exc(file=sys.__stderr__)
    if answer is not None:
        _end(answer, acts)
    again()


def _end(answer: dict[str, object], acts: _Acts) -> NoReturn:
    """Give the answer, and end all processes of the plan at once: no code of the script's follows.

    What it has replaced the streams with is not flushed, but for files.
    """
    acts.end()
    try:
        _write(answer, acts)
        for stream in _streams():
            stream.flush()
        end_processes(os.environ[run_session.PLAN], {os.getpid()})
    finally:
        os._exit("problem" in answer)


def _write(answer: dict[str, object], acts: _Acts) -> None:
    with open(os.path.join(os.environ[run_session.PLAN], run_session.ANSWER), "w", encoding="utf-8") as file:
        json.dump({**answer, "notes": acts.notes()}, file)


def _streams() -> list[io.TextIOWrapper]:
    """Where the script prints, but for what is a class of its own."""
    streams = sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__
    return [stream for stream in streams if type(stream) is io.TextIOWrapper and not stream.closed]


def _is_planned() -> bool:
    """Whether a plan made in Python calls this."""
    from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

    from forgather_mem.planning.pretending import Pretending

    return any(isinstance(mode, Pretending) for mode in _get_current_dispatch_mode_stack())


def plan_before_training(trainers: type) -> None:
    """Plan each trainer of this class before its first training, and say what comes of it."""
    from forgather_mem.system.call_wrapping import surrounded
    from forgather_mem.system.time_budget import PREPARATION
    from forgather_mem.telemetry.beside import marked
    from forgather_mem.telemetry.guard import FailureGuard

    met = marked()  # also those that are being planned, in the child that does it

    def planned(given: tuple[Any, ...], _: object) -> None:
        if given[0] not in met:
            met[given[0]] = True
            with PREPARATION:
                FailureGuard().call("plan", _plan_and_print, given[0])

    surrounded(trainers, "train", planned, sees=True)


def _plan_and_print(trainer: Any) -> None:
    from forgather_mem.errors import PlanError, say
    from forgather_mem.planning.entry import plan
    from forgather_mem.planning.result import PLANS

    if trainer in PLANS or run_session.rank_and_size()[1] > 1:
        return
    try:
        text = f"forgather-mem: planned: {plan(trainer, on_device=trainer.args.device.type != 'cpu')}"
    except PlanError as error:
        text = f"forgather-mem: no plan: {error}"
    say(text)


def _allow_what_devices_do() -> None:
    """Let arguments ask for what only accelerators can do: float16, which has the sizes of bfloat16, and FSDP."""

    def checked(check: Callable[..., None], arguments: Any) -> None:
        if arguments.fp16:
            arguments.fp16, arguments.bf16 = False, True
        arguments.tf32 = arguments.ddp_backend = None  # the latter joins a process group
        check(arguments)
        if getattr(arguments, "fsdp_plugin_args", None):
            arguments.fsdp = None  # which a Trainer refuses in one process

    surround(f"{_ARGUMENTS}:is_torch_bf16_gpu_available", lambda _: True, [])
    surround(f"{_ARGUMENTS}:TrainingArguments.__post_init__", checked, [])
