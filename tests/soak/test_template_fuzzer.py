"""Random templates, half of which load: each is answered or refused within a second of CPU and 200 MB.

The grammar writes what is read and built in the process that loads: tags, anchors, merges, statements that multiply
them. What an expression of Jinja takes is another process's affair. `FUZZ_SEED` and `FUZZ_CASES` choose another run; a
finding belongs into tests/config/bounds.yaml.
"""

import os
import random
import sys
from collections import Counter
from pathlib import Path

import pytest

from forgather_mem.config.source.syntax import FORMS, MAPPINGS

sys.path.insert(0, str(Path(__file__).parents[1] / "config"))
import bounds

pytestmark = pytest.mark.soak
SEED = int(os.environ.get("FUZZ_SEED", "20261122"))
NUM_CASES = int(os.environ.get("FUZZ_CASES", "10000"))

SIZES = [0, 1, 2, 7, 100, 9_999, 200_000, 1_000_000, 10**9]
WITHOUT_CALL = tuple(f"!{form}" for form in FORMS if form != "var")
TAGS = (
    *WITHOUT_CALL, "!call:list", "!call:sorted", "!call:set", "!call:dict", "!factory:list",
    "!factory:range", "!partial:dict", "!call:sum", "!call:zip", "!call:random:Random", "!var", "!call:str",
    "!call:pathlib:Path", "!call:frozenset", "!call:os:system", "!singleton:datetime:timedelta", "!meta:len",
)  # fmt: skip


class Grammar:
    """Writes one template after another."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.anchors: list[str] = []

    def template(self) -> str:
        self.anchors = []
        wild = self.random.random() < 0.4  # large operands: most of these are refused
        lines = []
        for number in range(self.random.randrange(1, 5)):
            line = f"k{number}: {self.node(4, wild)}"
            shape = self.random.randrange(10)
            if shape == 0 and "&" not in line:
                line = f"-- for i in range({self.size(wild)})\n{{{{ i }}}}{line}\n-- endfor"
            elif shape == 1:
                line = f"k{number}: {{{{ '{self.random.choice(['a', '[', '*a0 ', '- '])}' * {self.size(wild)} }}}}"
            lines.append(line)
        text = "\n".join(lines) + "\n"
        return text if len(text) < 2**20 else text[: 2**20]

    def size(self, wild: bool) -> int:
        return self.random.choice(SIZES if wild else SIZES[:5])

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
        tag = self.random.choice(TAGS if wild else WITHOUT_CALL) + " " if self.random.random() < 0.4 else ""
        parts = [self.node(depth - 1, wild) for _ in range(self.random.randrange(4))]
        if tag[1:-1] in MAPPINGS.keys() - {"var"} or (not tag and shape < 7):
            body = "{" + ", ".join(f"k{i}: {part}" for i, part in enumerate(parts)) + "}"
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
