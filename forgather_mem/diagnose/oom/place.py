"""Locates an error in a program: phase of the training, layer of the model, functions.

Everything is read from the traceback: nothing has to run during the training.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from types import FrameType, TracebackType
from typing import Any

from forgather_mem.diagnose.oom.batch_shapes import Batch, batch_of
from forgather_mem.diagnose.oom.context import trained_parameters
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.recognition import OutOfMemory
from forgather_mem.engine.settings import asked_of_generate, sizes_of_generate
from forgather_mem.heap import failed_call
from forgather_mem.heap.census import model_parameters, take_census
from forgather_mem.heap.failed_call import MODULE_FILE, PASS_FUNCTIONS, calls_module, file_of, is_users
from forgather_mem.heap.failed_frames import chain, entries
from forgather_mem.heap.object_size import is_torch
from forgather_mem.source.frame_variables import frame_variables, is_function
from forgather_mem.source.source_lines import line_name, source_line
from forgather_mem.telemetry.events import OPAQUE_PHASES, STEP_PHASES

_OPTIMIZER_FILE = "torch/optim/optimizer.py"
_LIGHTNING_FILE = "/strategies/strategy.py"

# End of a file's path, function names in it, phase. The outermost function listed here decides: whatever runs inside an
# evaluation is evaluation, except in the pairs of `_INNER_COUNTS`.
_PHASES = (
    ("transformers/trainer.py", "get_batch_samples", "data"),
    ("transformers/trainer.py", "compute_loss", "forward"),
    ("transformers/trainer.py", "evaluation_loop prediction_loop prediction_step", "evaluate"),
    ("transformers/trainer.py", "_save_checkpoint save_model _save _save_optimizer_and_scheduler", "save"),
    ("transformers/trainer.py", "_load_from_checkpoint _load_best_model", "resume"),
    ("transformers/trainer.py", "_load_optimizer_and_scheduler _load_rng_state _load_scaler", "resume"),
    ("transformers/generation/utils.py", "generate", "generate"),
    ("transformers/modeling_utils.py", "from_pretrained _from_config", "startup"),
    ("transformers/modeling_utils.py", "save_pretrained", "save"),
    ("accelerate/accelerator.py", "save_state save_model", "save"),
    ("accelerate/accelerator.py", "load_state", "resume"),
    ("accelerate/data_loader.py", "__iter__ __next__", "data"),
    ("torch/utils/data/dataloader.py", "__iter__ __next__ _next_data", "data"),
    (_OPTIMIZER_FILE, "wrapper", "optimizer"),  # around each optimizer's step
    (_OPTIMIZER_FILE, "load_state_dict", "resume"),
    ("torch/nn/utils/clip_grad.py", "", "backward"),  # as trainers tell it
    (_LIGHTNING_FILE, "training_step", "forward"),
    (_LIGHTNING_FILE, "validation_step test_step predict_step", "evaluate"),
    ("deepspeed/runtime/engine.py", "backward", "backward"),
    ("deepspeed/runtime/engine.py", "step", "optimizer"),
    ("deepspeed/runtime/engine.py", "save_checkpoint save_16bit_model", "save"),
    ("deepspeed/runtime/engine.py", "load_checkpoint", "resume"),
    ("torch/autograd/__init__.py", "backward grad", "backward"),
    ("torch/serialization.py", "save", "save"),
    ("torch/serialization.py", "load", "resume"),
    ("torch/distributed/checkpoint/state_dict_saver.py", "save async_save", "save"),
    ("torch/distributed/checkpoint/state_dict_loader.py", "load", "resume"),
    ("safetensors/torch.py", "save_file save_model save", "save"),
    ("safetensors/torch.py", "load_file load_model load", "resume"),
    (MODULE_FILE, " ".join(PASS_FUNCTIONS), "forward"),
    (MODULE_FILE, "load_state_dict", "resume"),
    (MODULE_FILE, "_apply", "startup"),  # a model is moved to a device, or cast
    ("torch/nn/init.py", "", "startup"),
    ("<frozen importlib._bootstrap>", "_find_and_load", "startup"),
)
# Phases in which another one counts: accelerate calls DeepSpeed's optimizer in a backward pass, and Lightning, like
# whoever uses LBFGS, passes the forward and backward pass to the optimizer as a closure.
_INNER_COUNTS = {"backward": ("optimizer",), "optimizer": ("forward", "backward")}
# Compiled code no longer shows the layers that it was made from.
_COMPILED = ("torch/_dynamo/", "torch/_inductor/", "torch/_functorch/", "<eval_with_key>", "torch/fx/")
_WRAPPERS = re.compile(r"^((module|_orig_mod|_fsdp_wrapped_module)(\.|$))+")  # parts of a name that these have added
# In `Failure.functions`, stands for the `__init__` of a module.
MODULE_IS_MADE = "Module.__init__"
# The phase of what a callback does for itself in its event: the first name that is in the event's.
_EVENTS = (
    ("save", "save"), ("load_checkpoint", "resume"),
    ("evaluat", "evaluate"), ("predict", "evaluate"), ("validation", "evaluate"), ("test", "evaluate"),
    ("sanity_check", "evaluate"),
    ("optimizer", "optimizer"), ("before_zero_grad", "optimizer"),
    ("substep_end", "backward"), ("backward", "backward"),
    ("init", "startup"), ("setup", "startup"), ("fit_start", "startup"), ("train_begin", "startup"),
    ("train_start", "startup"),
)  # fmt: skip
# In an event these are a pass of the callback's own; the rest is the state that it moves, writes or reads.
_TRAINERS = ("transformers/trainer.py", "/loops/evaluation_loop.py", "/loops/prediction_loop.py")
_PASSES_OF_CALLBACKS = ("forward", "backward", "evaluate", "generate")


def failure_at(
    error: BaseException,
    found: OutOfMemory,
    model: object = None,
    optimizer: object = None,
    *,
    told: str = "",
    passes: Sequence[int] = (),
) -> Failure:
    """Where this error occurred and what held memory, as far as its tracebacks and the heap show.

    Args:
        error, found: The error, with its traceback, and what it says.
        model: The model being trained, used to name layers; default: the outermost module in the traceback.
        optimizer: The optimizer, used to name what a callback copies, and what no variable of the user's holds alone.
        told: The phase by what the run has heard; empty where no training was watched.
        passes: As for `take_census`.
    """
    failed = entries_of(error)
    frames = [entry.tb_frame for entry in failed]
    callback, first = failed_call.failed_callback(failed, model, optimizer) or (None, 0)
    if any(file_of(frame).endswith(_TRAINERS) for frame in frames[first:]) and callback is not None:
        callback, first = None, 0  # it has the trainer evaluate or train
    inside, (layer, done_frac) = _phase(frames[first:]), _layer(frames, model)
    if callback is not None:
        layer = layer if inside in _PASSES_OF_CALLBACKS else None
        phase = _phase_of_callback(callback.callback, inside, model) or told
    else:
        phase = _phase_in(failed, inside, told, model, optimizer)
        callback = failed_call.failed_copy(failed, model, optimizer) if phase == "other" else None
    batch = batch_on_the_way(frames)
    users = [entry for entry in failed if is_users(entry)]
    if not phase:
        rows = failed_call.loss_rows(users[-1]) if users else None
        batch = batch or (Batch(rows, None) if rows else None)  # of a loss outside of modules
        has_trained = getattr(optimizer, "state", None) or any(map(failed_call.may_repeat, users))
        phase = "forward" if rows else "other" if has_trained else "startup"
    if phase == "generate" and batch is not None:
        batch = Batch(batch.rows, None)  # the tokens of the call say nothing of those that are cached
    last = [(one.tb_frame.f_code.co_filename, one.tb_lineno) for one in users[-1:]]
    config = next(filter(None, (frame_variables(frame).get("generation_config") for frame in frames)), None)
    loaders = [_self_of(frame) for frame in frames if _phase_of(frame) == "data"]
    failure = Failure(
        found=found,
        phase=phase,
        layer=layer,
        done_frac=done_frac if phase == "forward" else 1.0,
        functions=tuple(map(_function, frames)),
        line=_line(failed),
        ran_out_at="".join(f"{line_name(*at)}: {source_line(*at)}" for at in last),
        callback=callback,
        census=take_census(failed, model, optimizer, passes, found.where == "host", phase in STEP_PHASES),
        trained_bytes=sum(one.nbytes for one in trained_parameters(model, optimizer)),
        batch=batch,
        generated=asked_of_generate(config, {}),
        num_workers=max(getattr(loader, "_num_workers", 0) for loader in (None, *loaders)),
    )
    failure.generates(sizes_of_generate(config, {}))
    return failure


def _line(failed: Sequence[TracebackType]) -> str:
    """The innermost line of the user's own code, if nothing but torch and numpy work between it and the error."""
    for entry in reversed(failed):
        if is_users(entry):
            return line_name(entry.tb_frame.f_code.co_filename, entry.tb_lineno)
        if not any(part in file_of(entry.tb_frame) for part in ("/torch/", "/numpy/")):
            break
    return ""


def trained_by(error: BaseException) -> tuple[object, object]:
    """The largest optimizer among the variables of the script's functions in the traceback, and the largest model: of
    those that it trains, if any is."""
    models, optimizers = dict[int, object](), dict[int, object]()
    for entry in filter(is_users, entries_of(error)):
        frame = entry.tb_frame
        for value in (*frame.f_globals.values(), *frame_variables(frame).values()):
            if is_torch(value, "nn", "Module"):
                models[sum(parameter.numel() for parameter in value.parameters())] = value
            elif is_torch(value, "optim", "Optimizer"):
                optimizers[sum(len(group["params"]) for group in value.param_groups)] = value
    optimizer = optimizers[max(optimizers)] if optimizers else None
    trained = set(map(id, trained_parameters(None, optimizer)))
    own = [size for size, one in models.items() if not trained.isdisjoint(map(id, model_parameters(one)))] or models
    return models[max(own)] if models else None, optimizer


def stepping_optimizer(error: BaseException) -> object:
    """The optimizer that was stepping; None if none was."""
    steps = (entry.tb_frame for entry in entries_of(error) if file_of(entry.tb_frame).endswith(_OPTIMIZER_FILE))
    return next((one for one in map(_self_of, steps) if is_torch(one, "optim", "Optimizer")), None)


def batch_on_the_way(frames: Iterable[FrameType]) -> Batch | None:
    """The shape of the batch that the outermost module was called with; None outside modules."""
    outermost = next(filter(calls_module, frames), None)
    variables = {} if outermost is None else frame_variables(outermost)
    return batch_of(variables.get("args", ()), variables.get("kwargs", {}))


def entries_of(error: BaseException) -> list[TracebackType]:
    """All entries of the traceback, outermost first: the error's own, then those of its causes."""
    return [entry for link in chain(error) for entry in entries(link.__traceback__)]


def _phase(frames: list[FrameType]) -> str | None:
    found: str | None = None
    in_closure = False
    for frame in frames:
        here = _phase_of(frame)
        if here is not None and (found is None or here in _INNER_COUNTS[found]):
            found = here
        in_closure |= found == "optimizer" and here is None and failed_call.is_closure(frame)
        if found is not None and found not in _INNER_COUNTS:
            return found
    return "forward" if found == "optimizer" and in_closure else found


def _phase_of_callback(event: str, inside: str | None, model: object) -> str | None:
    """The phase of a callback's work: "evaluate" for a forward pass of its own, or where it has turned training off
    itself, else that of its event."""
    if inside in ("save", "generate"):
        return inside
    told = next((phase for name, phase in _EVENTS if name in event.partition(".")[2]), None)
    if inside in _PASSES_OF_CALLBACKS and told in (None, "startup"):
        return "evaluate"
    return "evaluate" if told is None and getattr(model, "training", True) is False else told


def _phase_in(failed: Sequence[TracebackType], inside: str | None, told: str, model: object, optimizer: object) -> str:
    """By the traceback; what was told is coarse between steps and at startup, and decides where that shows nothing.

    The traceback does not show where accelerate's `backward` calls an engine's optimizer step.
    """
    if inside == "generate":
        return inside
    if told in OPAQUE_PHASES or (told, inside) == ("optimizer", "backward"):
        return told
    if inside == "forward" and _is_evaluating(failed, model, optimizer):
        return "evaluate"
    if inside is None and "optimizer" in failed_call.copied_state(failed, model, optimizer)[1]:
        return "save"  # what a checkpoint is made of
    return inside or told


def _is_evaluating(failed: Sequence[TracebackType], model: object, optimizer: object) -> bool:
    """Whether the model that is trained runs in evaluation mode; another one may be a teacher."""
    outermost = next((_self_of(entry.tb_frame) for entry in failed if calls_module(entry.tb_frame)), None)
    own = set(map(id, trained_parameters(None, optimizer) or model_parameters(model)))
    is_trained = not own or any(id(one) in own for one in model_parameters(outermost))
    return getattr(outermost, "training", True) is False and is_trained


def _phase_of(frame: FrameType) -> str | None:
    file, name = file_of(frame), frame.f_code.co_name
    for end, names, phase in _PHASES:
        if (not names or name in names.split()) and file.endswith(end):
            return phase
    return "startup" if _function(frame) == MODULE_IS_MADE else None


def _layer(frames: list[FrameType], model: object) -> tuple[str | None, float]:
    """The innermost module that was running, and how much of the model is not behind it."""
    outermost = innermost = None
    for frame in frames:
        if calls_module(frame):
            innermost = _self_of(frame)
            outermost = innermost if outermost is None else outermost
        elif any(part in file_of(frame) for part in _COMPILED):
            innermost = None  # unless one is called further in
    if innermost is None:
        return None, 1.0
    kind = type(innermost).__name__  # a number alone says nothing
    roots: tuple[Any, ...] = (model, outermost)
    for root in roots:
        modules = list(root.named_modules()) if hasattr(root, "named_modules") else []
        for number, (name, module) in enumerate(modules):
            if module is innermost:  # it may be done with those in it
                begin = f"{name}." if name else ""
                done = number + sum(f"{one}.".startswith(begin) for one, _ in modules[number:])
                plain = _WRAPPERS.sub("", name)
                return (f"{plain} ({kind})" if plain.isdecimal() else plain or kind), done / len(modules)
    return kind, 1.0


def _function(frame: FrameType) -> str:
    name = frame.f_code.co_name
    return MODULE_IS_MADE if name == "__init__" and is_torch(_self_of(frame), "nn", "Module") else name


def _self_of(frame: FrameType) -> object:
    return frame_variables(frame).get("self") if is_function(frame) else None
