"""What each process that plans begins with: from here on nothing has values in it, and each storage is noted."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from forgather_mem.planning.batches import PlannedShape, Wanted
from forgather_mem.planning.model import AliveThings, Emptied, notes_on
from forgather_mem.planning.pretending import Pretending
from forgather_mem.planning.private_state import leave_uncompiled, need_no_values, step_as_on_a_device
from forgather_mem.planning.ranks import follow_resizing, prepare_ranks
from forgather_mem.planning.recurrent import take_fewer_tokens
from forgather_mem.planning.result import Plan, plan_of_log
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import StorageLog


class Stage:
    """A process that plans, for good.

    Args:
        wanted: What is planned.
        answers: Asked for values.

    Attributes:
        wanted, answers: The same.
        log: The storages.
        mode: Under which the training runs.
        notes: Of the plan.
    """

    def __init__(self, wanted: Wanted, answers: StandIns) -> None:
        self.wanted, self.answers, self.log, self.notes = wanted, answers, StorageLog(), list[str]()
        self.mode = Pretending(self.log, wanted.on_device, answers)
        need_no_values(self.notes)
        take_fewer_tokens(self.notes)
        leave_uncompiled(self.notes)
        follow_resizing(self.log, self.notes)
        if wanted.on_device:
            step_as_on_a_device(self.notes)
        answers.answer(not wanted.on_device, self.notes)

    def empty(
        self,
        models: Sequence[nn.Module],
        optimizers: Iterable[Optimizer],
        alive: AliveThings,
        log: StorageLog | None = None,
        leaves: Iterable[torch.Tensor] = (),
        replaced: object = None,
    ) -> None:
        """Take the values of these, and of all else that is alive; ranks over which they are spread are not waited for.

        Args:
            models: That are trained, which may share weights.
            optimizers: Of them.
            alive: What there is.
            log: Told of the models' weights in place of the stage's.
            leaves: What is trained and is in no model.
            replaced: A batch that is planned in another size.
        """
        emptied = Emptied(self.mode, self.log if log is None else log)
        for model in models:
            emptied.model(model)
        emptied.leaves(leaves)
        for optimizer in optimizers:
            emptied.optimizer(optimizer)
        self.notes += emptied.others(alive, self.log, self.answers.names, replaced)
        prepare_ranks(models, self.mode, self.notes)

    def plan(self, models: Iterable[nn.Module], shape: PlannedShape, batches: int = 1, passes: int = 1) -> Plan:
        """What all of it comes to, with so many batches and backward passes in a step."""
        notes = [*(note for model in models for note in notes_on(model, self.wanted.on_device)), *self.notes]
        return plan_of_log(self.log, shape, notes, self.mode.host, accumulation=batches, passes=passes)
