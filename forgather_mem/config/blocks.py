"""Does every block that a child template defines exist in what it extends?

Jinja drops a block that no parent has: a misspelt name changes nothing and says nothing. So a name that is
close to one of the parents' is an error. Any other is only told (templates in the wild have such leftovers).
"""

from __future__ import annotations

import difflib

from forgather_mem.config.compiler import Compiler
from forgather_mem.config.sources import Source
from forgather_mem.errors import TemplateError

_MISSPELT = 0.8  # measured on Forgather's templates: leftovers are below 0.72, a changed or lost letter above 0.85


def unknown_blocks(compiler: Compiler) -> tuple[TemplateError, ...]:
    """The blocks of the render in progress that no parent has and nobody prints by `self.name()`.

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
            near = difflib.get_close_matches(name, known, n=1, cutoff=_MISSPELT)
            error = child.place(outline.blocks[name], chain=", ".join(job.chain(key)) or None).error(
                f"no template that {child.name} extends has a block {name!r}: it is printed nowhere",
                hint=f"did you mean {near[0]!r}?" if near else f"the blocks are: {', '.join(sorted(known)[:20])}",
            )
            if near:
                raise error
            unknown.append(error)
    return tuple(unknown)
