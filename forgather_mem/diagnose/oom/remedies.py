"""The table of remedies: what may help where memory has run out; what limits a run comes first."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

from forgather_mem.diagnose.oom import remedy_rules as rules
from forgather_mem.diagnose.oom.batch_changes import (
    data_changes,
    fewer_sequences,
    is_of_one_sample,
    smaller_evaluation,
    step_changes,
)
from forgather_mem.diagnose.oom.context import dtype_argument, takes_optimizer
from forgather_mem.diagnose.oom.messages import OF_TORCH
from forgather_mem.diagnose.oom.remedy import ANYWHERE, PHASES, Case, Remedy
from forgather_mem.diagnose.oom.shapes.optimizer_sizes import family_of
from forgather_mem.units import format_bytes

_8_BIT, _TORCHAO = "adamw_bnb_8bit", "adamw_torch_8bit"


def optimizer(optim: str, note: str) -> Remedy:
    def applies(case: Case) -> bool:
        if optim == _8_BIT and not (rules.is_on_device(case) and rules.has_bitsandbytes()):
            return False
        if optim == _TORCHAO and not (importlib.util.find_spec("torchao") and takes_optimizer(_TORCHAO)):
            return False
        return rules.is_smaller(optim, case)

    return Remedy(
        where="optimizer",
        applies=applies,
        set={"optim": optim},
        note=note,
        alters="another optimizer",
        predict=lambda case: rules.bytes_with(optim, case),
    )


_HALF_MODEL = Remedy(
    where="startup",
    text=rules.model_in_half,
    in_script={"dtype": "bfloat16"},
    note="half the bytes of the weights",
    alters="less exact",
)
REMEDIES: tuple[Remedy, ...] = (
    # ---- what is not a matter of the training ----
    Remedy(
        where="/dev/shm",
        text="a larger /dev/shm: docker run --shm-size=1g; in Kubernetes an emptyDir with medium: Memory at /dev/shm",
        note="docker gives 64 MiB unless told otherwise",
    ),
    Remedy(
        where="/dev/shm",
        text="NCCL_SHM_DISABLE=1",
        in_script={"NCCL_SHM_DISABLE": "1"},
        note="GPUs without a direct link then use the network, slower",
    ),
    Remedy(
        where=PHASES,
        applies=rules.is_pinned,
        set={"dataloader_pin_memory": False},
        note="no second, page-locked copy",
    ),
    # ---- why, whatever the batch ----
    Remedy(where=ANYWHERE, changes=rules.needless, is_cause=True),
    Remedy(
        where=PHASES,
        applies=rules.is_copy,
        text=lambda case: f"torch.save to a file at {case.failure.line}, not a copy",
        note=rules.copy_note,
        is_cause=True,
    ),
    Remedy(where=ANYWHERE, changes=rules.kept),
    Remedy(where=ANYWHERE, applies=rules.too_much_at_once, text=rules.less_at_once, note=rules.in_parts, is_cause=True),
    Remedy(
        where=PHASES,
        applies=rules.makes_wide_array,
        text=rules.narrow_text,
        in_script=lambda case: {"dtype": rules.narrow(case)},
        note=lambda case: f"half of {format_bytes(case.failure.requested_bytes or 0)}",
        predict=rules.narrow_bytes,
    ),
    # ---- callbacks ----
    Remedy(
        where="library",
        text=lambda case: f"the training without {rules.in_callback(case).partition('.')[0]}",
        note=lambda case: "a smaller batch changes nothing of it" + rules.copied(case, ", {} less without it"),
        alters="without what it is there for",
    ),
    Remedy(
        where="copy",
        text=lambda case: f"torch.save to a file in {rules.in_callback(case)}, not a copy",
        note="writing takes no second copy in memory",
    ),
    Remedy(
        where="copy",
        applies=rules.is_on_device,
        text=lambda case: f"tensors copied by .cpu(), one after the other, in {rules.in_callback(case)}",
        note=lambda case: rules.copied(case, "{} on the host instead"),
    ),
    Remedy(
        where="callback",
        applies=lambda case: (case.failure.rows or 0) > 1,
        text=lambda case: (
            f"at most {max(1, (case.failure.rows or 0) // 4):,} rows at a time in {rules.in_callback(case)}"
        ),
        note=lambda case: f"not {case.failure.rows:,}",
        otherwise=True,
    ),
    Remedy(
        where="callback",
        text=lambda case: f"less memory in {rules.in_callback(case)}",
        note="the training itself did not ask for it",
        otherwise=True,
    ),
    # ---- the passes and their batches ----
    Remedy(
        where="forward backward",
        applies=lambda case: case.batches.missing_bytes,
        text="fewer trained parameters (LoRA), a smaller type (bfloat16), or shards on several devices (FSDP, ZeRO)",
        note=lambda case: (
            f"no batch fits: gradients and optimizer need {format_bytes(case.batches.missing_bytes)} more than there is"
        ),
        alters="another way to train",
        is_cause=True,
    ),
    Remedy(where="forward backward other", changes=step_changes, is_batch=True),
    Remedy(
        where="data",
        applies=is_of_one_sample,
        text=lambda case: f"less memory for one sample ({case.failure.line})",
        note=lambda case: f"one array takes {format_bytes(case.failure.requested_bytes or 0)}, in whatever batch",
        is_cause=True,
    ),
    Remedy(where="data", applies=rules.makes_much_data, text=rules.less_at_once, note=rules.in_parts, is_cause=True),
    Remedy(where="data", changes=data_changes, is_batch=True),
    # ---- the optimizer ----
    Remedy(
        where="optimizer",
        applies=lambda case: not rules.is_trainers(case) and "_multi_tensor_" in " ".join(case.failure.functions),
        text="foreach=False for the optimizer",
        in_script={"foreach": False},
        note="one tensor after the other, the same numbers",
    ),
    Remedy(
        where="optimizer",
        applies=lambda case: rules.is_on_device(case) and case.settings.optim == "adamw_torch",
        set={"optim": "adamw_torch_fused"},
        note=lambda case: f"no copies of all tensors at once ({format_bytes(case.settings.trained_bytes or 0)})",
    ),
    Remedy(
        where="optimizer",
        applies=lambda case: (
            rules.is_on_device(case) and family_of(case.settings.optim) == "adamw" and rules.has_bitsandbytes()
        ),
        set={"optim": "paged_adamw_32bit"},
        note="states move to the host where the device is full, slower",
    ),
    Remedy(
        where="optimizer",
        applies=rules.is_on_device,
        text="DeepSpeed ZeRO or FSDP with offload",
        note="the optimizer's state on the host, slower",
    ),
    Remedy(
        where="optimizer",
        applies=lambda case: not rules.needs_less_state(case) and not any(rules.large(case.failure)),
        text="less of what has grown since the first step: lists, copies of weights, caches (a leak report names them)",
        note=lambda case: f"{case.batches.num_steps:,} steps of this optimizer have gone well",
    ),
    optimizer(_8_BIT, "8-bit states; embeddings and small tensors in float32"),
    optimizer(_TORCHAO, "8-bit states, of torchao"),
    optimizer("adafactor", "rows and columns instead of states"),
    optimizer("sgd", "no optimizer state; needs another learning rate"),
    Remedy(
        where="optimizer",
        applies=rules.needs_less_state,
        text=lambda case: f"the weights in bfloat16: from_pretrained(..., {dtype_argument()}=torch.bfloat16)",
        in_script={"dtype": "bfloat16"},
        note="halves weights, gradients and the optimizer's state",
        alters="less exact",
    ),
    # ---- evaluations ----
    Remedy(
        where="evaluate",
        applies=lambda case: (
            rules.keeps_predictions(case)
            and rules.is_on_device(case)
            and not rules.has(case, "eval_accumulation_steps")
        ),
        set={"eval_accumulation_steps": 1},
        note="predictions go to the host after each batch",
    ),
    Remedy(
        where="evaluate",
        applies=lambda case: rules.keeps_predictions(case) and not case.settings.filters_logits,
        text=rules.argmax,
        in_script={"preprocess_logits_for_metrics": "argmax"},
        note="metrics from token ids, not from the whole vocabulary: compute_metrics is given these",
    ),
    Remedy(
        where="evaluate",
        applies=lambda case: rules.keeps_predictions(case) and not rules.predicts(case),
        set={"prediction_loss_only": True},
        note="gives the loss only, no metrics",
    ),
    Remedy(where="evaluate", applies=rules.is_batch_of_evaluation, changes=smaller_evaluation),
    # ---- generation ----
    Remedy(
        where="generate",
        applies=lambda case: rules.has(case, "predict_with_generate") and rules.eval_rows(case) > 1,
        set=lambda case: {"per_device_eval_batch_size": max(1, rules.eval_rows(case) // 4)},
        note="fewer sequences at once",
    ),
    Remedy(
        where="generate",
        applies=lambda case: (case.settings.arguments.get("generation_num_beams") or 1) > 1,
        set={"generation_num_beams": 1},
        note="one sequence for each sample",
    ),
    Remedy(
        where="generate generating",
        text=rules.sequences,
        in_script=lambda case: {"rows": fewer_sequences(case)},
        otherwise=True,
    ),
    Remedy(
        where="generate",
        applies=lambda case: rules.has(case, "generation_max_length"),
        set=lambda case: {"generation_max_length": case.settings.arguments["generation_max_length"] // 2},
        note="keys and values of half as many tokens",
    ),
    Remedy(
        where="generate generating",
        applies=lambda case: case.place == "generating" or not rules.has(case, "generation_max_length"),
        text="half as many max_new_tokens",
    ),
    # ---- checkpoints ----
    Remedy(
        where="save",
        applies=lambda case: not rules.is_trainers(case),
        text="torch.save to a file, of the model, then of the optimizer, without a copy of them in memory",
        note="writing takes no second copy in memory",
    ),
    Remedy(
        where="save",
        applies=lambda case: (
            rules.is_trainers(case) and not rules.saves_model(case) and not rules.has(case, "save_only_model")
        ),
        set={"save_only_model": True},
        alters="a resumed run starts without optimizer state",
    ),
    Remedy(
        where="save",
        applies=rules.is_trainers,
        set={"save_strategy": "no"},
        note="save the model after it",
        alters="no checkpoint before its end",
    ),
    Remedy(
        where="resume",
        applies=lambda case: not rules.is_trainers(case),
        text="torch.load(..., mmap=True), and delete what it returns after load_state_dict",
        note="tensors are read from the file as they are used",
    ),
    Remedy(
        where="resume",
        applies=lambda case: rules.is_trainers(case) and rules.is_in(case, "_load_optimizer_and_scheduler"),
        text="move optimizer.pt out of the checkpoint's folder",
        note="resumes at the same step; the optimizer starts from scratch, and must still fit",
    ),
    Remedy(
        where="resume",
        applies=rules.is_trainers,
        text="start from the checkpoint's weights: from_pretrained(CHECKPOINT), train() without resuming",
        in_script={"resume_from_checkpoint": False},
        note="step and optimizer start from scratch",
    ),
    # ---- the start ----
    Remedy(where="startup", applies=rules.makes_much, text=rules.less_at_once, note=rules.in_parts),
    replace(_HALF_MODEL, applies=rules.builds_model),
    Remedy(
        where="startup",
        text="map the data instead of loading it: datasets.load_from_disk, numpy.load(mmap_mode='r')",
        note="pages are loaded when they are used",
    ),
    replace(_HALF_MODEL, applies=lambda case: case.failure.found.array_type is None),
    # ---- anywhere else ----
    Remedy(where=f"{PHASES} copy", changes=rules.held),
    Remedy(
        where=PHASES,
        applies=rules.has_graph_pools,
        text="no CUDA graphs: torch.compile(mode='default'), or graphs of fewer shapes",
        set=lambda case: {"torch_compile_mode": "default"} if rules.has(case, "torch_compile_mode") else {},
        note=rules.pools,
    ),
    Remedy(  # for a library that asks the driver itself and can't use what torch keeps
        where=PHASES,
        applies=lambda case: rules.is_fragmented(case) and not case.failure.found.kind.endswith(OF_TORCH),
        text=f"torch.cuda.set_per_process_memory_fraction({rules.WHEN.left_to_libraries_frac}) before the training",
        in_script={"memory_fraction": rules.WHEN.left_to_libraries_frac},
        note=lambda case: rules.unused_text(case, f"are kept by torch, where {case.failure.found.kind} can't use them"),
    ),
    Remedy(
        where=PHASES,
        applies=lambda case: rules.is_fragmented(case) and case.failure.found.kind.endswith(OF_TORCH),
        text=lambda case: "{}={}".format(*next(iter(rules.segments(case).items()))),
        in_script=rules.segments,
        note=lambda case: rules.unused_text(case, "are free, in small pieces"),
    ),
    Remedy(
        where="forward backward evaluate other",
        applies=lambda case: case.failure.rows == 1,
        text="one sample in parts, as tiles of an image or a part of a graph, or smaller samples",
        note="its batch is 1 already",
        otherwise=True,
    ),
)
