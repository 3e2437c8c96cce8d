"""Checks that every block a child template defines exists in a template that it extends.

Jinja silently drops a block that no parent has, so a misspelt name has no effect. A name close to one of the parents'
names is therefore an error; any other is only reported (templates in the wild have such leftovers).
"""

from __future__ import annotations

from forgather_mem.config.rendering.compiler import Compiler
from forgather_mem.config.source.loader import Source
from forgather_mem.errors import TemplateError, nearest

_MISSPELT = 0.8  # measured on Forgather's templates: leftovers are below 0.72, a changed or lost letter above 0.85


def unknown_blocks(compiler: Compiler) -> tuple[TemplateError, ...]:
    """The blocks of the render in progress that no parent has and that nothing prints with `self.name()`.

    Raises:
        TemplateError: for the first of them that looks misspelt.
    """
    job = compiler.job
    used = {name for load in job.loads for name in compiler.outline(load.source).used_blocks}
    unknown = []
    for key, parent in job.parents.items():
        child = job.first[key].source
        known: set[str] = set()
        at: Source | None = parent
        while at is not None:
            known.update(compiler.outline(at).blocks)
            at = job.parents.get(at.key)
        outline = compiler.outline(child)
        for name in outline.outer_blocks:
            if name in known or name in used:
                continue
            near = nearest(name, known, _MISSPELT)
            error = child.place(outline.blocks[name], chain=", ".join(job.chain(key)) or None).error(
                f"no template that {child.name} extends has a block {name!r}, so it is not rendered",
                hint=f"did you mean {near!r}?" if near else f"the blocks are: {', '.join(sorted(known)[:20])}",
            )
            if near:
                raise error
            unknown.append(error)
    return tuple(unknown)
