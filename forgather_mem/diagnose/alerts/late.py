"""Tells early what would fail late: an evaluation that keeps too much, a checkpoint that will not fit."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from forgather_mem.diagnose.alerts.checkpoint import checkpoint_ahead
from forgather_mem.diagnose.alerts.evaluation import EvaluationGrowth, Keeping
from forgather_mem.diagnose.alerts.foretold import Foretold, tell
from forgather_mem.diagnose.alerts.sample_lengths import lengths_of
from forgather_mem.heap.object_size import deep_bytes
from forgather_mem.probes.live_objects import live_objects
from forgather_mem.telemetry.records import NOTHING, Moment, RunInfo, Sample

_LIBRARIES = ("transformers", "forgather_mem", "trl", "accelerate")
EVENTS = ("prediction_step", "evaluate", "predict")  # besides the ends of steps


class LateFailures:
    """A work of one training, called at the ends of steps and at `EVENTS`.

    Each kind is told once in a training. Reading costs nothing but a comparison after the first step and outside the
    first batches of an evaluation; what it asks of the trainer's objects is only read.
    """

    reading = ("late failures",)  # of two in a training the first tells
    lasts = True  # in evaluations after the training, too

    def __init__(self, run: RunInfo) -> None:
        self._run = run
        self._told: set[str] = set()
        self._evaluation: EvaluationGrowth | None = None
        self._has_looked = False  # at what a checkpoint takes

    def __call__(self, moment: Moment, sample: Sample) -> Mapping[str, float]:
        found: Foretold | None = None
        if moment.event == "prediction_step":
            found = self._predicted(moment)
        elif moment.event in ("evaluate", "predict") or self._evaluation is not None:
            self._evaluation = None
        if moment.event == "step_end" and not self._has_looked:
            found = self._before_checkpoints(moment)
        if found is not None:
            self._told.add(found.name)
            tell(moment.run, moment.step, found)
        return NOTHING

    def _predicted(self, moment: Moment) -> Foretold | None:
        if "evaluation" in self._told:
            return None
        if self._evaluation is None:
            trainer = self._run.trainer()
            self._evaluation = EvaluationGrowth(lambda grown_bytes: keeping_of(moment, trainer, grown_bytes))
        return self._evaluation.batch_done(lambda: num_batches_of(moment))

    def _before_checkpoints(self, moment: Moment) -> Foretold | None:
        """After the first step, when the optimizer has its state; of the ranks the one that writes."""
        self._has_looked = True
        stay = not _may_move_checkpoints(self._run.trainer())
        return None if moment.run.rank else checkpoint_ahead(moment, stay=stay)


def keeping_of(moment: Moment, trainer: object, grown_bytes: float) -> Keeping:
    """How this evaluation keeps its predictions, of which so many bytes have grown: by a Trainer's arguments.

    Without metrics `evaluate` keeps nothing of them, `predict` all.
    """
    if not hasattr(moment.args, "eval_accumulation_steps"):
        return Keeping()
    is_kept = getattr(trainer, "compute_metrics", None) is not None or _kept_by_trainer() > grown_bytes / 2
    return _of_trainer(moment, trainer) if is_kept else Keeping()


def _of_trainer(moment: Moment, trainer: object) -> Keeping:
    args = moment.args
    if getattr(trainer, "preprocess_logits_for_metrics", None) is not None:
        advice = "let preprocess_logits_for_metrics return less"
    else:
        advice = "reduce them in preprocess_logits_for_metrics, as by logits.argmax(-1)"
    if hasattr(args, "batch_eval_metrics"):
        advice += ", set batch_eval_metrics=True"
    joins = bool(getattr(args, "eval_do_concat_batches", True))
    return Keeping(
        is_known=joins or not _varies(moment.objects.get("eval_dataloader")),
        joins=joins,
        moves_every=args.eval_accumulation_steps,
        moves=True,
        kept_bytes=_kept_by_trainer if _container() is not None else None,
        advice=f"{advice}, or evaluate fewer samples",
    )


def _varies(loader: object) -> bool:
    """Whether the samples are known to be of various lengths: batches that are not joined are then, too."""
    dataset = getattr(loader, "dataset", None)
    lengths = lengths_of(dataset) if dataset is not None else None
    return lengths is not None and len(set(lengths)) > 1


def _container() -> type[object] | None:
    """The class in which a Trainer keeps what it has predicted, labels, and losses."""
    return getattr(sys.modules.get("transformers.trainer_pt_utils"), "EvalLoopContainer", None)


def _kept_by_trainer() -> int:
    """Bytes of all that is in such containers; 75 ms among 350 000 objects."""
    counted: set[tuple[object, int]] = set()
    return int(sum(deep_bytes(one, set(), counted) for one in live_objects(_container() or ())))


def _may_move_checkpoints(trainer: object) -> bool:
    """Whether a callback that is no library's hears of each checkpoint: it may take it elsewhere."""
    callbacks = getattr(getattr(trainer, "callback_handler", None), "callbacks", ())
    written = [getattr(type(callback), "on_save", None) for callback in callbacks]
    return any(getattr(one, "__module__", "").partition(".")[0] not in _LIBRARIES for one in written if one is not None)


def num_batches_of(moment: Moment) -> int | None:
    """How many batches this evaluation has; None if nobody knows."""
    given = moment.objects.get("num_batches")
    if given is not None:
        return _number(given)
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


def _number(value: object) -> int | None:
    return value if isinstance(value, int) else None  # Lightning: infinite for what has no length
