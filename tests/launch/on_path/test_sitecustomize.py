"""Our hook, first on the import path of a watched command, steps aside."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.launch.commands import PLAN, RUN, environment, python, run, watched

SHOW = """
import sys
found = sorted(sys.modules), sys.path
import json, os
with open("found.json", "w") as file:
    json.dump(found, file)
"""
# What a process of a command has that says how much it may take is read without a module, too
LIMITED = ["sh", "-c", 'ulimit -v 8000000; exec "$@"', "sh"]


def test_a_sitecustomize_of_the_user_still_runs(folder: Path) -> None:
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(
        "import sys\nif 'run' not in sys.orig_argv: print('customized', __name__, __file__)\n"
    )
    (folder / "show.py").write_text(
        "import sys; print(sys.modules['sitecustomize'].__spec__.origin, sys.path, sys.meta_path[-3:])\n"
    )
    more = {"PYTHONPATH": str(folder / "site")}
    plain = run(python("show.py"), folder, **more)
    assert plain.out.startswith("customized sitecustomize")
    assert watched(["show.py"], folder, **more).plain == plain
    broken = "import sys\nif 'run' not in sys.orig_argv: raise ValueError('broken')\n"
    (folder / "site" / "sitecustomize.py").write_text(broken)
    plain = run(python("show.py"), folder, **more)
    assert "ValueError: broken" in plain.err
    assert watched(["show.py"], folder, **more).plain == plain


@pytest.mark.parametrize("sites", [False, True], ids=["alone", "with a sitecustomize of the user's"])
@pytest.mark.parametrize("command", [RUN, PLAN, [*LIMITED, *RUN]], ids=["run", "plan", "run with a limit"])
def test_a_script_begins_with_the_modules_that_it_has_alone(folder: Path, command: list[str], sites: bool) -> None:
    (folder / "show.py").write_text(SHOW)
    (folder / "sitecustomize.py").write_text("import colorsys\n")
    more, found = {"PYTHONPATH": str(folder) if sites else ""}, []
    for words in (python(), command):
        run([*words, "show.py"], folder, **more)
        found.append(json.loads((folder / "found.json").read_text()))
        (folder / "found.json").unlink()
    (alone, path_alone), (modules, path) = found
    assert ("colorsys" in alone) == sites
    assert set(alone) <= set(modules)
    more_modules = {name.partition(".")[0] for name in set(modules) - set(alone)}
    assert "forgather_mem" in more_modules
    # No file can take the place of what is part of the interpreter itself
    assert more_modules - {"forgather_mem"} <= set(sys.builtin_module_names)
    assert path == path_alone


def test_no_file_that_is_named_as_a_module_of_python_is_run_for_us(folder: Path) -> None:
    """Each that Python alone has not loaded when the script begins, on the path before Python's own."""
    (folder / "show.py").write_text(SHOW)
    run(python("show.py"), folder, PYTHONPATH="")
    loaded = {name.partition(".")[0] for name in json.loads((folder / "found.json").read_text())[0]}
    (folder / "beside").mkdir()
    for name in set(sys.stdlib_module_names) - loaded - set(sys.builtin_module_names) - {"__future__"}:
        (folder / "beside" / f"{name}.py").write_text("with open('run.txt', 'a') as file: file.write(__name__)\n")
    assert (folder / "beside" / "resource.py").exists()
    (folder / "beside" / "show.py").write_text("print('shown')\n")
    # Of the command alone
    (folder / "start.sh").write_text('PYTHONPATH="$PYTHONPATH${PYTHONPATH:+:}$PWD/beside" exec "$@" beside/show.py\n')
    words, env = ["sh", "start.sh", sys.executable], environment(PYTHONPATH="")
    assert run([*RUN, *words], folder, **env).out == run(words, folder, **env).out == "shown\n"
    assert not os.path.exists(folder / "run.txt")
