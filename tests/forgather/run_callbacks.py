"""Do our templates and our callbacks work in real Forgather?

    python tests/forgather/run_callbacks.py PATH_TO_A_FORGATHER_CHECKOUT

A Forgather project is made in a temporary folder, with our templates last in its search path. Forgather's own code
renders its configurations, builds them and trains a tiny model. Printed is what was checked; the end is 1 when
something is not so. Forgather needs torchdata beside our own dependencies.
"""

import argparse
import json
import logging
import os
import shutil
import sys
import tempfile
import typing
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
# Its `callbacks/all_of_ours.yaml` replaces Forgather's own callbacks by ours, key by key, and adds the others of ours
PROJECT = Path(__file__).parent / "project"
STEPS = list(range(1, 13))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    checkout = parser.parse_args().checkout.resolve()
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda function: function  # type: ignore[attr-defined]
    sys.path[:0] = [str(checkout / "src"), str(ROOT)]
    os.environ["FORGATHER_MEM_STRICT"] = "1"
    logging.disable(logging.WARNING)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        make_project(folder, checkout)
        os.chdir(folder / "project")
        checks = Checks(folder)
        for check in (checks.templates, checks.beside_theirs, checks.instead_of_theirs, checks.exceptions):
            check()
    print(f"{checks.wrong} of {checks.done} are wrong" if checks.wrong else f"all {checks.done} hold")
    return 1 if checks.wrong else 0


def make_project(folder: Path, checkout: Path) -> None:
    """A workspace with one project, as Forgather wants them."""
    from forgather_mem.config.source.search import library

    shutil.copytree(PROJECT, folder / "project")
    meta = folder / "project" / "meta.yaml"
    text = meta.read_text(encoding="utf-8")
    meta.write_text(text.replace("CHECKOUT", str(checkout)).replace("OURS", str(library())), encoding="utf-8")
    workspace = folder / "forgather_workspace"
    workspace.mkdir()
    (workspace / "base_directories.yaml").write_text(f'-- set ns.forgather_dir = "{checkout}"\n', encoding="utf-8")


class Checks:
    """What is checked, each line printed as it is found."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.done = self.wrong = 0

    def hold(self, what: str, found: Any, expected: Any = True) -> None:
        self.done += 1
        if found == expected:
            print(f"ok     {what}")
            return
        self.wrong += 1
        print(f"WRONG  {what}\n       expected {expected}\n       found    {found}")

    def trainer(self, config: str, folder: str | None = None) -> Any:
        """Forgather's trainer, built by Forgather from a configuration."""
        from forgather.project import Project

        project = Project(f"{config}.yaml", ".", models_dir=str(self.folder / (folder or config)))
        return project("main").trainer

    def templates(self) -> None:
        names = [type(callback).__name__ for callback in self.trainer("memory").callbacks]
        theirs = ["ProgressCallback", "InfoCallback"]
        ours = ["SimpleGarbageCollector", "ClearCacheCallback", "TBMemoryLogger"]
        self.hold("callbacks/memory.yaml extends Forgather's callbacks/base_callbacks.yaml", names, theirs + ours)
        callbacks = self.trainer("both", "built only").callbacks
        names = [type(callback).__name__ for callback in callbacks]
        self.hold(
            "callbacks/memory_and_loggers.yaml extends Forgather's callbacks/loggers.yaml",
            names,
            [*theirs, "JsonLogger", "TBLogger", *ours],
        )
        packages = [type(callback).__module__.partition(".")[0] for callback in callbacks]
        self.hold("the first four are Forgather's own", packages, ["forgather"] * 4 + ["forgather_mem"] * 3)

    def beside_theirs(self) -> None:
        from tests.events import event_folders, scalars
        from tests.training import fingerprint, ours_in

        alone, watched = self.trainer("theirs"), self.trainer("both")
        for trainer in (alone, watched):
            trainer.train()
        self.hold("a training beside Forgather's callbacks reaches its end", watched.state.global_step, STEPS[-1])
        collector = next(one for one in watched.callbacks if type(one).__name__ == "SimpleGarbageCollector")
        collections = sum(row["calls"] for row in collector.summary.ledger if row["what"] == "collect")
        most = len(scalars(self.folder / "both")["eval-loss"]) + len(list((self.folder / "both").rglob("checkpoint-*")))
        self.hold("garbage is collected at evaluations, checkpoints and the end", 0 < collections <= most + 1)
        self.hold("it is bit-identical to one without ours", fingerprint(watched)[0], fingerprint(alone)[0])
        self.hold("all curves are one run", len(event_folders(self.folder / "both")), 1)
        points = scalars(self.folder / "both")
        self.hold("memory is logged once a step", [step for step, _ in points["mem_host/rss_gib"]], STEPS)
        pauses = [step for step, _ in points["mem_gc/pause_ms"]]
        self.hold("from the first on pauses have one point a step, also where a checkpoint is written",
                  pauses, STEPS[-len(pauses) :])  # fmt: skip
        self.hold("beside all of Forgather's own", scalars(self.folder / "theirs").keys() - points.keys(), set())
        self.hold("nothing of us stays on the trainer", ours_in(watched), [])

    def instead_of_theirs(self) -> None:
        from forgather_mem import Every, Rule
        from forgather_mem.callbacks import MemoryCallback
        from tests.events import event_folders, scalars, texts
        from tests.phase_notes import PhaseNotes
        from tests.training import fingerprint, ours_in

        trainer, order = self.trainer("ours"), PhaseNotes()
        trainer.add_callback(MemoryCallback([Rule(Every(steps=1), [order])]))
        packages = {type(callback).__module__.partition(".")[0] for callback in trainer.callbacks}
        self.hold("by its key each of Forgather's callbacks is replaced by ours", packages, {"forgather_mem"})
        trainer.train()
        folder = self.folder / "ours"
        step = [*["data", "forward", "backward"] * 2, "optimizer"]
        self.hold("a step has its phases", order.seen[: 1 + len(step)], ["startup", *step])
        self.hold("so have evaluations and checkpoints", {"evaluate", "save"} <= set(order.seen))
        self.hold("a training with all of ours reaches its end", trainer.state.global_step, STEPS[-1])
        self.hold("it is bit-identical, too", fingerprint(trainer)[0], fingerprint(self.trained("theirs", "again"))[0])
        self.hold("all curves are one run", len(event_folders(folder)), 1)
        points, pages = scalars(folder), texts(folder)
        for tag in ("train-loss", "grad_norm_total", "mem_host/rss_gib"):
            self.hold(f"{tag}: one point a step", sorted({step for step, _ in points[tag]}), STEPS)
            self.hold(f"{tag}: none twice", len(points[tag]), len(STEPS))
        pauses = [step for step, _ in points["mem_gc/pause_ms"]]
        self.hold("mem_gc/pause_ms: one point a step from the first on", pauses, STEPS[-len(pauses) :])
        norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
        same = [abs(ours - it) <= 0.01 * it for (_, ours), it in zip(points["grad_norm_total"], norms, strict=True)]
        self.hold("gradient norms are those of Forgather's log, before clipping", same, [True] * len(STEPS))
        self.hold("eval-loss at the evaluations", [step for step, _ in points["eval-loss"]], [3, 6, 9, 12])
        self.hold("text is generated", [step for step, _ in pages["generated_text"]], [4, 8, 12])
        (log,) = folder.rglob("trainer_logs.json")
        records = json.loads(log.read_text())
        self.hold("trainer_logs.json has both ends", [records[0]["event"], records[-1]["event"]],
                  ["on_train_begin", "on_train_end"])  # fmt: skip
        (lines,) = folder.rglob("memory.rank0.jsonl")
        steps = [json.loads(line).get("step") for line in lines.read_text().splitlines()]
        self.hold("memory.rank0.jsonl goes to the last step", max(step for step in steps if step is not None), 12)
        self.hold("parameters, gradients and the optimizer's state are told apart", {"mem_tensors/parameters_gib",
                  "mem_tensors/gradients_gib", "mem_tensors/optimizer_gib"} <= points.keys())  # fmt: skip
        self.hold("nothing of us stays on the trainer", ours_in(trainer), [])

    def trained(self, config: str, folder: str) -> Any:
        trainer = self.trainer(config, folder)
        trainer.train()
        return trainer

    def exceptions(self) -> None:
        import gc

        from forgather_mem.callbacks import ScheduledGarbageCollector
        from tests.training import ours_in

        before = gc.isenabled(), gc.get_freeze_count(), len(gc.callbacks)
        trainer = self.trainer("ours", "fails")
        trainer.add_callback(ScheduledGarbageCollector(every_steps=2))
        step = trainer._forward_backward_step

        def failing(*arguments: Any) -> Any:
            if trainer.state.global_step == 5:
                raise RuntimeError("in the step")
            return step(*arguments)

        trainer._forward_backward_step = failing
        try:
            trainer.train()
            left = "nothing was raised"
        except RuntimeError as error:
            left = str(error)
        self.hold("an exception of the training passes", left, "in the step")
        self.hold("the collector is as before", (gc.isenabled(), gc.get_freeze_count(), len(gc.callbacks)), before)
        self.hold("nothing of us stays on the trainer", ours_in(trainer), [])


if __name__ == "__main__":
    sys.exit(main())
