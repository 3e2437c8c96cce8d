"""A script's own loop, planned where it stands: from the first call of a model on it computes nothing.

It goes on in a forked child as it would have, until it is enough. What is changed in torch there is so for good.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Callable, Iterable, Mapping
from queue import Queue
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from torch import distributed, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader, _DatasetKind
from torch.utils.data.dataloader import _BaseDataLoaderIter, _SingleProcessDataLoaderIter

from forgather_mem.errors import PlanError
from forgather_mem.planning.batches import Loader, PlannedShape, Wanted, batches_of_longest_rows, largest, shape_of
from forgather_mem.planning.changes import leave_uncompiled, need_no_values, step_as_on_a_device
from forgather_mem.planning.highest import Told
from forgather_mem.planning.isolation.child import GoesOn, Tell
from forgather_mem.planning.loop.backward_passes import around_passes
from forgather_mem.planning.loop.rounds import NOT_THROUGH, Rounds
from forgather_mem.planning.model import empty, notes_on, roots, swap
from forgather_mem.planning.phases import STEPS, tell_phases
from forgather_mem.planning.pretending import Pretending, tensors_among
from forgather_mem.planning.ranks import prepare_ranks
from forgather_mem.planning.refusal import problem_of
from forgather_mem.planning.result import Plan, plan_of_log
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import StorageLog
from forgather_mem.system.tracing import is_traced

NOT_HERE = "no training begins here"
_NO_EVALUATION = "No evaluation came within the planned steps; one that comes later is not planned."
_MOST, _MOST_CALLS = 64, 1000
_KINDS = nn.Module, Optimizer, torch.Tensor, _BaseDataLoaderIter, Queue


class Script:
    """A loop of a script's own, where its first step begins.

    Args:
        is_late: Whether a part of a step has been computed, which is not planned.
    """

    def __init__(self, is_late: bool) -> None:
        self.is_late = is_late

    def plan(self, wanted: Wanted, answers: StandIns) -> NoReturn:
        """Let a child go on as the script, until it is planned.

        Raises:
            PlanError: if it can't be planned.
            GoesOn: else.
        """
        if wanted.ranks > 1:
            raise PlanError("--ranks is for a Trainer: of another loop plan the model of one rank, in Python")
        raise GoesOn(_Loop(wanted, answers, self.is_late).begin)


class _Loop:
    """The loop in its child.

    Args:
        wanted: The batches to plan in place of its own.
        answers: Asked for values.
        is_late: See `Script`.
    """

    def __init__(self, wanted: Wanted, answers: StandIns, is_late: bool) -> None:
        need_no_values()
        if wanted.on_device:
            step_as_on_a_device()
        self._wanted, self._answers, self._log = wanted, answers, StorageLog()
        self._mode = Pretending(self._log, wanted.on_device, answers)
        answers.answer(holds=not wanted.on_device)
        gc.unfreeze()
        found = [one for one in gc.get_objects() if issubclass(type(one), _KINDS)]
        self._optimizers = [one for one in found if isinstance(one, Optimizer)]
        leaves = [one for one in found if isinstance(one, torch.Tensor) and one.is_leaf and one.requires_grad]
        self._trained = _of_optimizers(self._optimizers)
        trained = self._trained or set(map(id, leaves))
        models = [
            one
            for one in roots([one for one in found if isinstance(one, nn.Module)])
            if any(id(parameter) in trained for parameter in one.parameters())
        ]
        iterators = [one for one in found if isinstance(one, _BaseDataLoaderIter)]
        _let_no_queue_wait([one for one in found if isinstance(one, Queue)])
        del found
        self._notes: list[str] = []
        gradients = [(one, one.grad) for one in leaves if is_late and one.grad is not None]
        if not is_traced():
            self._notes = empty(models, self._optimizers, self._mode, self._log, leaves=leaves)
        else:  # inside of `torch.func.grad`, whose arguments keep their values
            for parameter in nn.ModuleList(models).parameters():
                self._log.saw(parameter, "parameters")
        for leaf, gradient in gradients:  # the step goes on with them
            leaf.grad = self._mode.unknown(gradient)
        del leaves, gradients
        if distributed.is_available() and distributed.is_initialized():
            prepare_ranks(models, self._mode)
        self._models, self._stepping = nn.ModuleList(models), WeakSet[nn.Module]()
        self._shapes: list[PlannedShape] = []
        self._given: list[PlannedShape] = []
        is_changed = self._plan_batches(iterators)
        # Of batches that were made before, or of what was computed before, a first round is not planned
        self._skipped = int(is_late or is_changed)
        self._is_late = is_late
        self._rounds = Rounds(self._log, self._optimizers)
        self._since_pass = self._depth = self._calls = self._passes = self._evaluated = self._ahead = self._epochs = 0
        self._is_new, self._is_through, self._cut = True, False, False

    def begin(self, tell: Tell) -> None:
        """Compute nothing from now on, until it is enough: then tell the parent."""
        self._tell = tell
        leave_uncompiled(self._notes)
        tell_phases(self._log, [self._models], self._stepped)
        around_passes(self._pass)
        torch.utils.swap_tensors = swap  # for `Module.to`: torch's refuses weights that are in use
        # For `torch.save`: what it writes is lost
        FakeTensor.__reduce_ex__ = lambda *_: (torch.empty, (0,))  # type: ignore[method-assign]
        call = nn.Module.__call__

        def called(module: nn.Module, *args: object, **keywords: object) -> object:
            self._depth += 1
            try:
                if self._depth == 1 and not is_traced():
                    self._call(module, args, keywords)
                return call(module, *args, **keywords)
            finally:
                self._depth -= 1

        nn.Module.__call__ = called  # type: ignore[method-assign]
        if (trainers := sys.modules.get("transformers.trainer")) is not None:
            trainers.Trainer.train = lambda *_, **__: self.end()
        atexit.register(self.end)
        sys.excepthook = lambda _, error, __: self.end(error)
        self._log.begin("data", self._step)
        self._mode.__enter__()  # type: ignore[no-untyped-call]

    def _stepped(self, optimizer: Optimizer) -> None:
        if all(one.param_groups is not optimizer.param_groups for one in self._optimizers):
            self._optimizers.append(optimizer)
            self._trained |= _of_optimizers([optimizer])
        self._rounds.stepped(optimizer)
        if self._skipped and self._rounds.step > 1:
            self._rounds, self._skipped = Rounds(self._log, self._optimizers), 0
        if self._step != self._log.step or not self._calls:
            self._log.begin("data" if self._calls else "forward", self._step)

    @property
    def _step(self) -> int:
        """That is planned; 0 in one that is not."""
        if self._optimizers:
            return 0 if self._skipped else self._rounds.step
        return min(STEPS, self._passes + 1 - self._skipped)

    @property
    def _trains(self) -> bool:
        """Whether it is no evaluation."""
        return torch.is_grad_enabled() and (not self._stepping or any(one.training for one in self._stepping))

    def _call(self, module: nn.Module, args: tuple[object, ...], keywords: Mapping[str, object]) -> None:
        parameters = list(module.parameters())
        if any(type(one) is nn.Parameter for one in parameters):  # made since
            empty([module], [], self._mode, self._log)
            self._models.append(module)
        if parameters and self._log.phase != "backward":  # else it is called again by checkpointing
            self._calls += 1
            self._since_pass += 1
            if self._since_pass > _MOST_CALLS:  # no training follows, or its steps fail
                self.end()
            self._begin("forward" if torch.is_grad_enabled() else "evaluate", parameters)
            if torch.is_grad_enabled():
                self._stepping.add(module)
                self._given = self._given or [shape_of(keywords or args)]
        for tensor in tensors_among((args, keywords)):
            if not tensor.requires_grad:
                self._log.saw(tensor, "batch")

    def _begin(self, phase: str, parameters: Iterable[torch.Tensor]) -> None:
        self._batch_begins()
        if self._is_through and phase == "forward":
            self._end_if_through()
        elif self._is_through:
            self._evaluated += 1
            if self._evaluated > _MOST:
                self._notes.append(f"{NOT_THROUGH} {_MOST} batches of the evaluation.")
                self.end()
        if phase == "evaluate" and not any(id(one) in self._trained for one in parameters):  # a teacher
            phase = "evaluate" if self._log.phase == "evaluate" else "forward"
        self._log.begin(phase, self._step)

    def _train_next(self) -> None:
        """The next epoch ends at once; but another training may begin, with an optimizer that was made since."""
        made = [one for one in gc.get_objects() if issubclass(type(one), Optimizer)]  # all else is frozen
        new = [one for one in made if not _of_optimizers([one]) <= self._trained]
        if new:
            self._trained |= _of_optimizers(new)
            self._optimizers, self._rounds = new, Rounds(self._log, new)
            self._is_through = self._cut = False
        self._epochs += 1
        if self._epochs > _MOST:
            self.end()

    def _batch_begins(self) -> None:
        """Unless it has, since the last backward pass."""
        if self._is_new:
            self._is_new = False
            is_enough = not self._rounds.go_on()
            self._is_through = is_enough if self._optimizers else self._passes - self._skipped >= STEPS

    def _end_if_through(self) -> None:
        """A loop whose data loader has come to an end may have batches that it has loaded before."""
        if self._is_through:
            self._ahead += 1
            if not self._cut or self._ahead > STEPS:
                self.end()

    def _pass(self, backward: Callable[..., object], *args: object, **keywords: object) -> object:
        is_inner = self._log.phase == "backward"
        if not is_inner and not self._calls:
            self._batch_begins()
            self._end_if_through()
        result = backward(*args, **keywords)
        if not is_inner:
            self._passes += 1
            self._since_pass = 0
            self._is_new = True
            if not self._calls and not self._optimizers:
                self._log.begin("forward", self._step)
        return result

    def _plan_batches(self, iterators: Iterable[Any]) -> bool:
        """Let data loaders make the plan's batches; whether those that there are would have made others."""
        load, known, following = DataLoader._get_iterator, WeakSet[Loader](), _BaseDataLoaderIter.__next__

        def planned(loader: DataLoader[object]) -> object:
            if self._cut and self._trains:
                self._train_next()
            if loader not in known:
                known.add(loader)
                self._of_longest_rows(loader)
            return load(loader)

        def follows(iterator: Any) -> object:
            if not self._trains or not self._passes:
                return following(iterator)
            self._batch_begins()
            if self._is_through:  # what follows an epoch is planned, too
                self._cut = True
                raise StopIteration
            try:
                return following(iterator)
            except StopIteration:
                if not self._skipped:
                    raise
                iterator._sampler_iter = iter(iterator._index_sampler)  # the round that is skipped is no part of it
                return following(iterator)

        DataLoader._get_iterator = planned  # type: ignore[method-assign,assignment]
        _BaseDataLoaderIter.__next__ = follows  # type: ignore[method-assign,assignment]
        is_changed = self._wanted.shape != PlannedShape()
        for of in iterators:
            of.__class__ = _SingleProcessDataLoaderIter  # a child can't use its parent's workers
            of._pin_memory = False
            of._dataset_fetcher = _DatasetKind.create_fetcher(
                of._dataset_kind, of._dataset, of._auto_collation, of._collate_fn, of._drop_last
            )
            of._dataset_fetcher.batch_sampler = of._index_sampler if of._auto_collation else None
            is_changed |= self._of_longest_rows(of._dataset_fetcher)
        return is_changed

    def _of_longest_rows(self, loader: Any) -> bool:
        """Whether it will make other batches than it has."""
        is_trained, wanted = self._trains, self._wanted.shape
        if loader.batch_sampler is None:  # the data set makes them
            return False
        rows = getattr(loader.batch_sampler, "batch_size", None) or 1
        if not is_trained:
            return batches_of_longest_rows(loader, rows, "length", wanted._replace(rows=None)) is not None
        longest = batches_of_longest_rows(loader, rows, "length", wanted, self._shapes.append)
        if longest is not None and wanted.length is None:
            self._notes.extend([] if longest.note() in self._notes else [longest.note()])
        return longest is not None

    def end(self, error: BaseException | None = None) -> NoReturn:
        """Tell the parent what there is, and end this process."""
        plan, problem = None, ""
        try:
            plan = self._plan(error)
        except PlanError as refused:
            problem = str(refused)
        # Where this is no training other answers don't help
        answers = StandIns() if problem == NOT_HERE else self._answers
        self._tell(Told(plan, problem, answers), None)

    def _plan(self, error: BaseException | None) -> Plan:
        self._batch_begins()
        phases = {one.phase for one in self._log.stretches if one.step}
        if not self._passes and self._rounds.step == 1 and not self._is_late:
            raise PlanError(NOT_HERE)
        if error is not None and not self._is_through:
            raise PlanError(problem_of(error))
        if not {"backward", "optimizer"} & phases:
            raise PlanError("the script has ended before a whole step could be planned")
        if self._wanted.shape != PlannedShape() and not self._shapes:
            raise PlanError("batches of another size can't be planned: torch's DataLoader does not make them")
        notes = [note for model in self._models for note in notes_on(model, self._wanted.on_device)] + self._notes
        if error is not None and self._log.phase == "evaluate":
            notes.append(f"{NOT_THROUGH} an error in the evaluation: {problem_of(error)}")
        if "evaluate" not in {one.phase for one in self._log.stretches}:
            notes.append(_NO_EVALUATION)
        notes += self._rounds.notes() if self._optimizers else []
        return plan_of_log(self._log, largest(self._shapes or self._given), notes=notes, host=self._mode.host)


def _let_no_queue_wait(queues: Iterable[Queue[object]]) -> None:
    """For threads that this process does not have: what is put into a full queue of theirs takes the place of another.

    So it is with that of a TensorBoard writer, which is waited for until it is empty.
    """
    known, put, join = WeakSet(queues), Queue.put, Queue.join

    def replacing(queue: Queue[object], item: object, block: bool = True, timeout: float | None = None) -> None:
        while queue in known and 0 < queue.maxsize <= queue.qsize():
            queue.get_nowait()
        put(queue, item, block, timeout)

    def joined(queue: Queue[object]) -> None:
        if queue not in known:
            join(queue)

    Queue.put, Queue.join = replacing, joined  # type: ignore[method-assign,assignment]


def _of_optimizers(optimizers: Iterable[Optimizer]) -> set[int]:
    """The parameters that they train, by id."""
    return {id(one) for of in optimizers for group in of.param_groups for one in group["params"]}
