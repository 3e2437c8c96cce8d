"""The budget of lines: what the package, its folders, the tests and the benchmarks may hold, and what they do hold.

    python .ci/budget.py            fails above a row of `[tool.forgather_mem.budget]` in pyproject.toml
    python .ci/budget.py --lower    lowers each row to what stands

Lines of code count: no blanks, comments or docstrings. A row is never raised without lowering another by as much in the
same commit.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "pyproject.toml"
LONG_FUNCTION = 40
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def code_lines(text: str) -> int:
    """Lines of a Python source that hold code.

    >>> code_lines('''"A docstring."\\n\\nx = (  # a comment\\n    1\\n)\\n''')
    3
    """
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code)


def counted() -> dict[str, int]:
    """What stands, by the names of the rows; a folder of the package is `package.NAME`."""
    rows: Counter[str] = Counter()
    for path in _sources("forgather_mem"):
        text = path.read_text(encoding="utf-8")
        parts = path.relative_to(ROOT / "forgather_mem").parts
        if parts[0] == "templates":
            continue  # built, not written
        number = code_lines(text)
        rows["package"] += number
        rows[f"package.{parts[0] if len(parts) > 1 else 'top'}"] += number
        rows["any"] += len(re.findall(r"\bAny\b", text))
        rows["dictionaries_of_any"] += len(re.findall(r"\b(?:dict|Mapping)\[str, Any\]", text))
        tree = ast.parse(text)
        rows["long_functions"] += sum(_is_long(node) for node in ast.walk(tree))
        rows["numeric_constants"] += sum(_constants(node) for node in tree.body)
    for folder in ("tests", "benchmarks"):
        rows[folder] = sum(code_lines(path.read_text(encoding="utf-8")) for path in _sources(folder))
    scripts = [path for path in (ROOT / "forgather_mem" / "page" / "assets").glob("*.js") if "uPlot" not in path.name]
    rows["javascript"] = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in scripts)
    return dict(rows)


def _sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _is_long(node: ast.AST) -> bool:
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) or node.end_lineno is None:
        return False
    return node.end_lineno - node.lineno >= LONG_FUNCTION


def _constants(node: ast.stmt) -> int:
    """Names that this statement of a module gives a number."""
    if isinstance(node, ast.AnnAssign) and node.value is not None:
        return int(_is_number(node.value))
    if not isinstance(node, ast.Assign):
        return 0
    if isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple):
        return sum(map(_is_number, node.value.elts))
    return int(_is_number(node.value))


def _is_number(node: ast.expr) -> bool:
    if isinstance(node, ast.UnaryOp):
        return _is_number(node.operand)
    if isinstance(node, ast.BinOp):
        return _is_number(node.left) and _is_number(node.right)
    return isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool)


def _limits() -> dict[str, int]:
    table = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["tool"]["forgather_mem"]["budget"]
    folders = {f"package.{name}": most for name, most in table.pop("folders").items()}
    return {**table, **folders}


def main() -> int:
    found, limits = counted(), _limits()
    over = [f"{name}: {number:,}, and no row" for name, number in found.items() if name not in limits]
    for name, most in limits.items():
        number = found.get(name, 0)
        if number > most:
            over.append(f"{name}: {number:,}, of {most:,}")
        elif number < most and "--lower" in sys.argv:
            row = re.escape(name.removeprefix("package."))
            text = re.sub(rf"(?m)^{row} = {most}\b", f"{row} = {number}", PROJECT.read_text(encoding="utf-8"))
            PROJECT.write_text(text, encoding="utf-8")
    for line in over:
        print(f"over the budget: {line}", file=sys.stderr)
    if over:
        print("remove as much elsewhere; CONTRIBUTING.md, 'What a line costs', says how", file=sys.stderr)
    return bool(over)


if __name__ == "__main__":
    raise SystemExit(main())
