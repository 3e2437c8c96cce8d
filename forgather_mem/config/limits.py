"""Limits on how much one load may read, compute and build.

The limits stop a hostile or broken template before it hurts; no real template comes near them. Counts stop what a
template does before it is done; reading its YAML, which libyaml does, has a clock. A stranger's template is rendered in
a process with a clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from forgather_mem.units import MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one load. Code may raise them (`Limits(depth=500)`); a template can't.

    Attributes:
        source_bytes: Text of all template files that one load reads.
        rendered_bytes: Length of one template's rendered text, in characters.
        nodes: Nodes of the graph as written; a list or mapping counts as three, a call as four. Also lines of text, and
            entries that merge keys copy.
        expanded_nodes: Number of nodes, with every alias counted as a copy.
        objects: Objects that calls of one construction build, each copy of a `!factory` counted; values such as lists,
            numbers and ranges are not.
        depth: Levels of nesting in YAML, in the graph and in values from outside.
        string_bytes: Characters in one scalar, and in one string from outside.
        includes: Templates loaded by one render, counted each time.
        render_bytes: Memory that the process of its own may take in which a stranger's template is rendered, its start
            not counted.
        render_cpu_s: CPU time of reading the YAML that a render gives, and again of a construction's own work, imports
            and constructors not counted; for each MiB of template text three times as much again. A stranger's render
            may take the same, and half as much again for each MiB.
    """

    source_bytes: int = 4 * MIB
    rendered_bytes: int = 4 * MIB
    nodes: int = 200_000
    expanded_nodes: int = 1_000_000
    objects: int = 10_000
    depth: int = 100
    string_bytes: int = MIB
    includes: int = 1_000
    render_bytes: int = 128 * MIB
    render_cpu_s: float = 0.5

    def cpu_s(self, num_chars: int) -> float:
        """The CPU time for a text: one of 10 000 callbacks has 1.1 MiB and takes 0.5 s, a sixth of its limit."""
        return self.render_cpu_s * (1 + 3.0 * num_chars / MIB)


DEFAULT_LIMITS: Final = Limits()
"""The limits where code gives none."""
