"""Words of a command line as a person may type them: options anywhere, mistakes, and the help."""

import pytest

from forgather_mem.cli.app import COMMANDS
from forgather_mem.cli.parser import CommandParser, whole_number
from forgather_mem.errors import UsageError


@pytest.fixture
def parser() -> CommandParser:
    found = CommandParser("tool", "What it does.\n\n    More of it.")
    found.add_argument("names", nargs="*", metavar="A B...", help="Some names.")
    found.add_argument("-s", "--set", dest="settings", metavar="KEY=VALUE", action="append", default=[], help="Set.")
    found.add_argument("-q", "--quiet", action="store_true", help="Say 100 %% less.")
    found.add_argument("--port", metavar="N", type=whole_number(-5, 5), default=0, help="Default: %(default)s.")
    found.add_argument("--kind", metavar="tree|yaml", help="Which kind.")
    return found


GIVEN = {"names": ["a", "b"], "settings": ["lr=-1", "x"], "quiet": True, "port": -3, "kind": "yaml"}


@pytest.mark.parametrize(
    "line",
    [
        "--set lr=-1 --set x --quiet --port -3 --kind yaml a b",
        "a b --set lr=-1 --set x --quiet --port -3 --kind yaml",
        "a -s lr=-1 --quiet b -s x --port=-3 --kind=yaml",
        "-slr=-1 a -qsx --kind yaml --port=-3 b",
        "--kind yaml -q --set=lr=-1 -s x --port -3 -- a b",
    ],
)
def test_options_stand_anywhere_and_take_their_values_in_all_usual_ways(parser: CommandParser, line: str) -> None:
    assert parser.parse(line.split()) == GIVEN


def test_what_is_not_given_has_its_default(parser: CommandParser) -> None:
    expected = {"names": [], "settings": [], "quiet": False, "port": 0, "kind": None}
    assert parser.parse([]) == expected
    assert parser.parse(["--set", "x"])["settings"] == ["x"]
    assert parser.parse([]) == expected, "a list that was filled once is not the next one's default"


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        (["--quite"], "there is no option '--quite'", "did you mean '--quiet'?"),
        (["--qui"], "there is no option '--qui'", "did you mean '--quiet'?"),  # abbreviations would be promises
        (["a", "--st=x"], "there is no option '--st'", "did you mean '--set'?"),
        (["--zzzz", "a"], "there is no option '--zzzz'", None),
        (["-x"], "there is no option '-x'", None),
        (["--set"], "--set needs a value: --set KEY=VALUE", None),
        (["-s"], "--set needs a value: --set KEY=VALUE", None),
        (["--set", "--quiet"], "--set needs a value: --set KEY=VALUE", None),
        (["--kind"], "--kind needs a value: --kind tree or yaml", None),
        (["--quiet=yes"], "--quiet takes no value", None),
        (["--kind", "-1GiB"], "--kind needs a value: --kind tree or yaml", None),
        (["a", ""], "an argument is empty", "is a variable of the shell not set?"),
        (["--port", "6"], "--port '6': give a whole number, -5 to 5", None),
        (["--port", "-6"], "--port '-6': give a whole number, -5 to 5", None),
        (["--port", "1.5"], "--port '1.5': give a whole number, -5 to 5", None),
    ],
)
def test_a_mistake_is_named(parser: CommandParser, words: list[str], message: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        parser.parse(words)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_a_missing_and_a_surplus_argument_are_named() -> None:
    parser = CommandParser("tool", "What it does.")
    parser.add_argument("template", metavar="TEMPLATE", help="A name.")
    assert parser.parse(["--", "-t.yaml"]) == {"template": "-t.yaml"}
    with pytest.raises(UsageError, match="TEMPLATE"):
        parser.parse([])
    with pytest.raises(UsageError, match="unexpected argument 'two'"):
        parser.parse(["one", "two", "three"])


def test_the_words_of_a_command_are_not_read() -> None:
    parser = CommandParser("tool", "What it does.")
    parser.add_argument("--ranks", metavar="N", type=whole_number(1), default=1, help="Ranks.")
    parser.add_argument("--json", action="store_true", help="As JSON.")
    parser.add_command("A command.")
    for line, ranks, json, command in (
        ("train.py --json --ranks x -h", 1, False, "train.py --json --ranks x -h"),
        ("--ranks 2 --json -m tool -- x", 2, True, "-m tool -- x"),
        ("--ranks=2 -- --json", 2, False, "--json"),
        ("--json -", 1, True, "-"),
        ("--json", 1, True, ""),
    ):
        assert parser.parse(line.split()) == {"ranks": ranks, "json": json, "command": command.split()}


HELP = """\
usage: tool [OPTIONS] A B...

What it does.

More of it.

positional arguments:
  A B...               Some names.

options:
  -h, --help           show this help message and exit
  -s, --set KEY=VALUE  Set.
  -q, --quiet          Say 100 % less.
  --port N             Default: 0.
  --kind tree|yaml     Which kind.
"""


def test_the_help_is_laid_out_alike_on_every_python(parser: CommandParser, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert parser.format_help() == HELP


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_has_80_columns(cli, command: str) -> None:
    code, text, _ = cli(*command.split(), "--help")
    assert code == 0
    assert max(map(len, text.splitlines())) <= 80
