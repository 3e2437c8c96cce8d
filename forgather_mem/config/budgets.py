"""How much may one load read, compute and build?

The limits stop a hostile or broken template before it hurts; no template that people write comes near.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The limits of one load. Code may raise them (`Budgets(depth=500)`), a template never.

    Attributes:
        source_bytes: Text of all template files that one load reads.
        rendered_bytes: Text that one template renders to, in characters.
        nodes: Nodes of the graph as written.
        expanded_nodes: Nodes when every alias counts as a copy.
        depth: Levels of nesting in YAML, in the graph and in values from outside.
        loop_items: Items that all Jinja loops of one render go through, and the longest list.
        calls: Calls of macros, functions, methods and filters in one render.
        string_bytes: Characters of one string that an expression makes, and of one scalar.
        includes: Templates that one render loads, each time counted.
        tokens: Pieces of Jinja syntax in all templates of one load.
        work: Jinja nodes that one render evaluates, each time counted.
        made_bytes: Memory of all strings and lists that expressions make, kept or not.
        integer_bits: Size of an integer that an expression makes.
        render_cpu_s: CPU time of rendering.
    """

    source_bytes: int = 4 * MIB
    rendered_bytes: int = 4 * MIB
    nodes: int = 200_000
    expanded_nodes: int = 1_000_000
    depth: int = 100
    loop_items: int = 200_000
    calls: int = 200_000
    string_bytes: int = MIB
    includes: int = 300
    tokens: int = 30_000
    work: int = 1_000_000
    made_bytes: int = 64 * MIB
    integer_bits: int = 4_096
    render_cpu_s: float = 5.0
