"""Plans of 38 small trainings, compared with what the tensors of the same trainings really take.

    python benchmarks/plan.py [--only NAME] [--markdown benchmarks/results/plan.md]

The truth is counted on the host by a dispatch mode that has nothing in common with the one that plans: it counts the
storages of all tensors that go into operations or come out of them while three real steps of `trainer.train()` run,
each training in a process of its own. Trainings of two ranks run on two processes, by gloo; the plan is made in one.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate.state import AcceleratorState, DistributedType
from accelerate.utils import FullyShardedDataParallelPlugin
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import forgather_mem
from forgather_mem.planning.result import Plan

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from tests.planning.counted import is_in_place_without_a_mode, is_sum_of_gradients

VOCABULARY = 512
MOST_BELOW, MOST_ABOVE = 0.01, 0.02


class Counted(TorchDispatchMode):
    """The bytes of all tensors alive that went into or came out of an operation, each of their storages once."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        self.peak_bytes = 0
        for tensor in [*model.parameters(), *model.buffers()]:
            self.count(tensor.to_local() if isinstance(tensor, DTensor) else tensor)

    def count(self, tensor: torch.Tensor) -> None:
        memory = tensor.untyped_storage()
        key = memory._cdata  # stays, where the memory is given up and taken again
        if key in self.alive:
            return
        self.alive[key] = weakref.ref(memory, lambda _: self.alive.pop(key, None))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(kind, DTensor) for kind in types):
            return NotImplemented  # the shards come here
        self.count_all(args, kwargs)
        result = func(*args, **(kwargs or {}))
        if is_in_place_without_a_mode(func, args):
            return args[0].copy_(result)
        self.count_all(result)
        if not is_sum_of_gradients(func, args):  # the next operation tells whether what was summed is alive
            self.peak_bytes = max(self.peak_bytes, sum(self.sizes()))
        return result

    def count_all(self, *values: Any) -> None:
        for leaf in tree_leaves(values):
            if isinstance(leaf, torch.Tensor) and not leaf.is_meta and not isinstance(leaf, FakeTensor):
                self.count(leaf)

    def sizes(self) -> list[int]:
        """Of what is alive now."""
        alive = [reference() for reference in list(self.alive.values())]
        return [memory.nbytes() for memory in alive if memory is not None]


class Rows(torch.utils.data.Dataset):
    """Rows of pseudo-random tokens or pixels; lengths differ where `ragged`."""

    def __init__(self, kind: str, length: int, ragged: bool) -> None:
        self.kind, self.length, self.ragged = kind, length, ragged

    def __len__(self) -> int:
        return 256

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        if self.kind == "image":
            return {"pixel_values": torch.rand(3, 64, 64, generator=made), "labels": torch.tensor(index % 10)}
        length = self.length - (index * 7 % (self.length // 2) if self.ragged else 0)
        ids = torch.randint(5, VOCABULARY, (self.length,), generator=made)
        mask = torch.arange(self.length) < length
        row = {"input_ids": torch.where(mask, ids, 0), "labels": torch.where(mask, ids, -100)}
        return {**row, "attention_mask": mask.long()} if self.ragged else row


def llama(**more: Any) -> Any:
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=352, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, **more,
        )
    )  # fmt: skip


def qwen2(**more: Any) -> Any:
    return transformers.Qwen2ForCausalLM(
        transformers.Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=256, num_hidden_layers=4,
            num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True, **more,
        )
    )  # fmt: skip


def gpt2(**more: Any) -> Any:
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=128, n_layer=4, n_head=4, **more)
    return transformers.GPT2LMHeadModel(config)


def bert(**more: Any) -> Any:
    return transformers.BertForMaskedLM(
        transformers.BertConfig(
            vocab_size=VOCABULARY, hidden_size=128, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=4, **more,
        )
    )  # fmt: skip


def t5(**more: Any) -> Any:
    return transformers.T5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=VOCABULARY, d_model=128, d_ff=256, d_kv=32, num_layers=3, num_heads=4,
            decoder_start_token_id=0, **more,
        )
    )  # fmt: skip


def vit(**more: Any) -> Any:
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(
            image_size=64, patch_size=8, hidden_size=128, intermediate_size=512, num_hidden_layers=4,
            num_attention_heads=4, num_labels=10, **more,
        )
    )  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One training."""

    name: str
    build: Callable[..., Any]
    rows: int
    length: int = 128
    attention: str = "sdpa"
    ragged: bool = False
    arguments: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    eval_rows: int = 0  # of a set that is evaluated after the second step
    keeps: str = "logits"  # until its end; or their "argmax", or "loss"
    tokens: int = 0  # that it generates
    beams: int = 1
    ranks: int = 1
    sharding: dict[str, Any] = field(default_factory=dict)  # arguments of FSDP
    loop: str = ""  # "ddp" or "fsdp": a plain loop, on as many ranks


def checkpointing(reentrant: bool) -> dict[str, Any]:
    return {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": reentrant}}


CASES = (
    Case("llama eager adamw", llama, 4, attention="eager", arguments={"optim": "adamw_torch"}),
    Case("llama sdpa adamw", llama, 4, arguments={"optim": "adamw_torch"}),
    Case("llama sdpa fused", llama, 8, arguments={"optim": "adamw_torch_fused"}),
    Case("llama sdpa padded", llama, 8, ragged=True),
    Case("llama adafactor", llama, 4, arguments={"optim": "adafactor"}),
    Case("llama sgd long", llama, 1, 512, arguments={"optim": "sgd"}),
    Case("llama checkpointing, reentrant", llama, 8, arguments=checkpointing(True)),
    Case("llama checkpointing, not reentrant", llama, 8, arguments=checkpointing(False)),
    Case("llama accumulation 4", llama, 2, arguments={"gradient_accumulation_steps": 4}),
    Case("llama bf16 autocast", llama, 4, arguments={"bf16": True}),
    Case("llama bf16 autocast checkpointing", llama, 4, arguments={"bf16": True, **checkpointing(False)}),
    Case("llama bf16 weights", llama, 4, model={"dtype": torch.bfloat16}),
    Case("qwen2 sdpa tied", qwen2, 4),
    Case("qwen2 eager padded", qwen2, 6, 96, attention="eager", ragged=True),
    Case("gpt2 sdpa", gpt2, 4, 256),
    Case("gpt2 eager sgd momentum", gpt2, 4, attention="eager",
         arguments={"optim": "sgd", "optim_args": "momentum=0.9"}),
    Case("gpt2 no clipping", gpt2, 2, 64, arguments={"max_grad_norm": 0.0}),
    Case("bert sdpa padded", bert, 8, ragged=True),
    Case("bert eager adafactor", bert, 4, attention="eager", arguments={"optim": "adafactor"}),
    Case("t5 eager", t5, 4, attention="eager"),
    Case("t5 padded checkpointing", t5, 4, attention="eager", ragged=True, arguments=checkpointing(False)),
    Case("vit sdpa", vit, 8),
    Case("vit eager bf16 autocast", vit, 4, attention="eager", arguments={"bf16": True}),
    Case("vit label smoothing, accumulation 2", vit, 4,
         arguments={"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2}),
    Case("llama evaluation, all logits", llama, 4, eval_rows=203),
    Case("llama evaluation, argmax", llama, 4, eval_rows=203, keeps="argmax"),
    Case("llama evaluation, the loss", llama, 2, 32, eval_rows=203, keeps="loss"),
    Case("bert evaluation, padded, all logits", bert, 4, ragged=True, eval_rows=150),
    Case("vit evaluation, saving", vit, 2, eval_rows=256, arguments={"save_strategy": "steps", "save_steps": 2}),
    Case("t5 evaluation, generating 300 tokens", t5, 2, 32, attention="eager", eval_rows=40, tokens=300),
    Case("llama evaluation, generating 60 tokens by 4 beams", llama, 2, 32, eval_rows=40, tokens=60, beams=4),
    Case("llama, 2 ranks", llama, 4, ranks=2),
    Case("bert, 2 ranks, evaluation", bert, 4, ragged=True, ranks=2, eval_rows=208),
    Case("llama, 2 ranks, FSDP", llama, 4, ranks=2, sharding={"fsdp": True}),
    Case("llama short, 2 ranks, FSDP", llama, 2, 16, ranks=2, sharding={"fsdp": True}),
    Case("llama bf16, 2 ranks, FSDP checkpointing", llama, 4, ranks=2, arguments={"bf16": True},
         sharding={"fsdp": True, "fsdp_config": {"activation_checkpointing": True}}),
    Case("llama loop, 2 ranks, ddp", llama, 4, ranks=2, loop="ddp"),
    Case("llama loop, 2 ranks, fully_shard", llama, 4, ranks=2, loop="fsdp"),
)  # fmt: skip


def trainer_of(case: Case, folder: Path) -> transformers.Trainer:
    torch.manual_seed(0)
    more = dict(case.model)
    dtype = more.pop("dtype", None)
    model = case.build(attn_implementation=case.attention, **more)
    if dtype is not None:
        model = model.to(dtype)
    arguments = {
        "output_dir": str(folder), "per_device_train_batch_size": case.rows, "max_steps": 3, "logging_steps": 1,
        "save_strategy": "no", "report_to": [], "use_cpu": True, "disable_tqdm": True,
        "log_level": "error", **case.arguments,
    }  # fmt: skip
    if case.eval_rows:
        arguments.update(eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=8)
    rows = Rows("image" if case.build is vit else "text", case.length, case.ragged)
    of = ""
    if case.tokens:
        of = "Seq2Seq"
        arguments.update(predict_with_generate=True, generation_num_beams=case.beams)
        # None ends it early
        model.generation_config.update(max_new_tokens=case.tokens, eos_token_id=None, pad_token_id=0)
        model.config.pad_token_id = 0
    return getattr(transformers, f"{of}Trainer")(
        model=model,
        args=getattr(transformers, f"{of}TrainingArguments")(**arguments),
        train_dataset=rows,
        eval_dataset=torch.utils.data.Subset(rows, range(case.eval_rows)) if case.eval_rows else None,
        compute_metrics=(lambda _: {"seen": 1.0}) if case.keeps != "loss" else None,
        preprocess_logits_for_metrics=(lambda logits, _: logits.argmax(-1)) if case.keeps == "argmax" else None,
    )


def loop_of(case: Case) -> tuple[Callable[[Any], None], torch.nn.Module, torch.optim.Optimizer, dict[str, Any]]:
    """A step of a plain loop, its model, spread over the ranks of the group, its optimizer and a batch."""
    model = case.build(attn_implementation=case.attention)
    if case.loop == "fsdp":
        mesh = distributed.device_mesh.init_device_mesh("cpu", (case.ranks,))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    else:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch: Any) -> None:
        model(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    rows = Rows("text", case.length, case.ragged)
    return (
        step,
        model,
        optimizer,
        {"input_ids": torch.stack([rows[0]["input_ids"]] * case.rows)}
        | {"labels": torch.stack([rows[0]["labels"]] * case.rows)},
    )


def on_a_rank(case: Case, rank: int, port: int, told: Any) -> None:
    """In a process of its own: the training as one of the ranks."""
    quiet()
    sizes = {"WORLD_SIZE": case.ranks, "LOCAL_WORLD_SIZE": case.ranks, "RANK": rank, "LOCAL_RANK": rank}
    os.environ.update({"MASTER_ADDR": "localhost", "MASTER_PORT": str(port)})
    os.environ.update({name: str(value) for name, value in sizes.items()})
    with tempfile.TemporaryDirectory() as folder:
        if case.loop:
            distributed.init_process_group("gloo")
            step, model, _, batch = loop_of(case)
            with Counted(model) as counted:
                for tensor in batch.values():
                    counted.count(tensor)
                for _ in range(3):
                    step(batch)
        else:
            trainer = trainer_of(replace(case, arguments={**case.arguments, **case.sharding}), Path(folder))
            if case.sharding:
                shard_on_the_host(trainer)
            with Counted(trainer.model) as counted:
                trainer.train()
    told.put(counted.peak_bytes)


def shard_on_the_host(trainer: transformers.Trainer) -> None:
    """Let accelerate do on the host what it does with ranks on accelerators alone."""
    plugin = FullyShardedDataParallelPlugin(**trainer.args.fsdp_plugin_args)
    if trainer.accelerator.mixed_precision != "no":
        plugin.set_mixed_precision(trainer.accelerator.mixed_precision)
    AcceleratorState._shared_state.update(distributed_type=DistributedType.FSDP, fsdp_plugin=plugin)
    trainer.is_fsdp_enabled = True


def planned(case: Case, folder: Path) -> Plan:
    """The plan of a case of several ranks."""
    if not case.loop:
        return forgather_mem.plan(trainer_of(case, folder), ranks=case.ranks, **case.sharding)
    distributed.init_process_group("fake", rank=0, world_size=case.ranks, store=FakeStore())
    return forgather_mem.plan(*loop_of(case))


def measure_ranks(case: Case, told: Any) -> None:
    """In a process of its own: the plan, then the training on all ranks; the most of them counts."""
    context = multiprocessing.get_context("fork")
    found = context.SimpleQueue()
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = [context.Process(target=on_a_rank, args=(case, rank, port, found)) for rank in range(case.ranks)]
    for process in ranks:
        process.start()
    real = max(found.get() for _ in ranks)
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        began_s = time.perf_counter()
        plan = planned(case, Path(folder))
    told.put((plan.peak_bytes, real, plan.phase, time.perf_counter() - began_s))


def measure(case: Case, told: Any) -> None:
    """In a process of its own: the plan, then the training."""
    quiet()
    with tempfile.TemporaryDirectory() as folder:
        trainer = trainer_of(case, Path(folder))
        began_s = time.perf_counter()
        plan = forgather_mem.plan(trainer)
        took_s = time.perf_counter() - began_s
        counted = Counted(trainer.model)
        with counted:
            trainer.train()
    told.put((plan.peak_bytes, counted.peak_bytes, plan.phase, took_s))


def quiet() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    sys.stdout = sys.stderr


def in_a_process(function: Callable[..., None], *arguments: Any) -> Any:
    """What the function tells, or None if its process fails."""
    context = multiprocessing.get_context("fork")
    told = context.SimpleQueue()
    process = context.Process(target=function, args=(*arguments, told))
    process.start()
    process.join()
    return told.get() if not process.exitcode else None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="trainings with this in their name")
    parser.add_argument("--markdown", type=Path, help="write the table to this file")
    asked = parser.parse_args()
    lines = ["| training | planned MiB | real MiB | off | phase | planned in |", "|---|---|---|---|---|---|"]
    print(*lines, sep="\n", flush=True)
    wrong = 0
    for case in CASES:
        if asked.only not in case.name:
            continue
        found = in_a_process(measure_ranks if case.ranks > 1 else measure, case)
        if found is None:
            lines.append(f"| {case.name} | failed | | | | |")
            wrong += 1
        else:
            planned, real, phase, took_s = found
            off = planned / real - 1
            wrong += not -MOST_BELOW <= off <= MOST_ABOVE
            row = f"{planned / 2**20:.2f} | {real / 2**20:.2f} | {off:+.2%} | {phase} | {took_s:.1f} s"
            lines.append(f"| {case.name} | {row} |")
        print(lines[-1], flush=True)
    if asked.markdown:
        asked.markdown.write_text(HEAD + "\n".join(lines) + "\n")
    return 1 if wrong else 0


HEAD = """# Plans against real trainings

`python benchmarks/plan.py --markdown benchmarks/results/plan.md`. Real: the most bytes of tensors alive in three steps
of `trainer.train()` on the host, counted by a dispatch mode of the benchmark's own.

"""

if __name__ == "__main__":
    sys.exit(main())
