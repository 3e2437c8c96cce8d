"""What does a callback cost per step? Ours beside the peers', in one process.

    python benchmarks/callbacks.py [--steps N] [--markdown FILE]

Two settings: a tight loop that only fires a step's events through transformers' own callback handler, and
a real step of `transformers.Trainer` (about 17 ms) in which the variants take turns step by step. Figures
are medians; ratios are to the empty callback (tight loop) or to the step without any callback (real step).

Peers: 20 x `SummaryWriter.add_scalar` on `on_step_end`; Lightning's `DeviceStatsMonitor` (when lightning is
installed: `pip install '.[bench]'`); a `TrainerCallback` that does nothing.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from torch.utils.tensorboard import SummaryWriter
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_callback import CallbackHandler, PrinterCallback, TrainerControl, TrainerState

from forgather_mem.callbacks import (
    ClearCacheCallback,
    JsonMemoryLogger,
    MemoryCallback,
    PeakMemory,
    SimpleGarbageCollector,
    TBMemoryLogger,
)

STEP_EVENTS = ("on_step_begin", "on_pre_optimizer_step", "on_optimizer_step", "on_step_end")
ROUNDS = 9


class TwentyScalars(TrainerCallback):
    """What people write by hand: one `add_scalar` for each number."""

    def __init__(self, folder: Path) -> None:
        self.writer = SummaryWriter(str(folder))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for number in range(20):
            self.writer.add_scalar(f"memory/value_{number}", float(number), state.global_step)


def device_stats_monitor(folder: Path) -> TrainerCallback | None:
    """Lightning's monitor behind a Trainer event: its own method, with the logger it would have."""
    try:
        from lightning.pytorch.callbacks import DeviceStatsMonitor
        from lightning.pytorch.loggers import TensorBoardLogger
    except ImportError:
        return None
    from types import SimpleNamespace

    monitor, logger = DeviceStatsMonitor(cpu_stats=True), TensorBoardLogger(str(folder))
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    connector = SimpleNamespace(should_update_logs=True, _batches_that_stepped=0)
    connector._logger_connector = connector
    accelerator = __import__("lightning.pytorch.accelerators", fromlist=["CPUAccelerator"]).CPUAccelerator()
    loop = SimpleNamespace(epoch_loop=connector)
    trainer = SimpleNamespace(
        loggers=[logger], strategy=strategy, accelerator=accelerator, fit_loop=loop, _logger_connector=connector
    )

    class Monitored(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            connector._batches_that_stepped = state.global_step
            monitor.on_train_batch_end(trainer, None, None, None, state.global_step)

    return Monitored()


def variants(folder: Path) -> dict[str, Callable[[], TrainerCallback | None]]:
    return {
        "empty TrainerCallback": TrainerCallback,
        "ours, idle: SimpleGarbageCollector()": SimpleGarbageCollector,
        "ours, idle: SimpleGarbageCollector(step 10**6)": lambda: SimpleGarbageCollector(collect_freq_step=10**6),
        "ours, idle: ClearCacheCallback()": ClearCacheCallback,
        "ours: PeakMemory(1)": PeakMemory,
        "ours: JsonMemoryLogger(1)": lambda: JsonMemoryLogger(folder / "m.jsonl"),
        "ours: TBMemoryLogger(every_steps=1)": lambda: TBMemoryLogger(logging_dir=folder / "ours"),
        "ours: MemoryCallback() (watch.yaml)": MemoryCallback,
        "20 x SummaryWriter.add_scalar": lambda: TwentyScalars(folder / "twenty"),
        "Lightning DeviceStatsMonitor(cpu_stats=True)": lambda: device_stats_monitor(folder / "lightning"),
    }


def fire(handler: CallbackHandler, args: Any, state: TrainerState, control: TrainerControl, steps: int) -> float:
    """Seconds for one step's events, averaged over `steps`."""
    began = time.perf_counter()
    for _ in range(steps):
        for event in STEP_EVENTS[:-1]:
            handler.call_event(event, args, state, control)
        state.global_step += 1
        handler.call_event("on_step_end", args, state, control)
    return (time.perf_counter() - began) / steps


def tight_loop(folder: Path, steps: int) -> dict[str, tuple[float, float]]:
    """Variant -> (median seconds a step, process CPU seconds a step), the handler's own cost subtracted."""
    args = TrainingArguments(output_dir=str(folder / "out"), report_to=[], use_cpu=True)
    model = tiny_model(8)
    optimizer = torch.optim.AdamW(model.parameters())
    prepared: dict[str, Any] = {"no callback": None}
    for name, build in variants(folder).items():
        callback = build()
        if callback is not None:
            prepared[name] = callback
    setups = {}
    for name, callback in prepared.items():
        state, control = TrainerState(), TrainerControl()
        handler = CallbackHandler([callback] if callback else [], model, None, optimizer, None)
        handler.call_event("on_train_begin", args, state, control)
        setups[name] = (handler, state, control)
    wall: dict[str, list[float]] = {name: [] for name in setups}
    cpu: dict[str, list[float]] = {name: [] for name in setups}
    for _ in range(ROUNDS):
        for name, (handler, state, control) in setups.items():
            cpu_began = time.process_time()
            wall[name].append(fire(handler, args, state, control, steps))
            cpu[name].append((time.process_time() - cpu_began) / steps)
    for handler, state, control in setups.values():
        handler.call_event("on_train_end", args, state, control)
    return {name: (statistics.median(wall[name]), statistics.median(cpu[name])) for name in setups}


def tiny_model(hidden: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=hidden, intermediate_size=2 * hidden, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=128,
    )  # fmt: skip
    return LlamaForCausalLM(config)


class TurnTaking(TrainerCallback):
    """Gives each variant a step in turn and notes what that step took; all see every training event otherwise."""

    def __init__(self, callbacks: dict[str, TrainerCallback | None]) -> None:
        self.callbacks = callbacks
        self.names = list(callbacks)
        self.wall: dict[str, list[float]] = {name: [] for name in callbacks}
        self.cpu: dict[str, list[float]] = {name: [] for name in callbacks}
        self.states: dict[str, TrainerState] = {}
        self.turn = 0
        self.began = (time.perf_counter(), time.process_time())

    def _fire(self, event: str, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        name = self.names[self.turn]
        callback = self.callbacks[name]
        if callback is not None:
            own = self.states[name]
            own.global_step, own.epoch = state.global_step, state.epoch
            getattr(callback, event)(args, own, control, **kwargs)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, callback in self.callbacks.items():
            if callback is not None:  # a state each, so that ours do not share one run
                self.states[name] = copy.copy(state)
                callback.on_train_begin(args, self.states[name], control, **kwargs)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, callback in self.callbacks.items():
            if callback is not None:
                callback.on_train_end(args, self.states[name], control, **kwargs)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.began = (time.perf_counter(), time.process_time())
        self._fire("on_step_begin", args, state, control, **kwargs)

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_pre_optimizer_step", args, state, control, **kwargs)

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_optimizer_step", args, state, control, **kwargs)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._fire("on_step_end", args, state, control, **kwargs)
        name = self.names[self.turn]
        if state.global_step > 3 * len(self.names):  # warm by then
            self.wall[name].append(time.perf_counter() - self.began[0])
            self.cpu[name].append(time.process_time() - self.began[1])
        self.turn = (self.turn + 1) % len(self.names)


class Rows(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = torch.arange(index, index + 64) % 256
        return {"input_ids": row, "labels": row}


def real_step(folder: Path, steps: int) -> dict[str, tuple[float, float]]:
    callbacks: dict[str, TrainerCallback | None] = {"no callback": None}
    for name, build in variants(folder).items():
        if "idle" not in name and "empty" not in name:
            callback = build()
            if callback is not None:
                callbacks[name] = callback
    turns = TurnTaking(callbacks)
    arguments = TrainingArguments(
        output_dir=str(folder / "train"), per_device_train_batch_size=8, max_steps=steps, report_to=[],
        use_cpu=True, save_strategy="no", logging_strategy="no", disable_tqdm=True,
    )  # fmt: skip
    trainer = Trainer(model=tiny_model(64), args=arguments, train_dataset=Rows(), callbacks=[turns])
    trainer.remove_callback(PrinterCallback)
    trainer.train()
    return {name: (statistics.median(turns.wall[name]), statistics.median(turns.cpu[name])) for name in callbacks}


def table(title: str, rows: dict[str, tuple[float, float]], base: str, unit: str, factor: float) -> list[str]:
    lines = [
        f"### {title}",
        "",
        f"| variant | wall, {unit} | CPU, {unit} | ratio wall | ratio CPU |",
        "|---|---|---|---|---|",
    ]
    for name, (wall, cpu) in rows.items():
        ratio, cpu_ratio = wall / rows[base][0], cpu / rows[base][1]
        lines.append(f"| {name} | {wall * factor:.2f} | {cpu * factor:.2f} | {ratio:.3f} | {cpu_ratio:.3f} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2_000, help="steps a round in the tight loop")
    parser.add_argument("--real-steps", type=int, default=1_500, help="steps of the real training, shared by all")
    parser.add_argument("--markdown", type=Path, help="write the tables to this file too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    with tempfile.TemporaryDirectory() as name:
        loop = tight_loop(Path(name), options.steps)
        real = real_step(Path(name), options.real_steps)
    lines = table("Tight loop: the four events of a step", loop, "empty TrainerCallback", "us", 1e6)
    lines += table("Real Trainer step, variants taking turns", real, "no callback", "ms", 1e3)
    print("\n".join(lines))
    if options.markdown:
        head = [
            f"# Callbacks, cost per step ({time.strftime('%Y-%m-%d')})",
            "",
            f"`python benchmarks/callbacks.py --steps {options.steps} --real-steps {options.real_steps}`; "
            f"Python {sys.version.split()[0]}, torch {torch.__version__}, transformers {transformers.__version__}; "
            "one thread, 2 shared x86 cores. Medians; trust ratios more than absolutes.",
            "",
        ]
        options.markdown.write_text("\n".join(head + lines), encoding="utf-8")


if __name__ == "__main__":
    main()
