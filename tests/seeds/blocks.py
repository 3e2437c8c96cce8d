"""The code blocks of the documents that this project comes from, read where those documents lie.

They are no part of the project: the folder is `../shared/seeds` beside the checkout, or what the environment
variable FORGATHER_MEM_SEEDS names. A block is called by its document, its language and its number there, as in
"003 yaml 4".
"""

import ast
import os
import re
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(os.environ.get("FORGATHER_MEM_SEEDS") or ROOT.parent / "shared" / "seeds")
WHY_NOT = "" if FOLDER.is_dir() else f"the documents are not here: no folder {FOLDER.name}; see tests/seeds/blocks.py"
_FENCED = re.compile(r"^```(?P<kind>python|yaml)\n(?P<body>.*?)^```$", re.M | re.S)
# A session in a docstring: lines with prompts, and nothing else in between.
_SESSION = re.compile(r"(?:^ +(?:>>>|\.\.\.)(?: .*)?\n)+", re.M)


def all_blocks() -> dict[str, str]:
    """Every YAML and every Python block by its name."""
    found: dict[str, str] = {}
    for file in sorted(FOLDER.glob("*.txt")):
        text, document = file.read_text(encoding="utf-8"), file.name[:3]
        counts = {"python": 0, "yaml": 0}
        for match in _FENCED.finditer(text):
            counts[match["kind"]] += 1
            found[f"{document} {match['kind']} {counts[match['kind']]}"] = match["body"]
        for number, match in enumerate(_SESSION.finditer(text), counts["python"] + 1):
            found[f"{document} python {number}"] = "\n".join(line.lstrip()[4:] for line in match[0].splitlines())
    return found


def with_our_imports(body: str, instead: Mapping[str, str]) -> str:
    """A Python block with its import lines replaced, and nothing else.

    Args:
        body: The block.
        instead: Modules, as the block names them, to what is imported from instead, either a module or
            "module:name" for what has another name.
    """
    lines = body.splitlines()
    for node in ast.walk(ast.parse(body)):
        if isinstance(node, ast.ImportFrom) and (module := "." * node.level + (node.module or "")) in instead:
            first, last = node.lineno - 1, (node.end_lineno or node.lineno) - 1
            indent = lines[first][: node.col_offset]
            source, _, renamed = instead[module].partition(":")
            names = ", ".join(f"{renamed} as {part.name}" if renamed else part.name for part in node.names)
            lines[first : last + 1] = [f"{indent}from {source} import {names}", *[""] * (last - first)]
    return "\n".join(lines) + "\n"
