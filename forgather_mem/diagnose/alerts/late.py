"""Tells early what would fail late: a batch or an evaluation that takes too much."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from forgather_mem.diagnose.alerts.alert import Alert, emit_alert
from forgather_mem.probes.live_objects import live_objects
from forgather_mem.telemetry.records import FORETOLD, NOTHING, Moment, RunInfo, Sample

if TYPE_CHECKING:
    # Loaded where there is something to foretell: a loop of the script's own is never planned, and may not evaluate.
    from forgather_mem.diagnose.alerts.evaluation import EvaluationGrowth
    from forgather_mem.diagnose.alerts.planned import PlannedAhead

EVENTS = ("prediction_step", "evaluate", "predict")  # besides the ends of steps


class LateFailures:
    """A work of one training, called at the ends of steps and at `EVENTS`.

    Each kind is told once in a training. Reading costs nothing but a comparison after the first steps and outside the
    first batches of an evaluation; what it asks of the trainer's objects is only read.
    """

    reading = ("late failures",)  # of two in a training the first tells
    lasts = True  # in evaluations after the training, too

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._told: set[str] = set()
        self._evaluation: EvaluationGrowth | None = None
        self._has_evaluated = False
        self._ahead: PlannedAhead | None = None

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        for found in self._look(moment):
            if found is not None and found.name not in self._told:
                self._told.add(found.name)
                emit_alert(moment.run, replace(found, step=moment.step, rank=moment.run.rank), what=FORETOLD)
        return NOTHING

    def _look(self, moment: Moment) -> list[Alert | None]:
        if moment.event == "prediction_step":
            return [self._predicted(moment)]
        self._has_evaluated |= moment.event in ("evaluate", "predict")
        self._evaluation = None
        if moment.event != "step_end" or self._run.trainer() is None:
            return []
        if self._ahead is None:
            from forgather_mem.diagnose.alerts.planned import PlannedAhead

            self._ahead = PlannedAhead(self._run)
        return [*self._ahead.look(moment, has_evaluated=self._has_evaluated)]

    def _predicted(self, moment: Moment) -> Alert | None:
        if "evaluation" in self._told:
            return None
        if self._evaluation is None:
            from forgather_mem.diagnose.alerts.evaluation import EvaluationGrowth

            computes = getattr(self._run.trainer(), "compute_metrics", None) is not None
            self._evaluation = EvaluationGrowth(computes and getattr(moment.args, "eval_do_concat_batches", False))
        return self._evaluation.batch_done(lambda: self._num_batches(moment))

    def _num_batches(self, moment: Moment) -> int | None:
        found = num_batches_of(moment)
        if found is None:  # nor will it be found later: a search goes through all objects, and a policy plays often
            self._told.add("evaluation")
        return found


def num_batches_of(moment: Moment) -> int | None:
    """How many batches this evaluation has; None if nobody knows."""
    given = moment.objects.get("num_batches")
    if given is not None:
        return given if isinstance(given, int) else None  # Lightning: infinite for what has no length
    loader = moment.objects.get("eval_dataloader")
    if loader is None:
        return _of_running_loader(moment.objects.get("batches_begun"))
    try:
        return len(loader)
    except TypeError:
        return None


def _of_running_loader(batches_begun: object) -> int | None:
    """The batches of the data loader that is being read, found among all objects: the one that has given as many.

    Where the model is called more than once for each batch there is none, and nothing is foretold.
    """
    loaders = sys.modules.get("torch.utils.data.dataloader")
    if loaders is None or not isinstance(batches_begun, int):
        return None
    # accelerate's is one batch ahead
    given = (batches_begun, batches_begun + 1)
    found = [one for one in live_objects(loaders._BaseDataLoaderIter) if one._num_yielded in given]
    try:
        return min((len(one) for one in found), default=None)
    except TypeError:
        return None
