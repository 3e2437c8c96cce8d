"""A loop, planned where it stands: a script's own from the first call of a model on, or the calls of a function.

It goes on in a forked child as it would have, until it is enough. What is changed in torch there is so for good.
"""

from __future__ import annotations

import atexit
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from queue import Queue
from typing import NoReturn
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from forgather_mem.errors import PlanError
from forgather_mem.planning import private_state as private
from forgather_mem.planning.batches import Batch, PlannedShape, Wanted, resized, shape_of
from forgather_mem.planning.copies import let_tensors_be_copied
from forgather_mem.planning.highest import Attempt
from forgather_mem.planning.isolation.child import GiveAnswer, GoesOn
from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.ahead import Ahead
from forgather_mem.planning.loop.loaders import Loaders
from forgather_mem.planning.loop.notes import Note
from forgather_mem.planning.loop.rounds import STEPS, Rounds, not_through
from forgather_mem.planning.model import KEPT, OTHER_TENSORS, AliveThings, Emptied, holders_of, note_of, notes_on, roots
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.ranks import follow_resizing, prepare_ranks
from forgather_mem.planning.recurrent import take_fewer_tokens
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.result import Plan, plan_of_log
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import OTHER_GRAPHS, StorageLog
from forgather_mem.system.tracing import is_traced

NOT_HERE = "no training begins here"
_MOST_CALLS = 1000  # and epochs, without a backward pass


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
        loop = Loop(wanted, answers)
        loop.find(alive or AliveThings(), self.is_late)
        loop.looks_ahead = True

        def begin(give_answer: GiveAnswer) -> None:
            atexit.register(loop.end)
            sys.excepthook = lambda _, error, __: loop.end(error=error)
            loop.begin(give_answer)
            private.surround("transformers.trainer:Trainer.train", lambda *_, **__: loop.end("this loop"), loop.notes)

        raise GoesOn(begin)


def plan_function(
    step: Callable[[Batch], object], models: Sequence[nn.Module], optimizers: Sequence[Optimizer],
    batch: Batch, wanted: Wanted, answers: StandIns,
) -> NoReturn:  # fmt: skip
    """Call `step(batch)` in a child until it is enough.

    Raises:
        PlanError: if a model can't be planned.
        GoesOn: else.
    """
    loop = Loop(wanted, answers)
    given, batch = batch, resized(batch, wanted.shape.rows, wanted.shape.length)
    for tensor in tensors_among(batch):
        loop.log.saw(tensor, "batch")
    loop.empty(models, optimizers, AliveThings(), replaced=given)
    loop.trains_with(models, optimizers)
    loop.shapes.append(shape_of(batch))

    def run() -> None:
        while not loop.is_through():
            loop.log.begin("forward", loop.step)
            step(batch)
            if not loop.has_stepped():
                missing = "give a function that also does backward() and optimizer.step()"
                raise PlanError(f"step(batch) called no backward(): {missing}")

    go_on(loop, run)


def go_on(loop: Loop, run: Callable[[], object], tell: Callable[[Attempt], object] = lambda made: made) -> NoReturn:
    """Let a child call this, which ends when the loop is through; its parent gets what this tells of what was made.

    Raises:
        GoesOn: always.
    """

    def begin(give_answer: GiveAnswer) -> None:
        loop.begin(lambda made: give_answer(tell(made)))
        try:
            run()
        except Exception as error:  # noqa: BLE001  # the training's own: the parent tells it
            loop.end(error=error)
        loop.end()

    raise GoesOn(begin)


class Loop:
    """The loop in its child: from here on nothing has values in this process, and each storage is noted.

    Args:
        wanted: What is planned.
        answers: Asked for values.

    Attributes:
        answers: The same.
        log: The storages.
        mode: Under which the training runs.
        notes: Of the plan.
        wanted: The shape of batches.
        collating: As in `Wanted`.
        rounds: Of the training that is under way.
        shapes: Of the batches.
        num_passes: Backward passes.
        each: How many a step has, from the first one on.
        skipped: Rounds that are not planned at the begin.
        is_certain: Whether a training is here in any case.
        all_rows: Of the data set that is trained with.
        looks_ahead: Whether it ends somewhere.
        tells_ends: Whether its steps go on after that of the optimizer, to an end that is told.
        ahead: What comes later.
    """

    def __init__(self, wanted: Wanted, answers: StandIns) -> None:
        for edit in wanted.edits:
            edit()
        self.wanted, self._on_device, self.answers = wanted.shape, wanted.on_device, answers
        self.collating = wanted.collating
        self.log, self.notes = StorageLog(), list[str]()
        self.mode = Pretending(self.log, wanted.on_device, answers)
        private.need_no_values(self.notes)
        take_fewer_tokens(self.notes)
        private.leave_uncompiled(self.notes)
        follow_resizing(self.log, self.notes)
        if wanted.on_device:
            private.step_as_on_a_device(self.notes)
        answers.answer(not wanted.on_device, self.notes)
        self._layers = set[type]()  # also of models that are gone, as those of a function that has ended
        self._models, self._stepping = WeakSet[nn.Module](), WeakSet[nn.Module]()
        self._in_training = WeakSet[nn.Module]()  # those that were called so
        self._untrained = WeakSet[nn.Module]()  # those that have made a graph which no optimizer needs
        self._others = WeakKeyDictionary[nn.Module, int]()
        self._uses = Counter[int]()  # of each module by its id, since the last backward pass
        self._left: list[tuple[torch.Tensor, list[int]]] = []  # to those, by the last pass: gradients as they were
        self.trains_with((), ())
        self.shapes: list[PlannedShape] = []
        # Of a batch of another size that was made before, or of what was computed before, a first round is not planned
        self.skipped, self.each, self.is_certain, self._is_new = 0, 1, True, True
        self.looks_ahead = self.tells_ends = self._is_enough = self._closes = self._is_same = False
        self.all_rows = self._most_operations = 0
        self._idle = self._calls = self.num_passes = self._made_passes = self._leaving = 0

    def find(self, alive: AliveThings, is_late: bool) -> None:
        """Find the models that are trained, their optimizers and the loaders, and take their values."""
        optimizers = alive.all_of(Optimizer)
        leaves = [one for one in alive.all_of(torch.Tensor) if one.is_leaf and one.requires_grad]
        trained = _of_optimizers(optimizers) or set(map(id, leaves))
        models = [one for one in roots(alive.all_of(nn.Module)) if not trained.isdisjoint(map(id, one.parameters()))]
        gradients = [(one, one.grad) for one in leaves if is_late and one.grad is not None]
        if not is_traced():
            owned = {id(one) for module in alive.all_of(nn.Module) for one in module._parameters.values()}
            loose = [one for one in leaves if id(one) in trained or id(one) not in owned]
            self.empty(models, optimizers, alive, leaves=loose)
        else:  # inside of `torch.func.grad`, whose arguments keep their values
            for parameter in nn.ModuleList(models).parameters():
                self.log.saw(parameter, "parameters")
        for leaf, gradient in gradients:  # the step goes on with them
            leaf.grad = self.mode.unknown(gradient)
        self.trains_with(models, optimizers)
        private.let_no_queue_wait(alive.all_of(Queue), self.notes)
        self.is_certain, self.skipped = is_late, int(is_late or self.wanted != PlannedShape())
        self._loaders = Loaders(self, alive.all_of(_BaseDataLoaderIter))

    def empty(
        self, models: Sequence[nn.Module], optimizers: Iterable[Optimizer], alive: AliveThings,
        log: StorageLog | None = None, leaves: Iterable[torch.Tensor] = (), replaced: object = None,
    ) -> None:  # fmt: skip
        """Take the values of these, and of all else that is alive; ranks over which they are spread are not waited for.

        Args:
            models: That are trained, which may share weights.
            optimizers: Of them.
            alive: What there is.
            log: Told of the models' weights in place of this one's.
            leaves: What is trained and is in no model.
            replaced: A batch that is planned in another size.
        """
        emptied = Emptied(self.mode, self.log if log is None else log)
        with torch.no_grad():
            for model in models:
                emptied.model(model)
            for leaf in leaves:
                emptied.parameter(leaf)
            for optimizer in optimizers:
                emptied.optimizer(optimizer)
            self._others.update(emptied.others(alive, self.log, replaced))
        prepare_ranks(models, self.mode, self.notes)

    def trains_with(self, models: Iterable[nn.Module], optimizers: Iterable[Optimizer]) -> None:
        """These are trained; others are noticed when they are called, or step."""
        self._meet(models)
        self._trained = _of_optimizers(optimizers)
        self.rounds = Rounds(self.log, optimizers)

    def _meet(self, models: Iterable[nn.Module]) -> None:
        """They are trained, or called."""
        self._models.update(models)
        self._layers |= {type(one) for model in self._models for one in model.modules()}

    def begin(self, give_answer: GiveAnswer) -> None:
        """Compute nothing from now on, until the script ends or it is enough: then answer the parent."""
        self._give_answer = give_answer
        self.ahead = Ahead(self, self._models)
        # `Module.to`: it refuses weights in use
        private.replace("torch.utils:swap_tensors", lambda _: private.swap, self.notes)
        let_tensors_be_copied(self.notes)
        private.write_no_weights(self.notes)
        private.surround("torch.optim:Optimizer.__init__", self._made, self.notes)
        self.log.begin("data", self.step)
        self.mode.__enter__()  # type: ignore[no-untyped-call]

    @property
    def step(self) -> int:
        """That is planned; 0 in one that is not."""
        if self.ahead.skips:
            return 0
        if self.rounds.optimizers:
            return 0 if self.skipped else self.rounds.step
        return min(STEPS, self.num_passes + 1 - self.skipped)

    def most_batches(self, of_epoch: int) -> int:
        """That come: nobody knows of another epoch."""
        return of_epoch

    def is_first(self, _: int) -> bool:
        """Whether a batch belongs to the first step."""
        return self.rounds.step == 1

    def has_stepped(self) -> bool:
        """Whether a backward pass or an optimizer was planned."""
        return not {"backward", "optimizer"}.isdisjoint(one.phase for one in self.log.stretches if one.step)

    def is_through(self) -> bool:
        """Whether it is enough; asked where a batch begins, unless it has, since the last backward pass."""
        if self._is_new and not self.ahead.is_stepping:
            self._is_new, was_enough = False, self._is_enough
            is_enough = not self.rounds.go_on()
            is_enough = is_enough if self.rounds.optimizers else self.num_passes - self.skipped >= STEPS
            is_certain = self.looks_ahead and self.ahead.steps > 0 and not self._loaders.waiting
            self._is_enough = self.ahead.is_through(is_enough) if is_certain else is_enough
            if self._is_enough and self.ahead.has_all and not self._loaders.differ:
                self.end()
            if self._is_enough and not was_enough:
                self._most_operations = self.answers.operations + max(self.answers.operations, 10 * _MOST_CALLS)
        return self._is_enough

    def again(self) -> None:
        """Another round is to come."""
        self.rounds.again()
        self._is_enough = False

    def counts_idle(self) -> None:
        """No training may follow, or its steps may fail; and where it is enough what follows may be long."""
        self._idle += 1
        is_long = self.is_through() and self.answers.operations > self._most_operations
        if is_long or self._idle > _MOST_CALLS:
            self.end(f"{self.ahead.steps or self.num_passes:,} steps")

    def end(self, before: str = "", error: BaseException | None = None) -> NoReturn:
        """Tell the parent what there is, and end this process.

        Args:
            before: What is planned, where something comes after it.
            error: That has ended the loop.
        """
        self.ahead.tell(not before and error is None, fails=error is not None)
        plan, problem = None, ""
        try:
            plan = self._plan(before, error)
        except PlanError as refused:
            problem = str(refused)
        # Where this is no training other answers don't help
        self._give_answer(Attempt(plan, problem, StandIns() if problem == NOT_HERE else self.answers))

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has."""
        was = self.rounds.step
        self._trained |= _of_optimizers([optimizer])
        self.rounds.stepped(optimizer)
        if was == 1:  # of two optimizers one may step more often
            self.each, self._leaving = max(self.each, self._leaving), 0
        self._closes = False
        if self.skipped and self.rounds.step > 1:
            self.rounds, self.skipped = Rounds(self.log, self.rounds.optimizers), 0
        if not self.tells_ends and (self.step != self.log.stretches[-1].step or not self._calls):
            self.log.begin("data" if self._calls else "forward", self.step)

    def _made(self, make: Callable[..., None], optimizer: Optimizer, *args: object, **keywords: object) -> None:
        """An optimizer that is made when it is enough belongs to another training."""
        make(optimizer, *args, **keywords)
        if self.is_through():
            self.rounds, self._is_enough = Rounds(self.log), False
        self._leaving = 0
        self.rounds.add(optimizer)
        self._trained |= _of_optimizers([optimizer])

    @property
    def trains(self) -> bool:
        """Whether it is no evaluation."""
        return torch.is_grad_enabled() and (not self._stepping or any(one.training for one in self._stepping))

    def called(self, module: nn.Module, args: Sequence[object], keywords: Mapping[str, object]) -> None:
        """A module that no other has called."""
        parameters = list(module.parameters())
        # Made since, not gathered by `fully_shard`
        if any(type(one) is nn.Parameter for one in parameters) and not hasattr(module, "_get_fsdp_state"):
            with torch.no_grad():
                Emptied(self.mode, self.log).model(module)
            self._meet([module])
        if parameters and self.log.phase != "backward":  # else it is called again by checkpointing
            self._calls += 1
            shape = shape_of((*args, keywords) if args else keywords)
            # With a graph, too
            evaluates = not torch.is_grad_enabled() or (module in self._in_training and not module.training)
            # Of what a loader makes a piece is still that batch; of several calls it is that of the largest
            unknown = shape if evaluates or not self.shapes else PlannedShape()
            shape = next((one for one in self.shapes if one[:2] == shape[:2]), unknown)
            before = self.log.batch if self._is_same else PlannedShape()
            self.log.batch = max(shape, before, key=lambda one: (one.rows or 0) * (one.length or 1))
            self.is_through()
            is_teacher = self.log.phase != "evaluate" and not any(id(one) in self._trained for one in parameters)
            self.log.begin("evaluate" if evaluates and not is_teacher else "forward", self.step)
            # What is given of a graph goes on with it, as a cell does from token to token
            goes_on = any(one.requires_grad for one in tensors_among((args, keywords)))
            if not goes_on:
                self.counts_idle()
            self._is_same = self.log.phase == "forward"
            if torch.is_grad_enabled():
                self.log.evaluates_with_graph |= self.log.phase == "evaluate"
                is_pass = not (goes_on or evaluates or is_teacher)
                self._uses[id(module)] += is_pass
                if is_pass and self._uses[id(module)] > 1:
                    self.log.joins_passes(self._uses[id(module)])
                self._stepping.add(module)
                (self._in_training if module.training else set()).add(module)
        for tensor in tensors_among((args, keywords)):
            if not tensor.requires_grad:
                self.log.saw(tensor, "batch")

    def part_of_call(self, module: nn.Module, given: object) -> str | None:
        """What it makes, where that is known: a graph that no optimizer needs, if nothing that is given is trained."""
        is_needed = any(one.requires_grad for one in tensors_among(given)) or not torch.is_grad_enabled()
        if self.log.making is not None or is_needed or not self._trained:
            return self.log.making
        asking = [one for one in module.parameters() if one.requires_grad]
        # Those of `torch.func.functional_call` may have been made of trained ones
        if not asking or not all(one.is_leaf for one in asking) or not self._trained.isdisjoint(map(id, asking)):
            return None
        self._untrained.add(module)
        return OTHER_GRAPHS

    def passes(self) -> None:
        """A backward pass begins. Who changes gradients, or takes them away, needs them without an optimizer."""
        self._trained.update(id(one) for one, left in self._left if _state_of(one.grad) != left)
        if not self._calls:
            self.counts_idle()

    def passed(self, leaves_gradients: bool) -> None:
        """It has ended. Those that only return gradients, and an optimizer's own, are no batches."""
        self.num_passes += 1
        self._made_passes += not self.ahead.skips
        self._uses.clear()
        # A closure's, of which there may be several, are of one batch
        self._leaving += leaves_gradients and not (self.ahead.is_stepping and self._closes)
        self._closes, self._is_same = self.ahead.is_stepping, self._is_same and not leaves_gradients
        self._idle, self._is_new = 0, True
        graded = (one for of in self._untrained for one in of.parameters() if one.grad is not None)
        self._left = [(one, _state_of(one.grad)) for one in graded]
        if not self._calls and not self.rounds.optimizers:
            self.log.begin("forward", self.step)

    def _plan(self, before: str, error: BaseException | None) -> Plan:
        if not self.num_passes and self.rounds.step == 1 and not self.is_certain:
            raise PlanError(NOT_HERE)
        if error is not None and not (self.ahead.has_looked or self.is_through()):
            raise PlanError(problem_of(error))
        if not self.has_stepped():
            is_idle = self._idle > _MOST_CALLS
            came = f"{_MOST_CALLS:,} calls of models have come" if is_idle else "the script has ended"
            raise PlanError(f"{came} before a whole step could be planned")
        if self.wanted != PlannedShape() and not self.shapes:
            raise PlanError("batches of another size can't be planned: torch's DataLoader does not make them")
        if self.wanted.length is not None and not any(one.length for one in self.shapes):
            raise PlanError("batches have no rows of tokens (input_ids) that could be of another length")
        before = f"an error: {problem_of(error)}" if error is not None else before
        self.notes += [not_through(f"{before}.")] if before else []
        self.notes += self.rounds.notes() if self.rounds.optimizers else []
        if 0 < self.all_rows < (self.wanted.rows or 0):
            self.notes.append(Note(f"The data set has {self.all_rows:,} rows: no batch has more.", "at most"))
        # One may be loaded ahead; of a batch there may be several passes, or none
        of_each = round(self._made_passes / (len(self.shapes) - 0.5)) if self.shapes else 1
        batches = self.each * max(1, len(self.shapes) // max(1, self._made_passes)) // max(1, of_each) or 1
        notes = [*notes_on(self._layers, self._on_device), *self.notes]
        needless = [one for one in self._untrained if self._trained.isdisjoint(map(id, one.parameters()))]
        self.log.mark_lasting(KEPT)
        kinds = {part: self.log.alive_of(part) for part in (OTHER_TENSORS, KEPT)}
        names, held = holders_of({*needless, *self._others}, kinds, self.log.sizes)
        models = Counter[str]()
        for model, size in self._others.items():
            models[names[model]] += size
        notes += note_of("Other models", models.most_common())
        notes += note_of("Other tensors", [(one.name, one.num_bytes) for one in held[OTHER_TENSORS]])
        untrained = tuple(names[one] for one in needless)
        notes += map("No optimizer trains {}: torch.no_grad() around its call keeps no graph.".format, untrained)
        self.log.kept = held[KEPT]
        notes += note_of("Kept from step to step", [(one.name, one.num_bytes) for one in held[KEPT]])
        shapes = sorted(self.shapes, key=lambda shape: -(shape.rows or 0) * (shape.length or 1))
        plan = plan_of_log(self.log, shapes, notes, self.mode.host)
        return replace(plan, accumulation=batches, passes=self.each, all_rows=self.all_rows, untrained=untrained)


def _state_of(gradient: torch.Tensor | None) -> list[int]:
    return [id(gradient), -1 if gradient is None else gradient._version]


def _of_optimizers(optimizers: Iterable[Optimizer]) -> set[int]:
    """The parameters that they train, by id."""
    return {id(one) for of in optimizers for group in of.param_groups for one in group["params"]}
