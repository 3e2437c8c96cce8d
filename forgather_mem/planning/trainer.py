"""Two steps of a Trainer, in its own loop, which compute nothing.

The loop is the one that trains: data, accumulation, clipping and what a subclass does differently are as they will
be. An evaluation follows where there will be one. Logs and checkpoints are left out, and transformers' callbacks. Of
what `generate()` makes its first tokens and its last ones are planned, for those between take less than these: no token
ends it, and without a cache of a known kind each token is planned.
"""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
from torch.utils._pytree import tree_map_only

from forgather_mem.errors import PlanError, did_you_mean
from forgather_mem.planning.batches import Trainer, Wanted
from forgather_mem.planning.highest import Attempt
from forgather_mem.planning.known_operations import tensors_among
from forgather_mem.planning.loop.phases import TrainerLoop
from forgather_mem.planning.loop.script import go_on
from forgather_mem.planning.model import AliveThings
from forgather_mem.planning.private_state import surround
from forgather_mem.planning.ranks import shards_model, train_with_ranks
from forgather_mem.planning.stand_ins import StandIns
from forgather_mem.planning.storage_log import StorageLog

# What has no part in a step, or needs values
_OFF = "auto_find_batch_size", "eval_on_start", "include_num_input_tokens_seen", "logging_nan_inf_filter", "push_to_hub"
_ARGUMENTS = {**dict.fromkeys(_OFF, False), "torch_empty_cache_steps": None, "skip_memory_metrics": True}

_MODELS = "transformers.generation.utils:GenerationMixin"
_STEPS = 4  # the prompt, and three more: of the last the cache is as large as it gets, and what the one before it left

ATTENTION = "attn_implementation"
DTYPE = "dtype"
CHECKPOINTING = ("activation_checkpointing", "gradient_checkpointing")  # of transformers 5, and of 4


def plan_of_trainer(
    trainer: Trainer, wanted: Wanted, alive: AliveThings | None, answers: StandIns,
    tell: Callable[[Attempt], object] = lambda made: made,
) -> NoReturn:  # fmt: skip
    """What two steps of this trainer take. The trainer can't be used afterwards: call it in a child.

    Args:
        trainer: The trainer.
        wanted: What to plan in place of its own.
        alive: What there is in this process, if it is known.
        answers: Asked for values.
        tell: Makes of the plan what the parent gets.

    Raises:
        PlanError: if it can't be planned.
        GoesOn: else.
    """
    train_on_the_host(trainer)
    apply_changes(trainer, wanted.changes)
    loop = TrainerLoop(wanted, answers, trainer)
    if wanted.ranks > 1:
        train_with_ranks(trainer, wanted.ranks, loop.mode, wanted.on_device, loop.notes)
    elif shards_model(trainer):
        raise PlanError("FSDP shards a model over several processes: say how many (--ranks N)")
    for name, value in _ARGUMENTS.items():
        if hasattr(trainer.args, name):
            is_word = value is False and isinstance(getattr(trainer.args, name), str)  # of transformers 5
            object.__setattr__(trainer.args, name, "no" if is_word else value)
    trainer.model_init = None  # it has made the model
    # A model that will be sharded is on the host: its shards alone are on a device
    is_whole = not (wanted.on_device and shards_model(trainer))
    optimizers = [] if trainer.optimizer is None else [trainer.optimizer]
    loop.empty([trainer.model], optimizers, alive or AliveThings(), None if is_whole else StorageLog())
    gather_without_values(trainer, loop)
    generate_first_and_last_tokens(loop.notes)
    go_on(loop, trainer.train, tell)


def gather_without_values(trainer: Trainer, loop: TrainerLoop) -> None:
    """Let the trainer's evaluations gather tensors, for good, where they would arrays; nothing is computed of them."""
    mode, host = loop.mode, loop.mode.host

    def numpify(_: object, value: object) -> object:
        def on_host(tensor: torch.Tensor) -> torch.Tensor:
            there = tensor if host is None else tensor.new_empty(tensor.shape)
            return there.float() if tensor.dtype == torch.bfloat16 else there

        return tree_map_only(torch.Tensor, on_host, value)

    def collect(collected: Callable[..., None], container: Any, *added: object) -> None:
        with mode.logging_to(None if added else host):  # it moves what it has
            collected(container, *added)
            for tensor in tensors_among(container.tensors if added else container.arrays):
                mode.log.saw(tensor, "results")

    def gather(gathered: Callable[[Any], object], container: Any) -> object:
        arrays = gathered(container)
        return None if isinstance(arrays, list) else arrays  # the loop asks for the mean of a list

    if trainer.compute_metrics is not None:
        trainer.compute_metrics = lambda *_, **__: {}  # it asks for values, and is given none
    container = "transformers.trainer_pt_utils:EvalLoopContainer"
    surround("transformers.trainer_pt_utils:nested_numpify", numpify, loop.notes)
    for name, around in (("add", collect), ("to_cpu_and_numpy", collect), ("get_arrays", gather)):
        surround(f"{container}.{name}", around, loop.notes)


def apply_changes(trainer: Trainer, changes: Mapping[str, object]) -> None:
    """Give a trainer that has not begun other arguments; also `attn_implementation` and `dtype`, which are the model's.

    Raises:
        PlanError: for an argument that its TrainingArguments don't have, or a value that they don't take.
    """
    known = [field.name for field in dataclasses.fields(trainer.args)]
    for name, value in changes.items():
        if name == ATTENTION:
            if not hasattr(trainer.model, "set_attn_implementation"):
                raise PlanError("this transformers can't change attn_implementation: a newer one can")
            trainer.model.set_attn_implementation(value)
        elif name.startswith("output_") and name not in known:
            setattr(trainer.model.config, name, value)
        elif name == DTYPE:
            trainer.model.to(getattr(torch, str(value)))
        elif name not in known:
            meant = did_you_mean(name, [*known, "rows", "length"])
            raise PlanError(f"TrainingArguments have no {name!r}" + (f"; {meant}" if meant else ""))
        elif name.startswith(CHECKPOINTING):  # or with their keyword arguments
            for alias in CHECKPOINTING:
                object.__setattr__(trainer.args, alias + name.partition("_checkpointing")[2], value)
        else:
            kind = type(getattr(trainer.args, name))
            object.__setattr__(trainer.args, name, kind(value) if name == "optim" else value)
    if "fsdp" in changes and hasattr(trainer.args, "_process_fsdp_args"):
        trainer.args.fsdp_plugin_args = trainer.args._process_fsdp_args()
    if changes.get("bf16"):
        trainer.accelerator.native_amp = True
        trainer.accelerator.state._mixed_precision = "bf16"


def train_on_the_host(trainer: Trainer) -> None:
    """Let a trainer go on without its device, which a forked child can't use; float16 needs one, and bfloat16 does not.

    Raises:
        PlanError: where several processes train together.
    """
    arguments, accelerator = trainer.args, trainer.accelerator
    if getattr(trainer, "is_deepspeed_enabled", False):
        raise PlanError("DeepSpeed is not planned in a Trainer: plan the training of one process without it")
    group = torch.distributed
    if arguments.world_size > 1 or (group.is_initialized() and group.get_backend() != "fake"):
        what = f"{arguments.world_size} process{'es train together' * (arguments.world_size > 1) or ' is in a group'}"
        raise PlanError(f"{what}: plan the script without its launcher, with --ranks N")
    arguments.__dict__["_setup_devices"] = accelerator.state.device = torch.device("cpu")
    arguments._n_gpu = min(1, arguments.n_gpu)
    accelerator.device_placement = False
    if accelerator.state._mixed_precision == "fp16":
        accelerator.state._mixed_precision, accelerator.scaler = "bf16", None


class _Ended(BaseException):
    """Ends the loop: no handler of exceptions in it is meant."""


class _Generation:
    """A call of `generate()`."""

    def __init__(self) -> None:
        self.tokens = self.length = self.rows = self.steps = self.token = 0

    def begin(self, configuration: Any, prompt: int, rows: int) -> None:
        """It is to generate so much."""
        self.length, self.tokens = configuration.max_length, configuration.max_length - prompt
        self.rows = rows * configuration.num_return_sequences
        ends = configuration.eos_token_id
        ending = {configuration.pad_token_id, *(ends if isinstance(ends, list) else [ends])}
        self.token = next(one for one in itertools.count() if one not in ending)

    def leave_out(self, keywords: dict[str, Any]) -> None:
        """After the prompt: go on where only the last tokens are left, if the cache is one that can be made longer."""
        more = self.tokens - _STEPS
        if self.steps > 1 or more <= 0 or not _is_lengthened(keywords.get("past_key_values"), more):
            return
        self.tokens -= more
        of = "decoder_" if keywords.get("encoder_outputs") is not None else ""
        for name in (f"{of}attention_mask", f"{of}position_ids"):
            row = keywords.get(name)
            if row is not None:
                keywords[name] = torch.cat([row, row[..., -1:].repeat_interleave(more, -1)], -1)


def generate_first_and_last_tokens(notes: list[str]) -> None:
    """Let all models of transformers do so, and note how many tokens that stands for."""
    now: list[_Generation] = []  # a model may generate inside of another's

    def generated(generate: Callable[..., object], *args: object, **keywords: object) -> object:
        now.append(_Generation())
        try:
            return generate(*args, **keywords)
        except _Ended:
            return torch.full((now[-1].rows, now[-1].length), now[-1].token)
        finally:
            now.pop()

    def prepared(prepare: Callable[..., object], *args: object, **keywords: Any) -> object:
        configuration = prepare(*args, **keywords)
        now[-1].begin(configuration, keywords["input_ids_length"], keywords["inputs_tensor"].size(0))
        note = f"Generation is planned to its greatest length, {now[-1].tokens:,} tokens."
        notes.extend([note] if note not in notes and now[-1].tokens > 0 else [])  # else generate() refuses
        return configuration

    def updated(update: Callable[..., Any], *args: object, **keywords: object) -> object:
        result = update(*args, **keywords)
        now[-1].leave_out(result)
        return result

    def goes_on(*_: object, **__: object) -> bool:
        if now[-1].steps >= now[-1].tokens:
            raise _Ended
        now[-1].steps += 1
        return True

    of = "transformers.generation.utils"
    surround(f"{_MODELS}.generate", generated, notes)
    surround(f"{_MODELS}._prepare_generated_length", prepared, notes)
    surround(f"{_MODELS}._update_model_kwargs_for_generation", updated, notes)
    surround(f"{_MODELS}._has_unfinished_sequences", goes_on, notes)
    surround(f"{_MODELS}._get_stopping_criteria", lambda *_, **__: sys.modules[of].StoppingCriteriaList(), notes)
    beams = "_beam_search_has_unfinished_sequences"
    if hasattr(getattr(sys.modules.get(of), "GenerationMixin", None), beams):
        surround(f"{_MODELS}.{beams}", lambda *_, **__: True, notes)  # older ones ask for a value


def _is_lengthened(cache: object, more: int) -> bool:
    """Whether it could be given so many tokens more; not one of transformers before 4.54, which has no layers."""
    layers = getattr(getattr(cache, "self_attention_cache", cache), "layers", ())  # an encoder's does not grow
    for layer in layers:
        if isinstance(getattr(layer, "keys", None), torch.Tensor) and "Static" not in type(layer).__name__:
            window = getattr(layer, "sliding_window", None)  # it is filled, and what has left it is counted alone
            count = min(more, max(0, window - layer.keys.size(-2))) if window else more
            kept = layer.keys, layer.values
            layer.update(*(one.new_empty(one.size(-1)).expand(*one.shape[:-2], count, -1) for one in kept))
            if window:
                layer.cumulative_length += more - count
    return bool(layers)
