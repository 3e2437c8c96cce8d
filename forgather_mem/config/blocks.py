"""Does every block that a child template defines exist in what it extends?

Jinja drops a block that no parent has, so a misspelt name changes nothing and says nothing.
"""

from __future__ import annotations

from forgather_mem.config.compiler import Compiler
from forgather_mem.config.sources import Source
from forgather_mem.errors import did_you_mean


def check_blocks(compiler: Compiler) -> None:
    """Check all inheritance of the render in progress.

    Raises:
        TemplateError: for a block that no parent has and that nobody prints by `self.name()`.
    """
    job = compiler.job
    used = {name for load in job.loads for name in compiler.outline(load.source).used_blocks}
    for key, parent in job.parents.items():
        child = job.first[key].source
        known: set[str] = set()
        at: Source | None = parent
        while at is not None:
            known.update(compiler.outline(at).blocks)
            at = job.parents.get(at.key)
        outline = compiler.outline(child)
        for name in outline.outer_blocks:
            if name not in known and name not in used:
                raise child.place(outline.blocks[name], chain=", ".join(job.chain(key)) or None).error(
                    f"no template that {child.name} extends has a block {name!r}, so this one would never be printed",
                    hint=did_you_mean(name, known) or f"the blocks are: {', '.join(sorted(known)[:20]) or 'none'}",
                )
