"""A module comes from where it is installed, and a file of its name beside the script stays the script's."""

import subprocess
import sys
from pathlib import Path

import pytest

from forgather_mem.system.installed import installed

RUNS = "with open('run.txt', 'a') as file: file.write(__name__ + ' ')\n"
SCRIPT = """
import sys
from forgather_mem.system.installed import installed
before = set(sys.modules)
print(installed({name!r}).{member}, set(sys.modules) - before - {{'_cython_3_1_4', 'cython_runtime'}})
"""


def printed(folder: Path, code: str) -> str:
    (folder / "script.py").write_text(code)
    done = subprocess.run([sys.executable, "script.py"], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize(
    ("name", "member"), [("resource", "RLIM_INFINITY"), ("google_crc32c._crc32c", "value(b'123456789')")]
)
def test_a_single_module_leaves_its_name_to_the_script(tmp_path: Path, name: str, member: str) -> None:
    top = name.partition(".")[0]
    (tmp_path / f"{top}.py").write_text(RUNS)
    code = SCRIPT.format(name=name, member=member)
    assert printed(tmp_path, code) == ("-1 set()\n" if top == "resource" else f"{0xE3069283} set()\n")
    assert not (tmp_path / "run.txt").exists()
    printed(tmp_path, f"import {top} as mine\n{code}import {top}\nassert {top} is mine\n")
    assert (tmp_path / "run.txt").read_text() == f"{top} "


def test_a_package_stays_for_its_own_parts(tmp_path: Path) -> None:
    (tmp_path / "yaml.py").write_text(RUNS)
    code = SCRIPT.format(name="yaml", member="safe_load('[1]')") + "import yaml\nprint(yaml.safe_load('[2]'))"
    assert printed(tmp_path, code).startswith("[1] ")
    assert not (tmp_path / "run.txt").exists()


def test_what_is_there_already_is_not_imported_again() -> None:
    import resource
    import tracemalloc

    anew = installed.__wrapped__
    assert [anew("resource"), anew("tracemalloc"), anew("sys")] == [resource, tracemalloc, sys]


def test_what_is_not_installed_or_may_not_be_imported_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tabnanny", None)
    for name in ("no_such_module", "yaml.no_such_module", "tabnanny"):
        with pytest.raises(ImportError, match=f"{name} is not installed"):
            installed(name)
