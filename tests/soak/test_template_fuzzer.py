"""Random templates, half of which load: each is answered or refused within a second of CPU and 200 MB.

The grammar writes what the language has (tags, anchors, merges, statements, macros, filters, methods, operators) with
operands that multiply. `FUZZ_SEED` and `FUZZ_CASES` choose another run; a finding belongs into
tests/config/bounds.yaml.
"""

from __future__ import annotations

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "config"))
import bounds

from forgather_mem.config.rendering import costs

pytestmark = pytest.mark.soak
SEED = int(os.environ.get("FUZZ_SEED", "20261122"))
NUM_CASES = int(os.environ.get("FUZZ_CASES", "10000"))

FILTERS = sorted(name for name in costs.FILTERS if name not in ("attr", "map", "select", "reject"))
TESTS = sorted(name for name in costs.TESTS if name.isidentifier())
METHODS = {
    kind: sorted(costs.METHODS[cls]) for kind, cls in (("text", str), ("list", list), ("dict", dict), ("number", int))
}
TEXTS = [
    "'a'",
    "'ab '",
    "'\\0'",
    "'\U0001f600'",
    "'\\t'",
    "'%s'",
    "'{0}'",
    "'%9999d'",
    "'{0:>9999}'",
    "'\u00df'",
    "'\\n'",
]
SIZES = [0, 1, 2, 7, 100, 9_999, 200_000, 1_000_000, 10**9]
TAGS = (
    "!list", "!tuple", "!dlist", "!dict", "!call:list", "!call:sorted", "!call:set", "!call:dict", "!factory:list",
    "!factory:range", "!partial:dict", "!call:sum", "!call:zip", "!call:random:Random", "!var", "!call:str",
    "!call:pathlib:Path", "!call:frozenset", "!call:os:system", "!singleton:datetime:timedelta", "!meta:len",
)  # fmt: skip
CALM = {
    "text": [
        "<text> ~ <number>", "<text>.upper()", "<text>|title", "<text>[:500] * 20", "<list>|join(',')|truncate(99)",
        "<text>.replace('a', 'bb')", "<list>|string|truncate(90)", "<dict>|tojson", "<text>|e", "'%s' % <number>",
        "'{0}'.format(<number>)", "<text>|center(999)", "<text>|urlencode|truncate", "<text>|toyaml", "<dict>|pprint",
        "<text>.strip('a').split('b')[0]", "<text>.expandtabs(tabsize=9)", "<text>|indent(3)", "repr(<number>)",
    ],
    "list": [
        "<list>|sort", "<list>|unique|list", "<list>|reverse|list", "(<list> + <list>)[:9000]", "<list>[1:]",
        "<list>|select('odd')|list", "<list>|map('abs')|list", "(<list>[:9] * 99)|sort(reverse=true)",
        "<list>|batch(3)|map('first')|list", "range(<list>|length)|list", "<list>|groupby(0)|list if false else [1, 2]",
    ],
    "number": [
        "<text>|length", "<list>|length", "<list>|sum", "<number> + 1", "<list>|max if false else 3",
        "<text>.count('a')",
        "<list>.count(3)", "1 if <text> == <text> else 2", "1 if <list> == <list> else 2", "1 if 7 in <list> else 0",
        "<number>|round(2)", "<text>|wordcount", "<dict>|length", "<number>|int % 7", "<number>|abs",
    ],
    "dict": ["dict(<dict>, c=<number>)", "dict(<dict>|items)", "{'k': <list>|first|default(1), 'l': <text>[:9]}"],
}  # fmt: skip


class Grammar:
    """Writes one template after another."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.names: dict[str, list[str]] = {}
        self.anchors: list[str] = []

    def template(self) -> str:
        self.names = {"text": [], "list": [], "number": [], "dict": []}
        self.anchors = []
        pick = self.random.random()
        lines = []
        wild = self.random.random() < 0.4  # large operands: most of these are refused
        if pick < 0.85:
            for _ in range(self.random.randrange(5)):
                lines += self.statement(wild)
        for number in range(self.random.randrange(1, 5)):
            if self.random.random() < 0.5:
                kind = self.random.choice(list(self.names))
                lines.append(f"k{number}: {{{{ {self.expression(kind, 2, wild)}{self.small(wild)} }}}}")
            else:
                lines.append(f"k{number}: {self.node(4, wild)}")
        if self.random.random() < 0.1:
            lines.insert(
                0, self.random.choice(["%TAG !a! tag:x", "# comment", "## more"] if wild else ["# comment", "## more"])
            )
        text = "\n".join(lines) + "\n"
        return text if len(text) < 2**20 else text[: 2**20]

    def small(self, wild: bool) -> str:
        """Most printed values are made small, so that YAML can read them."""
        return "" if wild and self.random.random() < 0.4 else "|string|length"

    def size(self, wild: bool) -> int:
        return self.random.choice(SIZES if wild else SIZES[:5])

    def statement(self, wild: bool) -> list[str]:
        kind = self.random.choice(list(self.names))
        name = f"{kind[0]}{len(self.names[kind])}"
        shape = self.random.randrange(8)
        value = self.expression(kind, 2, wild)
        if shape < 4:
            self.names[kind].append(name)
            return [f"-- set {name} = {value}"]
        inner = f"-- set x = {self.expression(self.random.choice(list(self.names)), 1, wild)}"
        if shape == 4:
            return [f"-- for i in range({self.size(wild) if wild else 50})", inner, "-- endfor"]
        if shape == 5:
            test = self.random.choice(TESTS if wild else ["defined", "string", "mapping"])
            wants = test in ("divisibleby", "sameas", "filter", "test") or costs.TESTS[test] is costs.deep
            return [
                f"-- if {value} is {test}{f'({self.expression(kind, 1, wild)})' if wants else ''}",
                inner,
                "-- endif",
            ]
        if shape == 6:
            steps = ["-- set n = namespace(l=[])", f"-- for i in range({self.size(wild) if wild else 50})"]
            return [*steps, f"-- set n.l = n.l + [{value}]", "-- endfor"]
        return [f"-- macro m{name}(a)", f"{{{{ {value} ~ a }}}}" if wild else "x", "-- endmacro"]

    def calm(self, kind: str, depth: int) -> str:
        """An expression that is right: operands of the kinds that go together."""
        known = self.names[kind]
        if depth == 0 or self.random.random() < 0.2:
            atoms = {
                "text": ["'a b'", "'\\0'", "'😀'", "'x' * 9999"], "list": ["range(9000)|list", "[3, 1]"],
                "number": ["7", "0.5", "range(9)|sum"], "dict": ["{'a': 1}", "dict(b=2, a=[1])"],
            }[kind]  # fmt: skip
            return f"({self.random.choice([*atoms, *known])})"
        pattern = self.random.choice(CALM[kind])
        for other in METHODS:
            while f"<{other}>" in pattern:
                pattern = pattern.replace(f"<{other}>", self.calm(other, depth - 1), 1)
        return f"({pattern})"

    def expression(self, kind: str, depth: int, wild: bool) -> str:
        if not wild:
            return self.calm(kind, depth)
        known = self.names[kind]
        if depth == 0 or self.random.random() < 0.25:
            return self.random.choice(known) if known and self.random.random() < 0.7 else self.atom(kind, wild)
        inner = self.expression(kind, depth - 1, wild)
        shape = self.random.randrange(7)
        if shape == 0 and kind in ("text", "list"):
            return f"({inner} * {self.size(wild)})"
        if shape == 1:
            return f"({inner} {'~' if kind == 'text' else '+'} {self.expression(kind, depth - 1, wild)})"
        if shape == 2 and kind == "list":
            return f"[{', '.join(self.expression(self.other(), depth - 1, wild) for _ in range(3))}]"
        if shape in (3, 4):
            return f"({inner}|{self.filter(depth, wild)})"
        if shape == 5 and kind in METHODS:
            return f"({inner}.{self.random.choice(METHODS[kind])}({self.arguments(depth, wild)}))"
        operator = self.random.choice(["==", "<", "in", "and", "or", "%", "//", "**", "-", "!="])
        return f"({inner} {operator} {self.expression(self.other() if wild else kind, depth - 1, wild)})"

    def filter(self, depth: int, wild: bool) -> str:
        name = self.random.choice(FILTERS)
        if self.random.random() < 0.2:
            return f"map('{name}')|list"
        return name if self.random.random() < 0.6 else f"{name}({self.arguments(depth, wild)})"

    def arguments(self, depth: int, wild: bool) -> str:
        given = [self.expression(self.other(), depth - 1, wild) for _ in range(self.random.randrange(3))]
        if wild and self.random.random() < 0.2:
            key = self.random.choice(["tabsize", "maxsplit", "width", "indent", "attribute", "sep", "d", "length"])
            given.append(f"{key}={self.size(wild)}")
        return ", ".join(given)

    def other(self) -> str:
        return self.random.choice(list(self.names))

    def atom(self, kind: str, wild: bool) -> str:
        size = self.size(wild)
        return {
            "text": lambda: f"{self.random.choice(TEXTS)} * {size}" if wild else self.random.choice(TEXTS[:3]),
            "list": lambda: self.random.choice([f"(range({size})|list)", "[1]", "['a', 'b']", "[[1], [2]]", "[]"]),
            "number": lambda: str(self.random.choice([size, -1, 2**61 - 1, 0.5])),
            "dict": lambda: self.random.choice(
                ["{'a': 1}", "{}", "dict(a=[1], b='c')", "{2305843009213693951: 1, 0: 2}"]
            ),
        }[kind]()

    def node(self, depth: int, wild: bool) -> str:
        shape = self.random.randrange(10)
        if self.anchors and shape == 0:
            return "*" + self.random.choice(self.anchors)
        if depth == 0 or shape < 3:
            return self.random.choice(
                ["1", "x", "'y z'", "2024-01-01", "null", "1e-4", "!!str 1", "[]", "{}", "-1", "0x1f"]
            )
        if shape == 3:
            unit = self.node(1, wild)
            return f"[{', '.join([unit] * min(self.size(wild), 30_000 if wild else 100, 400_000 // len(unit)))}]"
        anchor = ""
        if self.random.random() < 0.3:
            anchor = f"&a{len(self.anchors)} "
        tag = self.random.choice(TAGS if wild else TAGS[:4]) + " " if self.random.random() < 0.4 else ""
        parts = [self.node(depth - 1, wild) for _ in range(self.random.randrange(4))]
        if tag.startswith(("!dict", "!dlist")) or (not tag and shape < 7):
            merge = ""
            body = "{" + merge + ", ".join(f"k{i}: {part}" for i, part in enumerate(parts)) + "}"
        elif tag.startswith("!var"):
            return "!var { name: v, default: 1 }"
        else:
            body = "[" + ", ".join([f"[{', '.join(parts)}]"] if "call:" in tag or "factory:" in tag else parts) + "]"
        if anchor:  # known only behind its end
            self.anchors.append(anchor[1:-1])
        return f"{anchor}{tag}{body}"


def test_ten_thousand_random_templates_are_answered_within_the_bounds(capsys: pytest.CaptureFixture[str]) -> None:
    bounds.warm_up()
    grammar = Grammar(SEED)
    ends: Counter[str] = Counter()
    found = []
    slowest = largest = (0.0, 0)
    for number in range(NUM_CASES):
        text = grammar.template()
        # Every command for each tenth: they read the same template.
        answer = bounds.answer(text, commands=bounds.EVERY if number % 10 == 0 else ["construct"])
        ends[answer["commands"].get("construct", {}).get("end", "killed")] += 1
        slowest = max([slowest, *((command["cpu_s"], number) for command in answer["commands"].values())])
        largest = max(largest, (answer["grown_mib"], number))
        if faults := bounds.faults(answer):
            found.append((number, text[:500], faults))
    with capsys.disabled():
        print(f"\nseed {SEED}: {dict(ends)}; the slowest {slowest[0]:.2f} s of CPU (case {slowest[1]})", end="")
        print(f", the largest {largest[0]:.0f} MiB (case {largest[1]})")
        for number, text, faults in found:
            print(f"{number}: {faults}\n{text}\n")
    assert not found
    assert ends["ok"] >= NUM_CASES / 2


def test_every_command_answers_to_the_corpus_within_the_bounds() -> None:
    bounds.warm_up()
    for case in bounds.corpus():
        assert not bounds.faults(bounds.answer(bounds.written_out(case), case.get("variables"))), case["name"]
