"""The figures by which one sees whether a newcomer can find their way in the package: they may only get better."""

import ast
from collections import Counter, defaultdict
from pathlib import Path

import forgather_mem

ROOT = Path(forgather_mem.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if "templates" not in path.relative_to(ROOT).parts)
MODULES = {".".join(("forgather_mem", *path.relative_to(ROOT).with_suffix("").parts)): path for path in FILES}


def test_the_top_level_and_every_folder_can_be_taken_in_at_a_glance() -> None:
    folders = Counter(path.parent for path in FILES)
    assert folders[ROOT] <= 9
    assert max(folders.values()) <= 20, folders.most_common(1)


def test_modules_import_each_other_in_no_circle_not_even_for_types() -> None:
    imports = {name: set(imported_by(path)) - {name} for name, path in MODULES.items()}
    left = {name for name in imports if imports[name]}
    while removable := {name for name in left if not imports[name] & left}:
        left -= removable
    assert left == set()


def imported_by(path: Path) -> list[str]:
    """Modules of ours that it imports anywhere, also for its types only."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            found += [name if name in MODULES else node.module for name in names]
    return [name for name in found if name in MODULES]


def test_a_public_class_or_function_has_a_name_of_its_own() -> None:
    places = defaultdict(set)
    for name, path in MODULES.items():
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
                places[node.name].add(name)  # overloads are one function
    for name in ("add_arguments", "load_ipython_extension", "unload_ipython_extension"):
        del places[name]  # looked up by that name in a module, as a method is in a class
    assert [name for name, modules in sorted(places.items()) if len(modules) > 1] == []


def test_who_changes_a_module_finds_its_tests_in_the_file_of_its_name() -> None:
    modules = [path.relative_to(ROOT) for path in FILES if path.name != "__init__.py"]
    tests = [module.with_name(f"test_{module.stem.strip('_')}.py") for module in modules]
    without = [str(module) for module, test in zip(modules, tests, strict=True) if not (TESTS / test).exists()]
    assert len(without) <= 14, without


def test_docstrings_of_modules_are_statements() -> None:
    first_lines = {
        name: (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]
        for name, path in MODULES.items()
    }
    assert [name for name, line in first_lines.items() if "?" in line or not line.endswith((".", ":", "`"))] == []
