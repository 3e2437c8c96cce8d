"""Do templates mean the same here and in Forgather? Both run on Forgather's own example configurations.

    python benchmarks/forgather_parity.py --forgather CHECKOUT [--all]

For every configuration of every project in the checkout that Forgather itself can load: is the rendered
text the same, and does that text give the same graph, aliases included? Differences are listed (the first
few, or `--all`); the script ends with 1 when there is one. Known and wanted differences are taken out first:
`1e-4` is a number here, a `!dlist` or an empty `!tuple` keeps its kind, and `!dict@name` its name. Times of day
are masked. Nothing of Forgather is copied; it is imported from the checkout, and needs platformdirs beside our
own dependencies.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.graph.nodes import CallNode, DictNode, ListNode, Node, Value, VarNode, same
from forgather_mem.config.graph.parse import parse
from forgather_mem.config.graph.scalars import resolve
from forgather_mem.config.graph.tags import Tag, mapping_node, sequence_node
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.config.source.rendered import Rendered
from forgather_mem.errors import TemplateError

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d[-:]\d\d[-:]\d\d")
NUMBER = re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+")
WORDS = {"SingletonNode": "singleton", "FactoryNode": "factory", "LambdaNode": "partial", "MetaNode": "meta"}
NAMED = {"named_list": "list", "named_tuple": "tuple", "named_dict": "dict"}


def configurations(checkout: Path) -> Iterator[tuple[Any, str]]:
    """Every project's settings with each of its configurations that Forgather can load."""
    from forgather.meta_config import MetaConfig

    for meta_file in sorted(checkout.rglob("meta.yaml")):
        os.chdir(meta_file.parent)
        meta = MetaConfig(str(meta_file.parent))
        for name, _ in meta.find_templates(meta.config_prefix):
            yield meta, meta.config_path(name)


class Theirs:
    """Forgather's graph as nodes of ours."""

    def __init__(self) -> None:
        self._made: dict[int, Node] = {}
        self._kept: list[object] = []

    def node(self, found: Any) -> Value:
        if found is None or isinstance(found, bool | int | float):
            return found
        if isinstance(found, str):
            return resolve(found) if NUMBER.fullmatch(found) else found
        if type(found).__module__ == "datetime":
            return found
        if id(found) not in self._made:
            self._made[id(found)] = self._new(found)
            self._kept.append(found)
        return self._made[id(found)]

    def _new(self, found: Any) -> Node:
        if isinstance(found, list | tuple):
            return sequence_node(None, 0, [self.node(item) for item in found])
        if isinstance(found, dict):
            return mapping_node(None, 0, {key: self.node(value) for key, value in found.items()}, {})
        kind = type(found).__name__
        name = getattr(found, "_identity", None)
        if kind == "VarNode":
            entries = {"name": found.constructor}
            if type(found.value).__name__ != "UndefinedType":
                entries["default"] = self.node(found.value)
            return mapping_node(Tag("var"), 0, entries, {})
        if found.constructor in NAMED:
            return self._named(found, Tag(NAMED[found.constructor]))
        args = sequence_node(None, 0, [self.node(value) for value in found.args])
        kwargs = {key: self.node(value) for key, value in found.kwargs.items()}
        if found.latent_args is not None:
            kwargs["latent_args"] = self.node(found.latent_args)
        if found.submodule_searchpath:
            kwargs["submodule_searchpath"] = sequence_node(None, 0, found.submodule_searchpath)
        tag = Tag(WORDS[kind], found.constructor, name)
        return mapping_node(tag, 0, {"args": args, "kwargs": mapping_node(None, 0, kwargs, {})}, {})

    def _named(self, found: Any, tag: Tag) -> Node:
        if tag.word == "dict":
            return mapping_node(tag, 0, {key: self.node(value) for key, value in found.kwargs.items()}, {})
        return sequence_node(tag, 0, [self.node(value) for value in (found.args[0] if found.args else ())])


class Ours:
    """Our graph with the wanted differences taken out: a `!dlist` is the list that it becomes."""

    def __init__(self) -> None:
        self._made: dict[int, Node] = {}

    def node(self, found: Value) -> Value:
        if not isinstance(found, Node):
            return resolve(found) if isinstance(found, str) and NUMBER.fullmatch(found) else found
        if id(found) not in self._made:
            self._made[id(found)] = self._new(found)
        return self._made[id(found)]

    def _new(self, found: Node) -> Node:
        if isinstance(found, ListNode):
            form = "list" if found.form == "tuple" and not found.items else found.form
            return sequence_node(Tag(form) if form else None, 0, [self.node(item) for item in found.items])
        if isinstance(found, DictNode) and found.form == "dlist":
            items = [self.node(value) for value in found.entries.values() if value is not None]
            return sequence_node(Tag("list"), 0, items)
        if isinstance(found, DictNode):
            entries = {key: self.node(value) for key, value in found.entries.items()}
            return mapping_node(Tag("dict") if found.form else None, 0, entries, {})
        if isinstance(found, VarNode):
            written = found.written or {"name": found.variable}
            return mapping_node(Tag("var"), 0, {key: self.node(value) for key, value in written.items()}, {})
        assert isinstance(found, CallNode)
        kwargs: dict[object, Value] = {key: self.node(value) for key, value in found.kwargs.items()}
        if found.latent is not None:
            kwargs["latent_args"] = self.node(found.latent)
        if found.searchpath:
            kwargs["submodule_searchpath"] = sequence_node(None, 0, found.searchpath)
        args = sequence_node(None, 0, [self.node(value) for value in found.args])
        tag = Tag(found.kind, found.constructor, found.name)
        return mapping_node(tag, 0, {"args": args, "kwargs": mapping_node(None, 0, kwargs, {})}, {})


def difference(meta: Any, config: str) -> str | None:
    """What differs, None when nothing does; "theirs fails" when there is nothing to compare with."""
    from forgather.config import ConfigEnvironment as TheirEnvironment
    from forgather.meta_config import preprocessor_globals

    global_vars = preprocessor_globals(meta.project_dir, meta.workspace_root)
    try:
        graph, text = TheirEnvironment(searchpath=meta.searchpath, global_vars=global_vars).load(config).get()
    except Exception as error:  # noqa: BLE001  whatever it is, there is nothing to compare with
        return f"theirs fails: {type(error).__name__}"
    env = ConfigEnvironment(meta.searchpath, global_vars=global_vars, policy=Policy.UNSAFE_ANY)
    try:
        ours = env.render(config).text
        parsed = parse(Rendered.as_is(str(text)), Limits())
    except TemplateError as error:
        return f"ours refuses: {error}"
    if TIME.sub("TIME", ours) != TIME.sub("TIME", str(text)):
        line = next(
            (
                i
                for i, (a, b) in enumerate(zip(ours.split("\n"), str(text).split("\n"), strict=False), 1)
                if TIME.sub("", a) != TIME.sub("", b)
            ),
            0,
        )
        return f"text differs, first in line {line} of {text.count(chr(10))}"
    if not same(Ours().node(parsed.root), Theirs().node(graph)):
        return "graph differs"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--forgather", default=os.environ.get("FORGATHER_CHECKOUT"))
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    if not args.forgather:
        print("left out: give --forgather CHECKOUT or FORGATHER_CHECKOUT")
        return
    checkout = Path(args.forgather).resolve()
    sys.path.insert(0, str(checkout / "src"))
    results = [(f"{meta.project_dir}: {config}", difference(meta, config)) for meta, config in configurations(checkout)]
    loaded = [(name, found) for name, found in results if not (found or "").startswith("theirs fails")]
    wrong = [(name, found) for name, found in loaded if found]
    for name, found in wrong if args.all else wrong[:10]:
        print(f"{name}\n    {found}")
    print(
        f"{len(results)} configurations, {len(loaded)} load in Forgather, {len(loaded) - len(wrong)} are the same here"
    )
    if wrong:
        sys.exit(1)


if __name__ == "__main__":
    main()
