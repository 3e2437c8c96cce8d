"""A loop, planned where it stands: a script's own from the first call of a model on, or the calls of a function.

It goes on in a forked child as it would have, until it is enough. What is changed in torch there is so for good.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from queue import Queue
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.data import _DatasetKind
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import (
    Batch,
    Loader,
    PlannedShape,
    Wanted,
    batches_of_longest_rows,
    largest,
    resized,
    shape_of,
)  # fmt: skip
from forgather_mem.planning.highest import Told
from forgather_mem.planning.isolation.child import GoesOn, Tell
from forgather_mem.planning.loop.phases import tell_phases
from forgather_mem.planning.loop.rounds import MOST_BATCHES, NOT_THROUGH, STEPS, Rounds
from forgather_mem.planning.loop.stage import Stage
from forgather_mem.planning.model import AliveThings, Emptied, roots
from forgather_mem.planning.pretending import tensors_among
from forgather_mem.planning.private_state import around_passes, let_no_queue_wait, let_tensors_answer, replace, swap
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.result import Plan
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.system.tracing import is_traced

NOT_HERE = "no training begins here"
_NO_EVALUATION = "What comes after the planned steps, such as an evaluation, is not planned."
_LOADING = "torch.utils.data.dataloader"
_MOST_CALLS = 1000  # and epochs, without a backward pass before it is enough


class Script:
    """A loop of a script's own, where its first step begins.

    Args:
        is_late: Whether a part of a step has been computed, which is not planned.
    """

    def __init__(self, is_late: bool) -> None:
        self.is_late = is_late

    def plan(self, wanted: Wanted, alive: AliveThings | None, answers: StandIns) -> NoReturn:
        """Let a child go on as the script, until it is planned.

        Raises:
            PlanError: if it can't be planned.
            GoesOn: else.
        """
        if wanted.ranks > 1:
            raise PlanError("--ranks is for a Trainer: of another loop plan the model of one rank, in Python")
        loop = _Loop(Stage(wanted, answers), wanted, answers)
        loop.find(alive or AliveThings(), self.is_late)

        def begin(tell: Tell) -> None:
            atexit.register(loop.end, is_over=True)
            sys.excepthook = lambda _, error, __: loop.end(error)
            loop.begin(tell)

        raise GoesOn(begin)


def plan_function(
    step: Callable[[Batch], object],
    models: Sequence[nn.Module],
    optimizers: Sequence[Optimizer],
    batch: Batch,
    wanted: Wanted,
    answers: StandIns,
) -> NoReturn:
    """Call `step(batch)` in a child until it is enough.

    Raises:
        PlanError: if a model can't be planned.
        GoesOn: else.
    """
    stage = Stage(wanted, answers)
    given, batch = batch, resized(batch, wanted.shape.rows, wanted.shape.length)
    for tensor in tensors_among(batch):
        stage.log.saw(tensor, "batch")
    stage.empty(models, optimizers, AliveThings(), replaced=given)
    loop = _Loop(stage, wanted, answers, models, optimizers)
    loop.shapes.append(shape_of(batch))

    def begin(tell: Tell) -> None:
        loop.begin(tell)
        try:
            while not loop.is_through():
                stage.log.begin("forward", loop.step)
                step(batch)
                if not loop.has_stepped():
                    raise PlanError(
                        "step(batch) called no backward(): give a function that also does backward() and "
                        "optimizer.step()"
                    )
        except Exception as error:  # noqa: BLE001  # the function's own: the parent tells it
            loop.end(error)
        loop.end(is_over=True)

    raise GoesOn(begin)


class _Loop:
    """The loop in its child.

    Args:
        stage: Where it runs.
        wanted: What is planned.
        answers: Asked for values.
        models: That are trained.
        optimizers: Of them.

    Attributes:
        shapes: Of the batches.
        is_certain: Whether a training is here in any case.
    """

    def __init__(
        self,
        stage: Stage,
        wanted: Wanted,
        answers: StandIns,
        models: Iterable[nn.Module] = (),
        optimizers: Iterable[Optimizer] = (),
    ) -> None:
        self._stage, self._wanted, self._answers = stage, wanted.shape, answers
        self._log, self._notes = stage.log, stage.notes
        self._models, self._stepping = nn.ModuleList(models), WeakSet[nn.Module]()
        self._optimizers = list(optimizers)
        self._trained = _of_optimizers(self._optimizers)
        self._rounds = Rounds(self._log, self._optimizers)
        self.shapes: list[PlannedShape] = []
        self._given: list[PlannedShape] = []
        # Of batches that were made before, or of what was computed before, a first round is not planned
        self._skipped, self.is_certain = 0, True
        self._unseen: list[str] = []  # what may come later
        self._idle = self._depth = self._calls = self._passes = self._ahead = 0
        self._is_new, self._is_enough, self._cut, self._is_stepping = True, False, False, False

    def find(self, alive: AliveThings, is_late: bool) -> None:
        """Find the models that are trained, their optimizers and the loaders, and take their values."""
        self._optimizers = alive.all_of(Optimizer)
        leaves = [one for one in alive.all_of(torch.Tensor) if one.is_leaf and one.requires_grad]
        self._trained = _of_optimizers(self._optimizers)
        trained = self._trained or set(map(id, leaves))
        models = [
            one
            for one in roots(alive.all_of(nn.Module))
            if any(id(parameter) in trained for parameter in one.parameters())
        ]
        gradients = [(one, one.grad) for one in leaves if is_late and one.grad is not None]
        if not is_traced():
            self._stage.empty(models, self._optimizers, alive, leaves=leaves)
        else:  # inside of `torch.func.grad`, whose arguments keep their values
            for parameter in nn.ModuleList(models).parameters():
                self._log.saw(parameter, "parameters")
        for leaf, gradient in gradients:  # the step goes on with them
            leaf.grad = self._stage.mode.unknown(gradient)
        self._models.extend(models)
        self._rounds = Rounds(self._log, self._optimizers)
        let_no_queue_wait(alive.all_of(Queue), self._notes)
        self.is_certain, self._unseen = is_late, [_NO_EVALUATION]
        self._skipped = int(self._plan_batches(alive.all_of(_BaseDataLoaderIter)) or is_late)

    def begin(self, tell: Tell) -> None:
        """Compute nothing from now on, until it is enough: then tell the parent."""
        self._tell = tell
        tell_phases(self._log, [self._models], self._stepped, self._notes)
        register_optimizer_step_pre_hook(self._steps)
        around_passes(self._pass, self._notes)
        replace("torch.utils:swap_tensors", lambda _: swap, self._notes)  # `Module.to`: it refuses weights in use
        let_tensors_answer({"__reduce_ex__": lambda *_: (torch.empty, (0,))}, self._notes)  # what is saved is lost
        replace("torch.nn:Module.__call__", self._calling, self._notes)
        replace("transformers.trainer:Trainer.train", lambda _: lambda *_, **__: self.end(), self._notes)
        self._log.begin("data", self.step)
        self._stage.mode.__enter__()  # type: ignore[no-untyped-call]

    @property
    def step(self) -> int:
        """That is planned; 0 in one that is not."""
        if self._optimizers:
            return 0 if self._skipped else self._rounds.step
        return min(STEPS, self._passes + 1 - self._skipped)

    def has_stepped(self) -> bool:
        """Whether a backward pass or an optimizer was planned."""
        return not {"backward", "optimizer"}.isdisjoint(one.phase for one in self._log.stretches if one.step)

    def is_through(self) -> bool:
        """Whether it is enough; asked where a batch begins, unless it has, since the last backward pass."""
        if self._is_new and not self._is_stepping:
            self._is_new = False
            is_enough = not self._rounds.go_on()
            self._is_enough = is_enough if self._optimizers else self._passes - self._skipped >= STEPS
        return self._is_enough

    def end(self, error: BaseException | None = None, is_over: bool = False) -> NoReturn:
        """Tell the parent what there is, and end this process.

        Args:
            error: That has ended the loop.
            is_over: Whether nothing comes after it.
        """
        plan, problem = None, ""
        try:
            plan = self._plan(error, is_over)
        except PlanError as refused:
            problem = str(refused)
        # Where this is no training other answers don't help
        answers = StandIns() if problem == NOT_HERE else self._answers
        self._tell(Told(plan, problem, answers), None)

    def _steps(self, *_: object) -> None:
        self._is_stepping = True

    def _stepped(self, optimizer: Optimizer) -> None:
        self._is_stepping = False
        if all(one.param_groups is not optimizer.param_groups for one in self._optimizers):
            self._optimizers.append(optimizer)
            self._trained |= _of_optimizers([optimizer])
        self._rounds.stepped(optimizer)
        if self._skipped and self._rounds.step > 1:
            self._rounds, self._skipped = Rounds(self._log, self._optimizers), 0
        if self.step != self._log.step or not self._calls:
            self._log.begin("data" if self._calls else "forward", self.step)

    @property
    def _trains(self) -> bool:
        """Whether it is no evaluation."""
        return torch.is_grad_enabled() and (not self._stepping or any(one.training for one in self._stepping))

    def _calling(self, call: Callable[..., object]) -> object:
        def called(module: nn.Module, *args: object, **keywords: object) -> object:
            self._depth += 1
            try:
                if self._depth == 1 and not is_traced():
                    self._call(module, args, keywords)
                return call(module, *args, **keywords)
            finally:
                self._depth -= 1

        return called

    def _call(self, module: nn.Module, args: tuple[object, ...], keywords: Mapping[str, object]) -> None:
        parameters = list(module.parameters())
        if any(type(one) is nn.Parameter for one in parameters):  # made since
            Emptied(self._stage.mode, self._log).model(module)
            self._models.append(module)
        if parameters and self._log.phase != "backward":  # else it is called again by checkpointing
            self._calls += 1
            self._begin("forward" if torch.is_grad_enabled() else "evaluate", parameters)
            if torch.is_grad_enabled():
                self._stepping.add(module)
                self._given = self._given or [shape_of(keywords or args)]
        for tensor in tensors_among((args, keywords)):
            if not tensor.requires_grad:
                self._log.saw(tensor, "batch")

    def _begin(self, phase: str, parameters: Iterable[torch.Tensor]) -> None:
        if self.is_through() and phase == "forward":
            self._end_if_through()
        if phase == "evaluate" and not any(id(one) in self._trained for one in parameters):  # a teacher
            phase = "evaluate" if self._log.phase == "evaluate" else "forward"
        self._log.begin(phase, self.step)
        self._counts_idle()

    def _counts_idle(self) -> None:
        """No training may follow, or its steps may fail; and an evaluation may be long."""
        self._idle += 1
        if self._idle > (MOST_BATCHES if self._is_enough else _MOST_CALLS):
            if self._is_enough and self._log.phase == "evaluate":
                self._notes.append(f"{NOT_THROUGH} {MOST_BATCHES} batches of the evaluation.")
            self.end()

    def _begins_epoch(self) -> None:
        """The next epoch ends at once; but another training may begin, with an optimizer that was made since."""
        made = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]  # all else is frozen
        new = [one for one in made if not _of_optimizers([one]) <= self._trained]
        if new:
            self._trained |= _of_optimizers(new)
            self._optimizers, self._rounds = new, Rounds(self._log, new)
            self._is_enough = self._cut = False
        self._counts_idle()

    def _end_if_through(self) -> None:
        """A loop whose data loader has come to an end may have batches that it has loaded before."""
        if self.is_through():
            self._ahead += 1
            if not self._cut or self._ahead > STEPS:
                self.end()

    def _pass(self, backward: Callable[..., object], *args: object, **keywords: object) -> object:
        is_inner = self._log.phase == "backward"
        if not is_inner and not self._calls:
            self._end_if_through()
        result = backward(*args, **keywords)
        if not is_inner:
            self._passes += 1
            self._idle = 0
            self._is_new = True
            if not self._calls and not self._optimizers:
                self._log.begin("forward", self.step)
        return result

    def _plan_batches(self, iterators: Iterable[Any]) -> bool:
        """Let data loaders make the plan's batches; whether those that there are would have made others."""
        known = WeakSet[Loader]()

        def loading(load: Callable[[Any], object]) -> object:
            def loads(loader: Any) -> object:
                if self._cut and self._trains:
                    self._begins_epoch()
                if loader not in known:
                    known.add(loader)
                    self._of_longest_rows(loader)
                return load(loader)

            return loads

        def following(follow: Callable[[Any], object]) -> object:
            def follows(iterator: Any) -> object:
                trains = self._trains and self._passes
                if trains and self.is_through():  # what follows an epoch is planned, too
                    self._cut = True
                    raise StopIteration
                try:
                    return follow(iterator)
                except StopIteration:
                    if not (trains and self._skipped):
                        raise
                    iterator._sampler_iter = iter(iterator._index_sampler)  # the round that is skipped is no part of it
                    return follow(iterator)

            return follows

        replace(f"{_LOADING}:DataLoader._get_iterator", loading, self._notes)
        replace(f"{_LOADING}:_BaseDataLoaderIter.__next__", following, self._notes)
        changed = [self._is_changed(one) for one in iterators]
        return any(changed) or self._wanted != PlannedShape()

    def _is_changed(self, iterator: Any) -> bool:
        """Whether it would have made others; a child can't use its parent's workers."""
        iterator.__class__, iterator._pin_memory = _SingleProcessDataLoaderIter, False
        iterator._dataset_fetcher = fetcher = _DatasetKind.create_fetcher(
            iterator._dataset_kind,
            iterator._dataset,
            iterator._auto_collation,
            iterator._collate_fn,
            iterator._drop_last,
        )
        fetcher.batch_sampler = iterator._index_sampler if iterator._auto_collation else None
        return self._of_longest_rows(fetcher)

    def _of_longest_rows(self, loader: Any) -> bool:
        """Whether it will make other batches than it has."""
        if loader.batch_sampler is None:  # the data set makes them
            return False
        rows, wanted = getattr(loader.batch_sampler, "batch_size", None) or 1, self._wanted
        if not self._trains:
            return batches_of_longest_rows(loader, rows, "length", wanted._replace(rows=None), [], [])
        return batches_of_longest_rows(loader, rows, "length", wanted, self.shapes, self._notes)

    def _plan(self, error: BaseException | None, is_over: bool) -> Plan:
        if not self._passes and self._rounds.step == 1 and not self.is_certain:
            raise PlanError(NOT_HERE)
        if error is not None and not self.is_through():
            raise PlanError(problem_of(error))
        if not self.has_stepped():
            raise PlanError("the script has ended before a whole step could be planned")
        if self._wanted != PlannedShape() and not self.shapes:
            raise PlanError("batches of another size can't be planned: torch's DataLoader does not make them")
        if error is not None and self._log.phase == "evaluate":
            self._notes.append(f"{NOT_THROUGH} an error in the evaluation: {problem_of(error)}")
        if not is_over and (STEPS, "evaluate") not in {one[1:] for one in self._log.stretches}:
            self._notes += self._unseen
        self._notes += self._rounds.notes() if self._optimizers else []
        return self._stage.plan(self._models, largest(self.shapes or self._given))


def _of_optimizers(optimizers: Iterable[Optimizer]) -> set[int]:
    """The parameters that they train, by id."""
    return {id(one) for of in optimizers for group in of.param_groups for one in group["params"]}
