"""Every place of the package that writes, makes or removes a file is in the table of docs/security_details.md."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "forgather_mem"
PAGE = (ROOT / "docs" / "security_details.md").read_text(encoding="utf-8")
# Methods and functions that write, make, move or remove files, whatever they are called on.
WRITING = {
    "copy2", "copyfile", "copytree", "export_chrome_trace", "fdopen", "link_to", "makedirs", "mkdir", "mkdtemp",
    "mkfifo", "mknod", "mkstemp", "NamedTemporaryFile", "posix_fallocate", "removedirs", "rename", "rmdir", "rmtree",
    "savefig",
    "symlink", "symlink_to", "hardlink_to", "TemporaryDirectory", "TemporaryFile", "touch", "truncate", "unlink",
    "write_bytes", "write_text", "_dump_snapshot", "EventFileWriter", "SummaryWriter", "replace_file",
    "write_chosen_file", "new_file", "make_real_folder", "open_real", "remove_real", "rename_real",
    "chown", "fchown", "chmod", "fchmod",
}  # fmt: skip
OF_OS = {"open", "remove", "rename", "renames", "replace", "link"}  # too common as methods of other things
FLAGS = {"O_WRONLY", "O_RDWR", "O_CREAT", "O_APPEND", "O_TRUNC"}
OF_PATHS = {"save", "dump", "tofile"}


def writing_calls(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and name of each call that may write."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
        owner = getattr(getattr(function, "value", None), "id", "")
        if name in WRITING or (owner in ("torch", "np", "numpy") and name in OF_PATHS):
            yield call.lineno, name
        elif owner == "os" and name in OF_OS:
            names = {node.attr for node in ast.walk(call) if isinstance(node, ast.Attribute)}
            unnamed = [flags for flags in call.args[1:2] if not re.match(r"\(?os\.O_", ast.unparse(flags))]
            if name != "open" or names & FLAGS or unnamed:
                yield call.lineno, f"os.{name}"
        elif name == "replace" and len(call.args) == 1 and not call.keywords:  # of a path; of a text it takes two
            yield call.lineno, name
        elif name == "open" and owner != "os" and _mode(call) & set("wax+"):
            yield call.lineno, "open"


def _mode(call: ast.Call) -> set[str]:
    """The mode, for `open(path, mode)` and `path.open(mode)`; every letter where it is computed."""
    given = [keyword.value for keyword in call.keywords if keyword.arg == "mode"]
    given += call.args[1:2] if isinstance(call.func, ast.Name) else call.args[:1]
    if not given:
        return set()
    constant = given[0].value if isinstance(given[0], ast.Constant) else "wax+"
    return set(constant) if isinstance(constant, str) else set()


def written() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        calls = list(writing_calls(ast.parse(path.read_text(encoding="utf-8"))))
        if calls:
            found[path.relative_to(PACKAGE).as_posix()] = [f"{line} {name}" for line, name in calls]
    return found


def table(heading: str) -> list[list[str]]:
    """The rows of the table under a heading of the page, without its head."""
    section = PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_module_that_writes_is_in_the_table_and_no_other_is():
    listed = {name for row in table("Files that are written") for name in re.findall(r"`([\w/]+\.py)`", row[0])}
    found = written()
    assert listed == set(found), {name: found.get(name) for name in listed.symmetric_difference(found)}


def test_the_scan_sees_each_way_of_writing():
    calls = """
open("a", "w"); open("a", mode="ab"); path.open("x"); open(path, mode); os.open(path, os.O_WRONLY | os.O_CREAT)
os.open(path, flags); os.replace(a, b); os.rename(a, b); a.replace(b); a.rename(b); path.write_text(""); path.mkdir()
torch.save(x, f); np.save(f, x); shutil.copyfile(a, b); figure.savefig(p); SummaryWriter(p); tempfile.mkdtemp()
path.symlink_to(b); os.symlink(a, b); path.touch(); os.truncate(a, 0); tempfile.NamedTemporaryFile(); os.remove(p)
"""
    each = [call for call in calls.replace("\n", ";").split(";") if call.strip()]
    assert len(list(writing_calls(ast.parse(calls)))) == len(each)
    reading = 'open("a"); open("a", "rb"); path.open(); os.open(p, os.O_RDONLY); text.replace("a", "b"); p.read_text()'
    assert list(writing_calls(ast.parse(reading))) == []


def test_every_promise_names_tests_that_exist():
    rows = table("Which test holds which promise")
    promises = PAGE.partition("## What is promised\n")[2].partition("\n## ")[0]
    numbers = re.findall(r"^(\d+)\. ", promises, re.MULTILINE)
    assert [row[0] for row in rows][: len(numbers)] == numbers
    for row in rows:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[1])
        assert named, row
        for file, test in named:
            tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
            assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, (file, test)
