"""What does it cost to load a template and build its objects? Ours beside the peers, in one process.

    python benchmarks/templates.py [--forgather CHECKOUT] [--rounds N] [--markdown FILE] [--check]

Every variant builds the same list of N objects with four arguments each from its own kind of YAML. The variants
take turns round by round; figures are medians of CPU time, ratios are of medians. Ours runs with places and the
policy on. A peer that is not installed is left out with a line; Forgather is taken from a checkout (`--forgather`
or FORGATHER_CHECKOUT). `--check` ends with 1 when a ratio is not what we promise.

- first: a new environment each time, in a process that has made one before: modules are imported, and the
  `pyproject.toml` of the current folder is read but parsed already. This template has nothing to render, so Jinja does
  not compile it here; of one that extends it Jinja compiles both.
- again: the template is compiled already.
- floor: one constructor on libyaml's loader that calls what is imported: no places, no policy, no templates.
- a stranger's: rendered in a process of its own, wall time; "ours" is in a folder that is allowed.
- text: from rendered text, no Jinja: the loader and the construction alone.
"""

from __future__ import annotations

import argparse
import gc
import importlib.metadata
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
import tomllib
from collections.abc import Callable, Iterable
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from forgather_mem.config.construction.construct import Construction
from forgather_mem.config.construction.resolve import Resolver
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.policy.policy import NameUse, Policy
from forgather_mem.config.source.rendered import Rendered

PARTS = """
class Part:
    def __init__(self, period: int, verbose: bool = False, name: str = "", lr: float = 0.0):
        self.period, self.verbose, self.name, self.lr = period, verbose, name, lr
"""
SIZES = (10, 100, 1_000, 10_000)
UP_TO = {"Hydra": 1_000, "HyperPyYAML": 1_000, "jsonargparse": 100}  # beyond, they take minutes
LEVELS = 18
Variants = dict[str, Callable[[], object]]


def template(n: int) -> str:
    """Ours and Forgather's."""
    parts = (
        f"    - !singleton:parts:Part\n        period: {i}\n        verbose: True\n"
        f'        name: "part {i}"\n        lr: 1.0e-4\n'
        for i in range(n)
    )
    return "parts: !list:@parts\n" + "".join(parts)


def hydra_yaml(n: int) -> str:
    parts = (
        f"  - _target_: parts.Part\n    period: {i}\n    verbose: true\n    name: part {i}\n    lr: 1.0e-4\n"
        for i in range(n)
    )
    return "parts:\n" + "".join(parts)


def hyperpyyaml_yaml(n: int) -> str:
    parts = (
        f"  - !new:parts.Part\n    period: {i}\n    verbose: true\n    name: part {i}\n    lr: 1.0e-4\n"
        for i in range(n)
    )
    return "parts:\n" + "".join(parts)


def jsonargparse_yaml(n: int) -> str:
    parts = (
        f"  - class_path: parts.Part\n    init_args: {{period: {i}, verbose: true, name: part {i}, lr: 1.0e-4}}\n"
        for i in range(n)
    )
    return "parts:\n" + "".join(parts)


def shared(levels: int) -> str:
    """Lists of two aliases of the level before: written out, a million nodes."""
    lines = ["l0: &l0 !singleton:parts:Part { period: 1 }"]
    lines += [f"l{i}: &l{i} [ *l{i - 1}, *l{i - 1} ]" for i in range(1, levels + 1)]
    return "\n".join(lines) + "\n"


class PlainLoader(yaml.CSafeLoader):
    """libyaml's loader with one constructor that imports and calls."""


def _construct(loader: Any, suffix: str, node: yaml.Node) -> object:
    module, name = suffix.removeprefix(":").split(":")
    return getattr(sys.modules[module], name)(**loader.construct_mapping(node, deep=True))


PlainLoader.add_multi_constructor("!singleton", _construct)
PlainLoader.add_multi_constructor("!list", lambda loader, suffix, node: loader.construct_sequence(node, deep=True))


def ours_from_text(text: str, policy: Policy) -> object:
    graph = parse(Rendered.as_is(text))
    return Construction(Resolver(graph, policy, {})).build([graph.target("parts")])[0]


def text_variants(n: int) -> Variants:
    text, policy = template(n), Policy(allow=["parts"])
    return {
        "floor: CSafeLoader + construct": lambda: yaml.load(text, PlainLoader)["parts"],
        "ours": lambda: ours_from_text(text, policy),
    }


def first_variants(n: int, folder: str, peers: Peers) -> Variants:
    return loads(f"t{n}.yaml", folder, peers) | peers.others(n, folder)


def loads(name: str, folder: str, peers: Peers) -> Variants:
    """A first load of a template, here and in Forgather; and of the plain one that it is or extends at the floor."""
    plain = Path(folder, name.replace("child", "t"))
    variants: Variants = {
        "floor: CSafeLoader + construct": lambda: yaml.load(plain.read_text(), PlainLoader)["parts"],
        "ours": lambda: ConfigEnvironment(folder, allow=["parts"], allow_files=[folder]).load(name).construct("parts"),
    }
    if peers.forgather:
        variants["Forgather"] = lambda: peers.forgather(folder)(name)
    return variants


def again_variants(n: int, folder: str, peers: Peers) -> Variants:
    name = f"t{n}.yaml"
    ours = ConfigEnvironment(folder, allow=["parts"], allow_files=[folder])
    variants: Variants = {"ours": lambda: ours.load(name).construct("parts")}
    if peers.forgather:
        theirs = peers.forgather(folder)
        variants["Forgather"] = lambda: theirs(name)
    return variants


class Peers:
    """What of the others is here."""

    def __init__(self, checkout: str | None) -> None:
        self.missing: list[str] = []
        self.checkout = checkout
        self.forgather = self._forgather(checkout)

    def _forgather(self, checkout: str | None) -> Any:
        if not checkout:
            self.missing.append("Forgather: give --forgather CHECKOUT")
            return None
        sys.path.insert(0, str(Path(checkout) / "src"))
        try:
            from forgather.config import ConfigEnvironment as Theirs
            from forgather.latent import Latent
        except ImportError as error:
            self.missing.append(f"Forgather: {error}")
            return None

        def environment(folder: str) -> Callable[[str], object]:
            env = Theirs(searchpath=folder)
            return lambda name: Latent.materialize(env.load(name).config, mtargets="parts")

        return environment

    def others(self, n: int, folder: str) -> Variants:
        found: Variants = {}
        for name, make in (("Hydra", _hydra), ("HyperPyYAML", _hyperpyyaml), ("jsonargparse", _jsonargparse)):
            if n > UP_TO[name]:
                continue
            try:
                found[name] = make(n, folder)
            except ImportError as error:
                if (line := f"{name}: {error}") not in self.missing:
                    self.missing.append(line)
        return found


def _hydra(n: int, folder: str) -> Callable[[], object]:
    import hydra
    from hydra.utils import instantiate

    Path(folder, f"h{n}.yaml").write_text(hydra_yaml(n))

    def run() -> object:
        with hydra.initialize_config_dir(folder, version_base=None):
            return instantiate(hydra.compose(f"h{n}"))

    return run


def _hyperpyyaml(n: int, folder: str) -> Callable[[], object]:
    from hyperpyyaml import load_hyperpyyaml

    text = hyperpyyaml_yaml(n)
    return lambda: load_hyperpyyaml(text)


def _jsonargparse(n: int, folder: str) -> Callable[[], object]:
    import warnings

    import jsonargparse
    import parts

    warnings.simplefilter("ignore", DeprecationWarning)
    text = jsonargparse_yaml(n)

    def run() -> object:
        parser = jsonargparse.ArgumentParser(exit_on_error=False)
        parser.add_argument("--parts", type=list[parts.Part])
        return parser.instantiate_classes(parser.parse_string(text))

    return run


def cost_s(variants: Variants, rounds: int, calls: int = 1) -> dict[str, float]:
    """Median CPU seconds of a call; the variants take turns, each starting with a clean heap."""
    took: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        for name, call in variants.items():
            gc.collect()
            began_s = time.process_time()
            for _ in range(calls):
                call()
            took[name].append((time.process_time() - began_s) / calls)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


class TimedPolicy(Policy):
    """Counts the time that the policy takes."""

    seconds = 0.0

    def verdict(self, name: str, directory: str | None = None) -> Any:
        return self._timed(super().verdict, name, directory)

    def check(self, uses: Iterable[NameUse]) -> None:
        return self._timed(super().check, uses)

    def _timed(self, function: Callable[..., Any], *args: Any) -> Any:
        began_s = time.perf_counter()
        try:
            return function(*args)
        finally:
            self.seconds += time.perf_counter() - began_s


def policy_share(n: int, folder: str, rounds: int) -> float:
    """Part of a first load that deciding about names takes; importing them is not in it."""
    shares = []
    for _ in range(rounds):
        policy = TimedPolicy(allow=["parts"], allow_files=[folder])
        began_s = time.perf_counter()
        ConfigEnvironment(folder, policy=policy).load(f"t{n}.yaml").construct("parts")
        shares.append(policy.seconds / (time.perf_counter() - began_s))
    return statistics.median(shares)


OURS_COLD = """
from forgather_mem.config.environment import ConfigEnvironment
ConfigEnvironment({folder!r}, allow=["parts"], allow_files=[{folder!r}]).load({name!r}).construct("parts")
"""
THEIRS_COLD = """
from forgather.config import ConfigEnvironment
from forgather.latent import Latent
Latent.materialize(ConfigEnvironment({folder!r}).load({name!r}).config, mtargets="parts")
"""


def cold_s(folder: str, checkout: str | None, rounds: int) -> dict[str, float]:
    """Median CPU seconds of a new process that imports, loads and builds 100 objects.

    Bytecode is cached, as after an installation. The second template extends another, so it needs Jinja; ours
    reads the first without importing it.
    """
    paths = [folder, str(Path(__file__).resolve().parent.parent), *([str(Path(checkout) / "src")] if checkout else [])]
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONPYCACHEPREFIX": str(Path(folder, "pyc"))}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    scripts = {"nothing": "", "floor: yaml": "import yaml", "floor: yaml and jinja2": "import yaml, jinja2"}
    for who, script in (("ours", OURS_COLD), ("Forgather", THEIRS_COLD)):
        if who == "ours" or checkout:
            scripts[who] = script.format(folder=folder, name="t100.yaml")
            scripts[f"{who}, extends"] = script.format(folder=folder, name="child100.yaml")
    took: dict[str, list[float]] = {name: [] for name in scripts}
    for round_number in range(rounds + 1):
        for name, script in scripts.items():
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run([sys.executable, "-c", script], check=True, env=environ, cwd=folder)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            if round_number:  # the first one writes the bytecode
                took[name].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return {name: statistics.median(seconds) for name, seconds in took.items()}


class Report:
    """Markdown, and whether what is promised holds."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.broken: list[str] = []

    def add(self, *lines: str) -> None:
        self.lines += lines
        print(*lines, sep="\n", flush=True)

    def promise(self, what: str, figure: float, limit: float, *, at_least: bool = False) -> None:
        holds = figure >= limit if at_least else figure <= limit
        self.add(
            f"| {what} | {figure:.2f} | {'at least' if at_least else 'at most'} {limit:g} "
            f"| {'yes' if holds else 'NO'} |"
        )
        if not holds:
            self.broken.append(what)


def table(report: Report, title: str, costs: dict[int, dict[str, float]]) -> None:
    names = list(dict.fromkeys(name for cost in costs.values() for name in cost))
    report.add(
        "", f"## {title}, us an object", "", "| objects | " + " | ".join(names) + " |", "|---:|" + "---:|" * len(names)
    )
    for n, cost in costs.items():
        cells = [f"{cost[name] / n * 1e6:,.1f}" if name in cost else "" for name in names]
        report.add(f"| {n:,} | " + " | ".join(cells) + " |")


def measure(report: Report, folder: str, peers: Peers, rounds: int) -> None:
    def rounds_of(n: int) -> int:
        return max(rounds * 100 // max(n, 100), 3)

    def calls_of(n: int) -> int:
        return max(200 // n, 1)  # so that a short one is not measured with cold caches

    text = {n: cost_s(text_variants(n), rounds_of(n // 10), calls_of(n)) for n in SIZES}
    again = {n: cost_s(again_variants(n, folder, peers), rounds_of(n), calls_of(n)) for n in SIZES}
    first = {n: cost_s(first_variants(n, folder, peers), rounds_of(n)) for n in SIZES}
    child = {n: cost_s(loads(f"child{n}.yaml", folder, peers), rounds_of(n)) for n in SIZES}
    policy = Policy(allow=["parts"])
    levels = cost_s({"ours": lambda: _shared_ours(policy)}, rounds)
    if peers.forgather:
        theirs = peers.forgather(folder)
        levels |= cost_s({"Forgather": lambda: theirs("shared.yaml")}, 1)
    share = {n: policy_share(n, folder, rounds_of(n) * calls_of(n)) for n in SIZES}
    cold = cold_s(folder, peers.checkout if peers.forgather else None, max(rounds // 3, 3))
    table(report, "From rendered text, no Jinja", text)
    table(report, "Template compiled already", again)
    table(report, "First load", first)
    table(report, "First load of a template that extends it, so that Jinja compiles both", child)
    report.add("", f"## {LEVELS} levels of shared nodes, ms", "")
    report.add(*(f"- {name}: {seconds * 1e3:,.2f}" for name, seconds in levels.items()))
    report.add("", "## A new process, 100 objects, ms of CPU", "")
    report.add(*(f"- {name}: {seconds * 1e3:,.0f}" for name, seconds in cold.items()))
    report.add("", "## What is promised", "", "| | measured | promised | holds |", "|---|---:|---|---|")
    for n in SIZES:
        ratio = text[n]["ours"] / text[n]["floor: CSafeLoader + construct"]
        report.promise(f"ours / CSafeLoader + construct, {n:,} objects", ratio, 1.4)
    strangers_s = timeit.repeat(lambda: ConfigEnvironment(folder).load("child10.yaml"), number=1, repeat=rounds)
    report.promise("a load of a stranger's template, s", statistics.median(strangers_s), 0.15)
    report.promise("an object at 10,000 / at 1,000", text[10_000]["ours"] / 10 / text[1_000]["ours"], 1.1)
    report.promise(f"{LEVELS} shared levels, ms", levels["ours"] * 1e3, 2)
    for n in SIZES:
        report.promise(f"policy, % of a first load, {n:,} objects", share[n] * 100, 5)
    if peers.forgather:
        for n, least in ((100, 3), (1_000, 6)):
            ratio = first[n]["Forgather"] / first[n]["ours"]
            report.promise(f"first load: Forgather / ours, {n:,} objects", ratio, least, at_least=True)
        for costs, wanted in ((first, {100: 0.15, 1_000: 0.12}), (child, {100: 0.22, 1_000: 0.17})):
            for n, most in wanted.items():
                what = "first load" if costs is first else "extending"
                ratio = costs[n]["ours"] / costs[n]["Forgather"]
                floor = costs[n]["floor: CSafeLoader + construct"] / costs[n]["Forgather"]
                report.promise(f"{what}: ours / Forgather, {n:,} objects (floor {floor:.2f})", ratio, most)
        for n in (100, 1_000):
            ratio = again[n]["Forgather"] / again[n]["ours"]
            floor = again[n]["Forgather"] / text[n]["floor: CSafeLoader + construct"]
            report.promise(f"compiled: Forgather / ours, {n:,} objects (floor {floor:.1f})", ratio, 8, at_least=True)
        floor = cold["floor: yaml"] / cold["Forgather"]
        report.promise(f"a new process: ours / Forgather (floor {floor:.2f})", cold["ours"] / cold["Forgather"], 0.6)


def _shared_ours(policy: Policy) -> object:
    graph = parse(Rendered.as_is(shared(LEVELS)))
    return Construction(Resolver(graph, policy, {})).build([graph.target(f"l{LEVELS}")])


def versions(peers: Peers) -> str:
    names = ("PyYAML", "Jinja2", "hydra-core", "HyperPyYAML", "jsonargparse")
    found = []
    for name in names:
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    if peers.forgather:
        settings = tomllib.loads(Path(peers.checkout or "", "pyproject.toml").read_text())
        found.append(f"Forgather {settings['project']['version']}")
    return ", ".join([f"Python {platform.python_version()}", *found, f"{os.cpu_count()} CPUs"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forgather", default=os.environ.get("FORGATHER_CHECKOUT"))
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "parts.py").write_text(PARTS)
        sys.path.insert(0, folder)
        import parts  # noqa: F401  the variants find it in sys.modules

        for n in SIZES:
            Path(folder, f"t{n}.yaml").write_text(template(n))
            Path(folder, f"child{n}.yaml").write_text(f"-- extends 't{n}.yaml'\n")
        Path(folder, "shared.yaml").write_text(shared(LEVELS).replace(f"l{LEVELS}:", "parts:"))
        peers = Peers(args.forgather)
        report = Report()
        report.add(
            "# What loading a template costs",
            "",
            f"{date.today()}, {versions(peers)}. Made by `python benchmarks/templates.py --rounds {args.rounds}`.",
        )
        measure(report, folder, peers, args.rounds)
        if peers.missing:
            report.add("", *(f"Left out: {line}" for line in peers.missing))
    if args.markdown:
        args.markdown.write_text("\n".join(report.lines) + "\n")
    if args.check and report.broken:
        sys.exit("not as promised: " + "; ".join(report.broken))


if __name__ == "__main__":
    main()
