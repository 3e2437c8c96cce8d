"""`forgather-mem demo`: trains a small model made from a template and shows where the memory went."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from forgather_mem.cli.app import complain
from forgather_mem.cli.command import INTERRUPTED
from forgather_mem.cli.options import add_settings, environment_of, parse_settings, policy_of
from forgather_mem.cli.parser import CommandParser, whole_number
from forgather_mem.errors import TemplateError

if TYPE_CHECKING:
    from forgather_mem.config.environment import Config

DEMO = "configs/demo.yaml"


def add_arguments(parser: CommandParser) -> None:
    parser.add_argument("--steps", metavar="N", type=whole_number(1), help="Optimizer steps.")
    parser.add_argument(
        "--template", metavar="NAME", default=DEMO,
        help="A configuration with a `trainer`, or callbacks to train the demo with. Default: %(default)s.",
    )  # fmt: skip
    add_settings(parser)
    parser.add_argument("--logging-dir", metavar="DIR", type=Path, help="The TensorBoard folder.")


def demo(steps: int | None, template: str, settings: list[str], logging_dir: Path | None) -> int:
    """Train a tiny language model on Python's own source text, and show where the memory went."""
    # On a busy two-core machine, two threads were ten times slower than one; read when torch is loaded.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    variables = parse_settings(settings)
    if steps is not None:
        variables["steps"] = steps
    if logging_dir is not None:
        variables["logging_dir"] = str(logging_dir)
    print("forgather-mem demo: loading; press Ctrl-C to stop early and see the table so far", file=sys.stderr)
    trainer = _load(template, variables)["trainer"]
    return _train(trainer)


def _load(template: str, variables: Mapping[str, object]) -> Config:
    from forgather_mem.config.check import unused

    environment, name = environment_of(template, policy=policy_of())
    config = environment.load(name, **variables)
    if "trainer" not in config.targets:
        if "trainer_callbacks" not in config.targets:
            raise TemplateError(
                f"it has neither a trainer nor trainer_callbacks; its targets: {', '.join(config.targets) or 'none'}",
                template=name,
                hint=f"a template for the demo extends {DEMO} or callbacks/memory.yaml",
            )
        name, variables = DEMO, {**variables, "callbacks": name}
        config = environment.load(name, **variables)
    for problem in unused(config, name, variables):
        raise problem.error
    return config


def _train(trainer: Any) -> int:
    from transformers.trainer_callback import PrinterCallback
    from transformers.trainer_callback import ProgressCallback as TransformersBar

    from forgather_mem.callbacks.training.progress import ProgressCallback

    for printing in (PrinterCallback, TransformersBar):
        trainer.remove_callback(printing)
    if sys.stderr.isatty():
        trainer.add_callback(ProgressCallback(use_tqdm=True))
    try:
        trainer.train()
    except KeyboardInterrupt:
        return INTERRUPTED
    finally:
        _show(trainer)
    return 0


def _show(trainer: Any) -> None:
    from forgather_mem.callbacks.base import RuleCallback
    from forgather_mem.reporting.build import build_report
    from forgather_mem.reporting.text import report_text

    ours = (callback for callback in trainer.callback_handler.callbacks if isinstance(callback, RuleCallback))
    summary = next((callback.summary for callback in ours if callback.summary is not None), None)
    if summary is None:
        complain("this template has no callback that measures memory, so there is no table")
        return
    print("\n" + report_text(build_report(summary), with_table=True))
