"""What a training took that ran out of memory, as plain values, and why it was killed: held against what its plan says.

The parent tells the first to the process that plans it, and makes the second of the answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.context import AHEAD, DETACHED, FREE_HEAP, NO_GRAPH, UNSEEN, WORKERS, RunSettings
from forgather_mem.diagnose.oom.explanation import as_written, of_loading, why_now
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.messages import OF_TORCH
from forgather_mem.diagnose.oom.remedies import PREDICTS, may_help
from forgather_mem.diagnose.oom.remedy import WHEN, doing
from forgather_mem.engine.settings import OF_GENERATE
from forgather_mem.reporting.problems import PLANNED_PHASES, was_killed_for_memory
from forgather_mem.telemetry.events import OPAQUE_PHASES, STEP_PHASES
from forgather_mem.telemetry.report import TENSORS, THERE_BEFORE, Change, KilledReport, OomReport, RunReport
from forgather_mem.telemetry.report_part import ReportPart, Signed
from forgather_mem.units import format_bytes

# Of what a report finds in use, what a plan has, too; the rest is beside it whatever the training
_TENSORS = (*TENSORS, "activations", "evaluation", "the batch")
NOBODY = "", 0, 0
BETWEEN = "code between steps"  # as the phase of a kill in a plan
HARD_LIMIT = "a hard limit can't be raised; a soft one can: ulimit -S"
_OF_STEP = "a step's own"  # after a kill
_OF_PHASE = {"evaluate": "evaluation", "generate": "generation", "save": "saving"}
_ALLOCATORS = ("CUDA and libraries", "kept by the allocator", "private pools")


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedTraining:
    """JSON's types only.

    Attributes:
        phase: In which memory ran out; empty of a killed process that has not told.
        is_first_step: Whether the optimizer had no state yet.
        on_device: Whether a device's memory ran out.
        limit_bytes: What the process could have at most.
        requested_bytes: The allocation that failed; None if nobody has told.
        taken_bytes: By the training's tensors then; None of a killed process.
        unseen_bytes: By at most so much more, which was freed before anybody could look: temporaries of a pass.
        beside_bytes: By everything else; of a killed process by others of its group.
        rows, length: Of the micro-batch.
        sizes: Of its tensors, as in the setting "batch.sizes".
        until_s: When planning has to end.
        needless: The remedies of the census, and their notes, that are about graphs which no training needs.
        keeps_graphs: Whether graphs of earlier passes were kept: so it would be with more, smaller batches.
        grown: Who has kept more and more since the training began, as people write it, how much beside the training and
            how many items: then no other change is enough. Empty, 0 and 0 where nobody has.
        cure: How that is mended where it is no container, but keeps the graphs of earlier steps.
        held: What variables held at the last look before a kill, by what it is called.
    """

    phase: str
    is_first_step: bool
    on_device: bool
    limit_bytes: int
    requested_bytes: int | None = None
    taken_bytes: int | None = None
    beside_bytes: int
    rows: int | None = None
    length: int | None = None
    sizes: str
    until_s: float
    unseen_bytes: int = 0
    needless: Sequence[tuple[str, str]] = ()
    keeps_graphs: bool = False
    grown: tuple[str, int, int] = NOBODY
    cure: str = ""
    held: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class KillInPlan(ReportPart):
    """Where a plan has a training that was killed.

    Attributes:
        phase: In which the plan has it.
        num_bytes: Of the tensors of this phase at its highest moment.
        room_bytes: What was left for them.
        parts: What they are for.
        is_shown: Whether that is as much as there was, so that the plan shows why.
        line, line_bytes: The user's own line that has made a third of them or more, if there is one, and how much.
        held: What had come into variables by then, as in `FailedTraining`.
    """

    phase: str
    num_bytes: int
    room_bytes: Signed
    parts: Mapping[str, int]
    is_shown: bool
    line: str = ""
    line_bytes: int = 0
    held: Mapping[str, int] = field(default_factory=dict)


def failed_training(report: RunReport, until_s: float) -> FailedTraining | str:
    """What this report tells; or why it can't be planned."""
    if report.run.world_size > 1:
        return f"{report.run.world_size} processes trained together"
    leaked_bytes = (report.leak.bytes_per_step or 0) * report.steps if report.leak.verdict == "leak" else 0
    asked_bytes, fit = (report.oom.requested_bytes or 0, report.oom.fit) if report.oom is not None else (0, None)
    if leaked_bytes > asked_bytes or fit is not None:
        return "memory grows at each step"
    return _of_error(report, report.oom, until_s) if report.oom is not None else _of_kill(report, until_s)


def _of_error(report: RunReport, oom: OomReport, until_s: float) -> FailedTraining | str:
    if oom.callback is not None or oom.phase not in PLANNED_PHASES:
        what = "callback" if oom.phase in PLANNED_PHASES else oom.phase
        return f"a plan has no {BETWEEN if what == 'other' else what}"
    grown = _grown(report, oom)
    if grown != NOBODY and (oom.phase == "evaluate" or grown[0] == UNSEEN):
        return f"{grown[0] if grown[0] != UNSEEN else 'what was not looked into'} has grown until then"
    needless = tuple((one.text, one.note or "") for one in report.advice if NO_GRAPH in one.in_script)
    keeps_graphs = any(DETACHED in one.in_script for one in report.advice)
    if keeps_graphs and not needless and grown == NOBODY:  # how much the others would have been nobody knows
        return "graphs of earlier passes are kept until then"
    taken = sum(size for part, size in oom.in_use.items() if _is_of_training(part))
    beside = sum(oom.in_use.values()) - taken
    gaps = oom.in_use.get(FREE_HEAP, 0)  # free for its tensors, too
    beside -= gaps
    if oom.where == "device":  # what torch keeps unused is free for it; the rest is taken before anything is trained
        beside -= sum(oom.in_use.get(part, 0) for part in _ALLOCATORS)
        gaps += oom.in_use.get(_ALLOCATORS[1], 0) * (not oom.kind.endswith(OF_TORCH))  # else counted as free
    # More is free after the error than was: what was then is known to within what was asked for
    unseen = (oom.requested_bytes or 0) if oom.free_bytes is None and oom.where == "host" else 0
    return FailedTraining(
        phase=oom.phase,
        is_first_step=oom.step <= 1,
        on_device=oom.where == "device",
        limit_bytes=taken + beside + gaps + unseen + (oom.free_bytes or 0),
        requested_bytes=oom.requested_bytes,
        taken_bytes=taken,
        beside_bytes=beside,
        rows=(oom.batch or {}).get("rows"),
        length=(oom.batch or {}).get("length"),
        sizes=report.run.settings.get("batch.sizes", "") if oom.phase != "evaluate" else "",
        until_s=until_s,
        unseen_bytes=unseen,
        needless=needless,
        keeps_graphs=keeps_graphs,
        grown=grown,
        cure=next((one.text for one in report.advice if one.in_script.get(DETACHED) == grown[0]), ""),
    )


def _grown(report: RunReport, oom: OomReport) -> tuple[str, int, int]:
    """As in `FailedTraining`: with it any other change only fails later.

    A remedy of the census is to keep less of it, it is larger than what did not fit, and more has come since then than
    the training itself takes.
    """
    if oom.where == "device" or not report.host.allocated_start_bytes:
        return NOBODY
    own = sum(size for part, size in oom.in_use.items() if _is_of_training(part) and part != "parameters")
    came = (report.host.allocated_end_bytes or 0) - report.host.allocated_start_bytes - own
    told = {name: most for change in report.advice for name, most in change.in_script.items()}
    named = {UNSEEN: 0} | {name: most for name, most in told.items() if name.startswith("`") and isinstance(most, int)}
    named |= {str(name): 0 for change in report.advice for name in [change.in_script.get(DETACHED)] if name}
    beside = [(part, size) for part, size in oom.in_use.items() if not _is_of_training(part)]
    held = [(size, name) for part, size in beside for name in named if part.endswith(name)]
    size, name = max(held, default=(0, ""))
    return (name, size, 2 * named[name]) if 2 * came > size > (oom.requested_bytes or 0) else NOBODY


def _is_of_training(part: str) -> bool:
    of_training = part.startswith(("graph", "gradients of", "optimizer state of", "evaluation"))
    return part in _TENSORS or (of_training and not part.startswith("graphs of earlier steps"))


def _of_kill(report: RunReport, until_s: float) -> FailedTraining | str:
    killed, host, settings = report.killed, report.host, report.run.settings
    if killed is None or not was_killed_for_memory(killed, host):
        return "memory has not run out"
    had = _measured(report, killed)
    if had.get("grown step by step", 0) > sum(had.get(part, 0) for part in (_OF_STEP, *_OF_PHASE.values(), "other")):
        return "memory grows at each step"
    if killed.has_trained:
        return "a plan has nothing after the training"
    if (inside := _case_of(report).line) or killed.phase in OPAQUE_PHASES - {"evaluate"}:
        return f"a plan has no {inside or killed.phase}"
    has_told = report.steps or killed.phase in PLANNED_PHASES
    numbers = {name: int(settings[f"batch.{name}"]) for name in ("rows", "length") if f"batch.{name}" in settings}
    return FailedTraining(
        phase=killed.phase if has_told else "",
        is_first_step=report.steps == 0,
        on_device=False,
        limit_bytes=host.limit_bytes,
        beside_bytes=others_bytes_of(killed),
        rows=numbers.get("rows"),
        length=numbers.get("length"),
        sizes=settings.get("batch.sizes", ""),
        until_s=until_s,
        held=killed.in_use,
    )


def parsed_sizes(sizes: str) -> Mapping[str, tuple[int, ...]]:
    """
    >>> parsed_sizes("input_ids=8x512 labels=8")
    {'input_ids': (8, 512), 'labels': (8,)}
    """
    pairs = (one.partition("=") for one in sizes.split())
    return {name: tuple(int(side) for side in shape.split("x") if side.isdecimal()) for name, _, shape in pairs}


# ---- after a kill ----


def may_help_after(report: RunReport) -> list[Change]:
    """What may help a process that was killed: it could not say so."""
    case = _case_of(report)
    if case.line:
        return [doing(f"less at once in {case.line}", "all predictions are joined by then")]
    return as_written(may_help(case), case.settings.is_trainers)


def _case_of(report: RunReport) -> Failure:
    assert report.killed is not None
    told = {name.removeprefix("arguments."): value for name, value in report.run.settings.items() if value != "False"}
    settings = RunSettings(
        arguments=told,
        is_trainers="per_device_train_batch_size" in told,
        has_metrics="trainer.compute_metrics" in told,
        filters_logits="trainer.preprocess_logits_for_metrics" in told,
        returned=told.get("model.returned", ""),
    )
    batch, generated = Batch(settings.number("batch.rows"), None), told.get("generate.returns", "")
    case = Failure(phase=report.killed.phase, settings=settings, batch=batch, generated=generated)
    case.num_workers = report.killed.num_workers or settings.number("loader.num_workers", 0)
    others = others_bytes_of(report.killed)
    case.in_use = {**_of_others(report.killed, others), "other": report.host.limit_bytes - others}
    case.functions = PREDICTS if report.killed.has_trained and settings.is_trainers else ()
    case.line = told.get("evaluate.in", "") if case.phase == "evaluate" else ""
    if case.phase == "generate":
        sizes = {name: settings.number(f"generate.{name}", 0) for name in (*OF_GENERATE, "rows", "length")}
        case.generates(sizes)
        rows = sizes["rows"] * case.each_prompt[1]
        case.batch = Batch(rows, sizes["length"] or None) if rows else None
    return case


def explained_kill(report: RunReport, killed: KilledReport, planned: KillInPlan | None) -> KilledReport:
    """The same with `why_now`, and with what was `in_use` when the limit was reached."""
    is_between = report.steps > 0 and killed.phase == "other" and not killed.has_trained
    between = f"after step {report.steps:,}: in a callback, or in code between steps"
    here = f"killed {between if is_between else f'in {killed.phase}'}"
    case = _case_of(replace(report, killed=killed))
    if (loading := of_loading(case)) is not None:
        killed = replace(killed, why_now=loading)  # a first batch is no news beside it
    if planned is None:
        return _explained_as_measured(report, killed, case, f"{here}." * is_between)
    needed, room = format_bytes(planned.num_bytes), format_bytes(planned.room_bytes)
    rest = planned.room_bytes - planned.num_bytes
    kept = [part for part in planned.parts if part.startswith(("`", "most in `", "a copy"))]
    if kept and -rest >= sum(planned.parts[part] for part in kept):  # more than that has grown until a later step
        return explained_kill(report, killed, None)
    needed = "at most " * (planned.phase in ("data", BETWEEN) or bool(kept)) + needed  # in its last step, perhaps
    graphs = [part for part in planned.parts if part.startswith("graph") and part not in planned.held]
    # What was read stands in place of what a plan calls what it is kept in, or what it was made as
    replaced = (*kept, "kept") * bool(planned.held)
    had = {part: size for part, size in planned.parts.items() if part not in replaced} | dict(planned.held)
    if report.breakdown.parameters and killed.phase not in ("backward", "optimizer"):  # where they may be new
        read = report.breakdown.sizes()
        had |= {part: min(had[part], read[part]) for part in ("gradients", "optimizer") if part in had}
    of_passes = "results", "temporaries", "batch", "activations", *graphs
    over = _cut(had, planned.room_bytes, (kept, of_passes, ["optimizer"], ["gradients"], planned.parts))
    others = min(beside := report.host.limit_bytes - planned.room_bytes, others_bytes_of(killed))
    had |= {THERE_BEFORE: beside - others, "not in the plan": max(0, -over), **_of_others(killed, others)}
    if planned.is_shown:
        part = max(reversed(list(planned.parts)), key=lambda one: planned.parts[one])  # rather what is kept
        largest = f": {part} {format_bytes(planned.parts[part])}" * (part not in replaced)
        where = f"{'' if killed.step else 'in step 1 '}{planned.phase}"
        line = planned.line if part != "results" else ""  # these are made where a Trainer is called
        made = f", {format_bytes(planned.line_bytes)} of all made at {line}" if line else ""
        why = f"{where} takes {needed} of tensors (planned{largest}{made}); {room} were left, with gaps between them."
        words = [killed.why_now or "", why]
    else:
        of_all = f"The training's own tensors take {needed} there (planned)"
        words = [f"{here}. {of_all}; {format_bytes(rest)} came beside them.", killed.why_now or ""]
    return replace(killed, why_now=" ".join(words).strip(), in_use=_with_size(had))


def _cut(had: dict[str, int], room_bytes: int, groups: Iterable[Iterable[str]]) -> int:
    """Leave of these parts what there was room for: the first groups, which come last, had not come whole.

    Returns:
        How much more there would have been, below 0 where less.
    """
    over = sum(had.values()) - room_bytes
    for group in map(tuple, groups):
        whole = sum(had.get(part, 0) for part in group)
        left = max(0, whole - max(0, over))
        had |= {part: had[part] * left // whole for part in group if had.get(part)}
        over -= whole - left
    return over


def _explained_as_measured(report: RunReport, killed: KilledReport, case: Failure, here: str) -> KilledReport:
    had, into = _measured(report, killed), report.run.settings.get("save.into", "")
    words = [here, f"{case.line} was running." if case.line else why_now(case) or "", killed.why_now or ""]
    workers = f"{format_bytes(case.in_use[WORKERS])} are in data workers, pages that they share counted once."
    words += [workers] * (case.in_use[WORKERS] > WHEN.held_frac * report.host.limit_bytes)
    words += [f"torch.save writes into memory, a {into}."] * (killed.phase == "save" and bool(into))
    grown = f"It grows by {format_bytes(killed.process_bytes_per_step or 0)} a step."
    words += [grown] * (had.get("grown step by step", 0) > had.get("other", 0))
    for part, size in killed.in_use.items():  # who held it is known
        most, came = max((had.get(one, 0), one) for one in ("grown step by step", *_OF_PHASE.values(), "other"))
        had |= {part: min(size, most), came: max(0, most - size)}
    return replace(killed, in_use=_with_size(had), why_now=" ".join(filter(None, words)) or None)


def others_bytes_of(killed: KilledReport) -> int:
    """What others of its group had: data workers, other children, and processes that only the limit tells of."""
    children = (killed.workers_bytes or 0) + (killed.others_bytes or 0)
    return max(children, (killed.used_bytes or 0) - (killed.process_bytes or 0))


def _of_others(killed: KilledReport, others_bytes: int) -> dict[str, int]:
    workers_bytes, ahead_bytes = min(others_bytes, killed.workers_bytes or 0), killed.ahead_bytes or 0
    of_workers = {WORKERS: workers_bytes - ahead_bytes, AHEAD: ahead_bytes}
    return {**of_workers, "other processes": others_bytes - workers_bytes}


def _measured(report: RunReport, killed: KilledReport) -> dict[str, int]:
    """By what was measured: the training's own, what there was before it, and what has come since.

    In a step its own is how far its passes had risen above its end in the steps before.
    """
    host, of, settings = report.host, report.breakdown, report.run.settings
    number_bytes = 4 if settings.get("model.dtype") == "float32" else 2
    parameters = of.parameters or number_bytes * int(settings.get("model.parameters", 0))  # read at the tenth step
    began = max(host.rss_start_bytes - killed.file_bytes - host.gaps_start_bytes, host.allocated_start_bytes)
    known = {"parameters": parameters, "optimizer": of.optimizer, THERE_BEFORE: max(0, began - parameters)}
    if killed.phase in ("backward", "optimizer"):  # before and after these they may be gone
        known["gradients"] = of.gradients
    left = max(0, host.limit_bytes - others_bytes_of(killed) - sum(known.values()))
    steps = report.steps - (killed.since_step or 0)
    grown = min(left, max(0, round((killed.process_bytes_per_step or 0) * steps)))
    is_in_step = killed.phase in STEP_PHASES
    # What has come in another phase was not there when it was read last
    read = host.rss_end_bytes - killed.file_bytes - sum(known.values()) - grown
    there = min(left - grown, of.activations_peak if is_in_step else max(0, read))
    rest = _OF_PHASE.get(killed.phase, "after the training" if killed.has_trained else "other")
    known |= {"grown step by step": grown, _OF_STEP if is_in_step else UNSEEN: there, rest: left - grown - there}
    known |= _of_others(killed, others_bytes_of(killed))
    return _with_size(known) if report.steps or killed.workers_bytes else {}


def _with_size(parts: Mapping[str, int]) -> dict[str, int]:
    return {part: size for part, size in parts.items() if size > 0}
