"""Watches a training loop that tells nobody what it does: torch's optimizers and modules tell of its steps."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as of_torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _BaseDataLoaderIter

from forgather_mem.diagnose.oom.recognition import recognise
from forgather_mem.engine.run_of import RUNS
from forgather_mem.engine.settings import settings_of_loaders, settings_of_others
from forgather_mem.growth.trend import GROWTH
from forgather_mem.loops.events import BEFORE_FORWARD, LoopEvents
from forgather_mem.loops.outermost import Arguments, Keywords, Outermost
from forgather_mem.loops.rounds import OptimizerRounds
from forgather_mem.loops.turns import here
from forgather_mem.probes.live_objects import live_objects, near_objects
from forgather_mem.system.call_wrapping import surrounded
from forgather_mem.system.memory_limit import spare_bytes
from forgather_mem.system.process_end import PROCESS_END, last_error
from forgather_mem.system.time_budget import PREPARATION
from forgather_mem.system.tracing import is_traced
from forgather_mem.telemetry.beside import marked
from forgather_mem.telemetry.guard import FailureGuard
from forgather_mem.telemetry.run_session import PIECE_BYTES, RESERVE, RESERVE_BYTES

if TYPE_CHECKING:
    from transformers import TrainerCallback

# Looked up once
_thread, _trains, _is_compiling = threading.get_ident, torch.is_grad_enabled, torch.compiler.is_compiling
_LOADERS = (DataLoader, _BaseDataLoaderIter)  # while a loop asks for batches, its loader has an iterator
_WANTED = (torch.nn.Module, torch.optim.Optimizer, *_LOADERS)
_LEAST_STEPS = GROWTH.fewest_steps - 1  # after the first, of a training that is told for itself
MakeCallbacks = Callable[[], Sequence["TrainerCallback"]]


class ObservedLoop:
    """Fires a trainer's events for callbacks from a loop that knows nothing of us.

    The training begins with the first step of an optimizer, and a step ends with the last optimizer of a round
    (`OptimizerRounds`). Forward, backward and evaluation are told apart by the calls of the outermost modules that hold
    the parameters (`Outermost`). Nothing is heard while another training of ours runs in this process: a Trainer's,
    Lightning's, a `TrainingLoop`. Threads other than the one that takes the first step are not watched. Models and
    optimizers are not kept alive.

    Args:
        args: What callbacks get as `args`.
        make_callbacks: Makes them, when the training begins: what never trains pays for nothing.
        gives_way: Whether it ends when another loop is to be observed: one of which somebody tells, or one whose
            optimizers train other models, if those of this one are gone or no loop in progress goes through the steps
            of both. That one's step is told of by who made this.

    Attributes:
        is_over: Whether it hears of nothing any more.
        has_failed: Whether it could not begin; it is over then.
        on_close: Called when a training that has begun is over.
    """

    def __init__(self, args: Any, make_callbacks: MakeCallbacks, *, gives_way: bool = False) -> None:
        self.fence = FailureGuard()
        self.gives_way = gives_way
        self.is_over = self.has_failed = False
        self._args = args
        self._make_callbacks = make_callbacks
        self._events: LoopEvents | None = None
        self._rounds = OptimizerRounds(())
        self._models = Outermost()
        self._hooks = ExitStack()
        self.on_close: Callable[[], object] | None = None
        self._thread = 0
        self._beginning = threading.Lock()
        self._watches = False  # no other training of ours tells of this step
        self._num_runs = 0  # by then
        self._in_step = self._in_optimizer = self._in_evaluation = self._is_told = False
        self._trains_in_training = False  # by the last pass of a step
        self._last_apart = -1  # so many steps were done at the last pass in eval mode with a graph
        self._num_batches = 0  # in this step, or in this evaluation

    def listen(self) -> None:
        """From now on hear of each step of every optimizer in this process."""
        # Memory may run out before the first step of an optimizer
        num_pieces = int(min(2 * RESERVE_BYTES, spare_bytes())) // PIECE_BYTES
        self.fence.call("a loop", RESERVE.extend, (bytes(PIECE_BYTES) for _ in range(num_pieces - len(RESERVE))))
        self._hooks.callback(of_torch.register_optimizer_step_pre_hook(self.before).remove)
        self._hooks.callback(of_torch.register_optimizer_step_post_hook(self.after).remove)

    def close(self, error: BaseException | None = None) -> None:
        """The training is over, ended by this error if there is one; nothing is heard any more. Idempotent.

        One that has run out of memory before any optimizer's step begins here, to be explained.
        """
        self.fence.call("a loop", lambda: error is not None and recognise(error) and self._begin())
        events = self._events
        self._forget()
        PROCESS_END.withdraw(self._process_ends)
        self._hooks.close()
        if events is None:
            return
        self.fence.call("the end of a loop", self._finish, events, error)
        events.close(error)
        self.fence.call("the end of a loop", self.on_close)

    # ---- what a loop may tell by itself ----

    def end_steps(self, num_steps: int = 1, *, of_passes: bool = False) -> None:
        """So many steps are over in a loop without an optimizer of torch, or with a compiled one.

        With `of_passes` these are backward passes in a loop without any, each of which is taken for a step.
        """
        self.fence.call("a loop", self._end_steps, num_steps, of_passes)

    @contextmanager
    def phase(self, phase: str) -> Iterator[None]:
        """The block is this phase, once the training has begun, whatever models compute in it."""
        events = self._events
        if events is None or _thread() != self._thread:
            yield
            return
        was, self._is_told = self._is_told, True  # one may be in another, as `torch.save` in an evaluation
        try:
            with events.phase(phase):
                yield
        finally:
            self._is_told = was

    def tell(self, settings: Mapping[str, str]) -> None:
        """Those of these settings of its training that have changed."""
        if self._events is not None and (run := self._events.run()) is not None:
            known = run.facts.settings
            run.tell_settings({name: value for name, value in settings.items() if value != known.get(name, "")})

    @property
    def steps_done(self) -> int:
        """So many since its training began."""
        return 0 if self._events is None else self._events.state.global_step

    def epoch_ended(self) -> None:
        """An epoch is over."""
        events = self._events
        if events is not None and _thread() == self._thread:
            events.state.epoch = (events.state.epoch or 0.0) + 1
            events.fire("epoch_end")

    # ---- hooks: a failure of ours never reaches the loop ----

    def before(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """An optimizer's step begins."""
        if is_traced():
            return
        try:
            if self.gives_way and self._rounds.may_be_over(optimizer, _LEAST_STEPS) and self._is_over_with(optimizer):
                self.close()  # with another optimizer and another model begins another training
                return
            events = self._events or self._begin(optimizer)
            if events is not None and self._tells(events) and _thread() == self._thread:
                self._in_optimizer = True
                self._optimizer_begins(events)
                is_new = optimizer not in self._rounds.places
                if is_new or not events.is_quiet:
                    self._rounds.begins(optimizer, here())
                is_alone = is_new and self._rounds.optimizers in ([], [optimizer])
                if is_alone and not self._models.are_shared([optimizer], []):  # its model was made since
                    self._models.find(_found(), [optimizer])
        except self.fence.kept("a loop"):
            return

    def after(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """An optimizer's step is over."""
        if _is_compiling() or not self._in_optimizer or _thread() != self._thread:
            return
        self._in_optimizer = False
        self._in_pass(self._optimizer_ends, optimizer)

    def _in_pass(self, tell: Callable[..., object], *told: object) -> None:
        try:
            events = self._events
            if self._watches and events is not None and _thread() == self._thread:
                tell(events, *told)
        except self.fence.kept("a loop"):
            return

    def _is_over_with(self, optimizer: torch.optim.Optimizer) -> bool:
        used = self._rounds.optimizers
        return not self._models.are_shared([optimizer], used) and not self._rounds.take_turns_with(here())

    # ---- what they tell ----

    def _optimizer_begins(self, events: LoopEvents) -> None:
        self._end_evaluation(events)
        self._step_begins(events)
        if events.is_quiet or (self._rounds.in_round and events.phases.current != "backward"):  # no new gradients
            events.phases.turn("optimizer", BEFORE_FORWARD)
        else:
            events.optimizer_begins()

    def _optimizer_ends(self, events: LoopEvents, optimizer: torch.optim.Optimizer) -> None:
        num_steps = self._rounds.ends_with(optimizer)
        if num_steps:
            self._step_ends(events, num_steps)
        else:
            events.leave("optimizer")

    def _tells(self, events: LoopEvents) -> bool:
        """Whether no other training of ours tells of this step; asked anew when one has begun since."""
        if not self._watches or RUNS.num_given != self._num_runs:
            self._num_runs = RUNS.num_given
            self._watches = RUNS.other_open(events.run()) is None
        return self._watches

    def _end_steps(self, num_steps: int, of_passes: bool) -> None:
        """The loop itself says that a step is over; where an optimizer is heard, that one counts."""
        events = self._events or self._begin()
        if events is None or not self._tells(events) or self._rounds.optimizers or _thread() != self._thread:
            return
        self._end_evaluation(events)
        self._step_begins(events)
        events.optimizer_begins()
        self._step_ends(events, num_steps)
        run = events.run()
        if run is not None:
            run.facts.header = replace(run.facts.header, counts_passes=of_passes)

    def _step_ends(self, events: LoopEvents, num_steps: int) -> None:
        is_told = not events.is_quiet
        if is_told:
            events.optimizer_ends()
        events.state.global_step += num_steps
        if is_told or not events.step_passes():
            events.fire("step_end")
        self._in_step = False
        if self._num_batches > 1:
            self._note_accumulation(events)
        if not self._models.are_heard_in_each_step():
            events.leave("optimizer")
        else:
            events.phases.turn("data", ("backward", "optimizer"))
            events.phases.no_step()  # what comes is between steps: nobody knows yet what it is

    def _called(self, events: LoopEvents, model: torch.nn.Module, arguments: Arguments, keywords: Keywords) -> None:
        trains = _trains()
        if not trains and self._is_told:
            return
        if not model.training and (not trains or self._is_no_step()):
            if not self._in_evaluation:
                self._in_evaluation, self._num_batches = True, 0
                events.leave_all()
                events.enter("evaluate")
            else:  # the batch before is done
                events.fire("prediction_step", batches_begun=self._num_batches + 1)
            self._num_batches += 1
            return
        self._end_evaluation(events)
        if not trains:
            if self._in_step:
                events.enter("forward")
            return
        self._trains_in_training = model.training
        if not self._in_step:
            self._step_begins(events)
        self._num_batches += 1
        events.forward_begins(arguments, keywords)

    def _is_no_step(self) -> bool:
        """Whether a pass in eval mode with a graph is an evaluation: not where all are so, or one before each step."""
        was, self._last_apart = self._last_apart, self.steps_done
        return self._trains_in_training and not self._in_step and not 0 < self.steps_done - was < 2

    def _begin(self, first: torch.optim.Optimizer | None = None) -> LoopEvents | None:
        with self._beginning:  # another thread's step comes after it
            if self._events is None and not self.is_over and RUNS.other_open(None) is None:
                self.is_over = self.has_failed = True  # unless it comes to its end: it is not tried at each step
                self._begin_here(first)
                self.is_over = self.has_failed = False
            return self._events

    def _begin_here(self, first: torch.optim.Optimizer | None) -> None:
        self._thread = _thread()
        found = _found()
        optimizers = [one for one in found if isinstance(one, torch.optim.Optimizer)]
        if first is not None and not first.state:  # nothing is resumed: what has a state was of an earlier training
            optimizers = [one for one in optimizers if not one.state]
        self._rounds = OptimizerRounds(one for one in optimizers if getattr(type(one).step, "hooked", False))
        with PREPARATION:
            events = LoopEvents(self._args, self._make_callbacks(), self._objects)
        self._models.find(found, optimizers)
        ends = partial(self._in_pass, LoopEvents.forward_ends)
        self._hooks.callback(self._models.listen(partial(self._in_pass, self._called), ends))
        begins = partial(self._in_pass, LoopEvents.backward_begins)
        self._hooks.callback(surrounded(torch.autograd, "backward", begins))
        self._events = events
        events.fire("init_end")
        events.fire("train_begin")
        events.enter("startup")
        run = events.run()
        if run is not None:
            run.facts.header = replace(run.facts.header, is_observed=True)
            loaders, feeding = ([one for one in found if isinstance(one, kind)] for kind in _LOADERS)
            run.facts.settings.update(settings_of_loaders(feeding or loaders))
            modules = [one for one in found if isinstance(one, torch.nn.Module)]
            run.facts.settings.update(settings_of_others(*self._objects(), modules))
        PROCESS_END.ask(self._process_ends, self._forget)

    def _step_begins(self, events: LoopEvents) -> None:
        if not self._in_step:
            self._in_step, self._num_batches = True, 0
            if not events.is_quiet:
                events.leave("data")
                events.fire("step_begin")

    def _end_evaluation(self, events: LoopEvents) -> None:
        if self._in_evaluation:
            self._in_evaluation = False
            events.leave("evaluate")
            events.fire("evaluate", metrics={})

    def _note_accumulation(self, events: LoopEvents) -> None:
        run = events.run()
        are_summed = len(self._rounds.optimizers) == 1
        if run is not None and are_summed and self._num_batches > run.facts.header.micro_batches:
            run.facts.header = replace(run.facts.header, micro_batches=self._num_batches)

    def _finish(self, events: LoopEvents, error: BaseException | None) -> None:
        num_steps = self._rounds.end()
        if num_steps:
            self._step_ends(events, num_steps)
        if error is None:
            events.leave_all()
            events.fire("train_end")

    def _objects(self) -> tuple[object, object]:
        return self._models.as_one(), _as_one(self._rounds.optimizers)

    def _process_ends(self) -> None:
        self.close(last_error())

    def _forget(self) -> None:
        """This is a forked child: the training is the parent's."""
        self.is_over, self._watches = True, False
        self._events = None


class _Loops:
    """The loops that are observed in this process."""

    def __init__(self) -> None:
        self._loops = marked()

    def add(self, loop: ObservedLoop) -> None:
        """This one is observed from now on; those that give way are over."""
        for other in self._loops:
            if other.gives_way:
                other.close()
        self._loops[loop] = True

    def current(self) -> ObservedLoop | None:
        """The one that is not over."""
        return next((loop for loop in self._loops if not loop.is_over), None)


# One, because torch's hooks are those of the whole process
LOOPS = _Loops()


def _found() -> list[object]:
    """The modules, optimizers and loaders among which are a training's: of all objects where variables lead to too few.

    So a loader that is in no variable is not found, and another optimizer counts as one that was made later.
    """
    near = near_objects(_WANTED) or []
    modules = [inner for one in near if isinstance(one, torch.nn.Module) for inner in one.modules()]
    own = {id(parameter) for one in modules for parameter in one.parameters(recurse=False)}
    groups = [group for one in near if isinstance(one, torch.optim.Optimizer) for group in one.param_groups]
    if groups and all(id(parameter) in own for group in groups for parameter in group["params"]):
        return list({id(one): one for one in (*near, *modules)}.values())
    return live_objects(*_WANTED)


def _as_one(optimizers: list[torch.optim.Optimizer]) -> object:
    """What callbacks read of an optimizer, for all of them together."""
    if len(optimizers) < 2:
        return optimizers[0] if optimizers else None
    groups: Iterable[Any] = (group for optimizer in optimizers for group in optimizer.param_groups)
    # Copied: asked for a parameter of another one, an optimizer's state makes an empty entry of it
    states = {parameter: state for one in optimizers for parameter, state in one.state.items()}
    return SimpleNamespace(state=states, param_groups=list(groups), all_of_loop=optimizers)
