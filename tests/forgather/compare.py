"""Do templates written for Forgather give the same text and the same graph here?

    python tests/forgather/compare.py PATH_TO_A_FORGATHER_CHECKOUT [--build]

Every example configuration, every project file (meta.yaml) and every template of the template library that
Forgather itself loads is loaded by both, each in its own project's search path. Printed are counts and every
difference. Nothing of Forgather is kept here. Times are compared by their shape.
"""

import argparse
import contextlib
import difflib
import os
import re
import sys
import tempfile
import typing
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.graph.nodes import NO_DEFAULT, CallNode, DictNode, Graph, ListNode, VarNode
from forgather_mem.errors import TemplateError

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d[:-]\d\d[:-]\d\d")
KINDS = {"SingletonNode": "singleton", "FactoryNode": "factory", "LambdaNode": "partial", "MetaNode": "meta"}


@dataclass(frozen=True)
class Case:
    """One template in the search path of its project."""

    name: str
    searchpath: list[str]
    variables: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.searchpath[0]}: {self.name}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--build", action="store_true", help="build each target trainer_callbacks, default policy")
    options = parser.parse_args()
    checkout = options.checkout.resolve()
    if not hasattr(typing, "override"):  # Python 3.11
        typing.override = lambda function: function  # type: ignore[attr-defined]
    sys.path.insert(0, str(checkout / "src"))
    os.chdir(checkout)
    counts: Counter[str] = Counter()
    for case in cases(checkout):
        outcomes = compare(case)
        for outcome, detail in chain(outcomes, build(case) if options.build else ()):
            counts[outcome] += 1
            if detail:
                print(f"{outcome}: {case}\n    " + detail.replace("\n", "\n    "))
    for outcome, count in sorted(counts.items()):
        print(f"{count:6} {outcome}")
    return 1 if any(outcome.startswith("DIFFERENT") for outcome in counts) else 0


def cases(checkout: Path) -> Iterator[Case]:
    """All templates that belong to a project, then those of the library on their own."""
    from forgather.meta_config import MetaConfig, preprocessor_globals

    for meta in sorted(checkout.rglob("meta.yaml")):
        folder = str(meta.parent)
        workspace = MetaConfig.find_workspace_dir(folder)
        variables = preprocessor_globals(folder, workspace)
        own = [folder, os.path.join(workspace, "forgather_workspace")]
        yield Case("meta.yaml", own, {**variables, "project_dir": folder, "workspace_root": workspace})
        project = MetaConfig(folder)
        for name, _ in project.find_templates(project.config_prefix):
            yield Case(os.path.join(project.config_prefix, name), project.searchpath, variables)
    library = sorted(path for path in (checkout / "templatelib").iterdir() if path.is_dir())
    searchpath = [str(path) for path in library]
    for folder_path in library:
        for file in sorted(folder_path.rglob("*.*")):
            if file.suffix in (".yaml", ".jinja"):
                yield Case(str(file.relative_to(folder_path)), searchpath, preprocessor_globals(".", str(checkout)))


def compare(case: Case) -> Iterator[tuple[str, str]]:
    """Outcomes of one case, each with what there is to tell about it."""
    from forgather.config import ConfigEnvironment as Theirs

    theirs = Theirs(searchpath=case.searchpath, global_vars=dict(case.variables))
    ours = ConfigEnvironment(case.searchpath, global_vars=case.variables)
    try:
        text = str(theirs.preprocess(case.name))
    except Exception as error:
        yield from not_theirs(ours, case, error)
        return
    try:
        rendered = ours.render(case.name)
    except TemplateError as error:
        yield "DIFFERENT text: refused here", str(error)
        return
    left, right = TIME.sub("TIME", text), TIME.sub("TIME", rendered.shown)
    if left == right:
        yield "same text", ""
    else:
        lines = difflib.unified_diff(left.split("\n"), right.split("\n"), "Forgather", "here", lineterm="", n=1)
        yield "DIFFERENT text", "\n".join(lines)
    try:
        graph = theirs.load_from_ppstring(text).config
    except Exception as error:
        yield "text that Forgather does not parse", f"{type(error).__name__}: {str(error)[:200]}"
        return
    try:
        yield from compare_graphs(graph, ours.load(case.name).graph)
    except TemplateError as error:
        yield "DIFFERENT graph: refused here", str(error)


def not_theirs(ours: ConfigEnvironment, case: Case, error: Exception) -> Iterator[tuple[str, str]]:
    try:
        ours.render(case.name)
    except TemplateError:
        yield "neither renders it", ""
    else:
        yield "rendered here only", f"Forgather: {type(error).__name__}: {str(error)[:200]}"


def build(case: Case) -> Iterator[tuple[str, str]]:
    """Build the callbacks of a configuration that has some, under the default policy, in a folder of its own."""
    try:
        config = ConfigEnvironment(case.searchpath, global_vars=case.variables).load(case.name)
    except TemplateError:
        return  # told above
    if "trainer_callbacks" not in config.targets:
        return
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        try:
            config.construct("trainer_callbacks")
        except TemplateError as error:
            yield "DIFFERENT: trainer_callbacks can't be built here", str(error)
        else:
            yield "trainer_callbacks built", ""


def compare_graphs(theirs: Any, ours: Graph) -> Iterator[tuple[str, str]]:
    left, right = their_shape(theirs, {}), our_shape(ours.root, {})
    differences: dict[str, list[str]] = {}
    for outcome, text in differ(left, right, "$"):
        differences.setdefault(outcome, []).append(text)
    for outcome, texts in differences.items():
        yield outcome, "\n".join(texts[:20])
    if "DIFFERENT graph" not in differences:
        yield "same graph", ""


# A shape: ("list" | "tuple" | "dict" | "call" | "var" | "seen", ...) or a scalar. Sharing is part of it: a node that
# came before is ("seen", its number).


def their_shape(value: Any, seen: dict[int, int]) -> Any:
    from forgather.latent import CallableNode, Undefined, VarNode

    if not isinstance(value, CallableNode | VarNode | dict | list | tuple):
        return value
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, dict):
        return "dict", None, [(key, their_shape(item, seen)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return "list", None, [their_shape(item, seen) for item in value]
    name = getattr(value, "_identity", None)
    if isinstance(value, VarNode):
        default = "no default" if value.value is Undefined else their_shape(value.value, seen)
        return "var", value.constructor, default
    if value.constructor in ("named_list", "named_tuple") and type(value).__name__ == "SingletonNode":
        items = value.args[0] if value.args else []
        return value.constructor[6:], name, [their_shape(item, seen) for item in items]
    if value.constructor == "named_dict":
        return "dict", name, [(key, their_shape(item, seen)) for key, item in value.kwargs.items()]
    return (
        "call", KINDS[type(value).__name__], value.constructor, name,
        [their_shape(item, seen) for item in value.args],
        [(key, their_shape(item, seen)) for key, item in value.kwargs.items()],
        tuple(value.submodule_searchpath), their_shape(value.latent_args, seen),
    )  # fmt: skip


def our_shape(value: Any, seen: dict[int, int]) -> Any:
    if not isinstance(value, CallNode | DictNode | ListNode | VarNode):
        return value
    if id(value) in seen:
        return "seen", seen[id(value)]
    seen[id(value)] = len(seen)
    if isinstance(value, ListNode):
        return value.form or "list", value.name, [our_shape(item, seen) for item in value.items]
    if isinstance(value, DictNode) and value.form == "dlist":
        return "list", value.name, [our_shape(item, seen) for item in value.entries.values() if item is not None]
    if isinstance(value, DictNode):
        return "dict", value.name, [(key, our_shape(item, seen)) for key, item in value.entries.items()]
    if isinstance(value, VarNode):
        default = "no default" if value.default is NO_DEFAULT else our_shape(value.default, seen)
        return "var", value.variable, default
    return (
        "call", value.kind, value.constructor, value.name,
        [our_shape(item, seen) for item in value.args],
        [(key, our_shape(item, seen)) for key, item in value.kwargs.items()],
        tuple(value.searchpath), our_shape(value.latent, seen),
    )  # fmt: skip


def differ(left: Any, right: Any, path: str) -> Iterator[tuple[str, str]]:
    """What differs, each with the kind of difference."""
    if isinstance(left, list | tuple) and type(left) is type(right) and len(left) == len(right):
        for number, (a, b) in enumerate(zip(left, right, strict=True)):
            is_entry = isinstance(a, tuple) and len(a) == 2 and isinstance(a[0], str) and a[0] != "seen"
            yield from differ(a, b, f"{path}.{a[0]}" if is_entry else f"{path}[{number}]")
    elif isinstance(left, str) and isinstance(right, str):
        if TIME.sub("TIME", left) != TIME.sub("TIME", right):
            yield "DIFFERENT graph", f"{path}: {short(left)} is here {short(right)}"
    elif type(left) is not type(right) or left != right:
        outcome = "DIFFERENT graph"
        if isinstance(left, str) and isinstance(right, float) and is_float(left, right):
            outcome = "same graph but for numbers like 1e-4, a string in YAML 1.1"
        elif left is None and isinstance(right, str) and path.endswith("[1]"):
            outcome = "same graph, but a name without a colon before its @ is one here"
        yield outcome, f"{path}: {short(left)} is here {short(right)}"


def is_float(text: str, number: float) -> bool:
    try:
        return float(TIME.sub("", text)) == number
    except ValueError:
        return False


def short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]}..."


if __name__ == "__main__":
    sys.exit(main())
