"""docs/architecture.md names every package, the layers that are enforced, and files that exist."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "forgather_mem"
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
# New files in recipes, and what a reader puts a name of his own into
EXAMPLES = {
    "csv.py", "test_csv.py", "my_callback.py", "test_my_callback.py", "my_action.py", "test_my_action.py", "COMMAND.py",
    "test_COMMAND.py",
}  # fmt: skip


def packages() -> set[str]:
    """Paths of all packages below the top one."""
    return {found.parent.relative_to(PACKAGE).as_posix() for found in PACKAGE.glob("*/**/__init__.py")}


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_table_has_each_package_once() -> None:
    rows = re.findall(r"^\| `([\w/]+)` \|", section("Where each part is"), re.M)
    assert sorted(rows) == sorted(packages())


def test_each_module_on_the_top_level_is_named() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py") if not path.stem.startswith("_")}
    line = section("Where each part is").partition("\nOn the top level:")[2]
    assert modules == set(re.findall(r"`(\w+)`", line)) & modules


def test_the_layers_are_those_that_are_enforced() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (layers,) = (row["layers"] for row in settings["tool"]["importlinter"]["contracts"] if row["type"] == "layers")
    shown = section("Where each part is").partition("```text\n")[2].partition("```")[0]
    assert shown.splitlines() == [row.replace("forgather_mem.", "") for row in layers]


def test_each_path_exists() -> None:
    for path in re.findall(r"`([\w./]+(?:\.py|\.md|/))`", PAGE):
        if path.rpartition("/")[2] not in EXAMPLES:
            assert (ROOT / path).exists() or (PACKAGE / path).exists(), path


def test_each_name_in_a_recipe_stands_in_the_file_that_the_recipe_names() -> None:
    for step in re.findall(r"^\d\. .*?(?=^\d\. |^$|\Z)", section("Recipes"), re.M | re.S):
        named = re.findall(r"`([\w/]+\.py)`", step)
        files = [file for path in named for file in (PACKAGE / path, ROOT / path) if file.exists()]
        text = "".join(file.read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`(?:\w+\.)?(_?[A-Z]\w*[A-Z]\w*|_\w+|[a-z]+_[a-z_]+)`", step):
            assert not files or re.search(rf"\b{name}\b", text), f"{name} is not in {[file.name for file in files]}"
