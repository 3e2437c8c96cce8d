"""Our hook, first on the import path of a watched command, steps aside."""

from __future__ import annotations

from pathlib import Path

from tests.launch.commands import python, run, watched


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
