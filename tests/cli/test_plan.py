"""The command line of `forgather-mem plan`. Scripts that are planned are in tests/launch/test_planning.py."""

import pytest

from tests.cli.commands import in_a_process


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--set", "batch=0", "train.py"], "plan: --set 'batch=0': write batch=8,16 or length=512"),
        (["--set", "rows=8", "train.py"], "plan: --set 'rows=8'"),
        (["--card", "24GB", "train.py"], "unknown unit 'GB'; write 24GiB"),
        (["--card", "24", "train.py"], "plan: --card '24': is that GiB? Write a unit, for example 24GiB"),
        (["--card", "0GiB", "train.py"], "plan: --card '0GiB': give 1MiB or more"),
        (["no_such.py"], "plan: there is no file 'no_such.py'"),
        (["--card"], "plan: --card needs a value: --card SIZE"),
        (["--crad", "24GiB", "train.py"], "did you mean '--card'?"),
        (["--lr", "1", "train.py"], "options of the command come after it; for ours try `forgather-mem plan -h`"),
        (["--ranks", "-1", "train.py"], "plan: --ranks '-1': give a whole number, 1 or more"),
        (["-m"], "plan: -m needs the name of a module"),
    ],
)
def test_a_mistake_is_told(cli, tmp_path, own_folder, words, told) -> None:
    (tmp_path / "train.py").touch()
    code, out, err = cli("plan", *words)
    assert (code, out) == (2, "")
    assert told in err


def test_a_command_is_needed(cli) -> None:
    assert cli("plan")[0] == 2


def test_what_stands_after_the_script_is_its_own(tmp_path) -> None:
    (tmp_path / "shows.py").write_text("import sys; print(sys.argv[1:])")
    its = ["--card", "--json", "-h", "--", "-1", "--set=x"]
    for begin in (["shows.py"], ["--meta", "shows.py"], ["-m", "shows"], ["--ranks=2", "--", "shows.py"]):
        done = in_a_process("plan", *begin, *its, cwd=tmp_path)
        assert done.returncode == 1, "it has not trained"
        assert done.stderr.splitlines()[1] == str(its), begin
