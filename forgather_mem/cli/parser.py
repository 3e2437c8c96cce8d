"""The parser of a command's words: argparse, with our messages; `--help` has 80 columns."""

from __future__ import annotations

import argparse
import functools
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from forgather_mem.cli.command import num_options
from forgather_mem.errors import UsageError, did_you_mean
from forgather_mem.units import MIB, is_number_text, parse_bytes

_WIDTH = 80
_LIKE_AN_OPTION = 0.7  # all begin alike


class CommandParser(argparse.ArgumentParser):
    """The arguments of one command.

    Args:
        prog: The words that the command is called with.
        text: What it does; paragraphs are separated by empty lines.
        commands: Commands that are listed at the end of the help, and what each does.
    """

    def __init__(self, prog: str, text: str, commands: Mapping[str, str] | None = None) -> None:
        listed = "\n".join(["commands:", *(f"  {name:<10}{what}" for name, what in (commands or {}).items())])
        super().__init__(
            prog,
            description="\n\n".join(textwrap.fill(" ".join(part.split()), _WIDTH) for part in text.split("\n\n")),
            epilog=listed if commands else None,
            formatter_class=functools.partial(_Layout, width=_WIDTH),
            allow_abbrev=False,
            exit_on_error=False,
        )
        self._runs_a_command = False

    def add_command(self, text: str) -> None:
        """Add the argument `command`: the words of another program, from the first that is no option of ours."""
        self.add_argument("command", nargs="*", metavar="COMMAND...", help=text)
        self._runs_a_command = True

    def parse(self, words: Sequence[str]) -> dict[str, object]:
        """The values of all arguments, by the names of the function's parameters.

        Raises:
            UsageError: for words that the command does not understand.
        """
        own = self._own_words(words) if self._runs_a_command else list(words)
        self._refuse_unknown(own)
        # Options between arguments need the other way, which loses `--`
        has_several = any(action.nargs == "*" for action in self._actions)
        try:
            values, left = self.parse_known_intermixed_args(own) if has_several else self.parse_known_args(own)
        except argparse.ArgumentError as error:
            raise self._explained(error) from None
        if left:
            raise UsageError(f"unexpected argument {left[0]!r}")
        return vars(values) | ({"command": list(words[len(own) :])} if self._runs_a_command else {})

    def error(self, message: str) -> NoReturn:
        """What argparse calls for missing arguments."""
        raise UsageError(message)

    def format_help(self) -> str:
        """The help; its usage has no list of the options, which stand below it."""
        words = [_left(action) for action in self._actions if not action.option_strings]
        self.usage = " ".join(["%(prog)s [OPTIONS]", *words, *["COMMAND ..."] * (self.epilog is not None)])
        return super().format_help()

    def _own_words(self, words: Sequence[str]) -> list[str]:
        """The words before the command."""
        with_value = [name for name, action in self._option_string_actions.items() if action.nargs is None]
        return list(words[: num_options(words, with_value)])

    def _refuse_unknown(self, words: Sequence[str]) -> None:
        """argparse would miss an argument first, and take the value of an unknown option for one."""
        if "" in words:  # a path of no letters would be the working folder
            raise UsageError("an argument is empty", "is a variable of the shell not set?")
        for word in words:
            if word == "--":
                return
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if not word.startswith("-") or word == "-" or word[1:2].isdigit() or name in self._option_string_actions:
                continue
            options = self._option_string_actions
            about = [one for one, action in options.items() if f"{name.replace('--', ' ')} " in str(action.help)]
            hint = did_you_mean(about[0] if len(about) == 1 else name, options, _LIKE_AN_OPTION)
            if hint is None and self._runs_a_command:
                hint = f"options of the command come after it; for ours try `{self.prog} -h`"
            raise UsageError(f"there is no option {name!r}", hint)

    def _explained(self, error: argparse.ArgumentError) -> UsageError:
        name = (error.argument_name or "").rpartition("/")[2]
        if (action := self._option_string_actions.get(name)) is None:
            return UsageError(error.message)
        of_ours = isinstance(error.__context__, argparse.ArgumentTypeError)  # from a converter
        if of_ours or error.message.startswith("not allowed with"):
            return UsageError(f"{name} {error.message}")
        if action.nargs == 0:
            return UsageError(f"{name} takes no value")
        given = error.message.partition("invalid choice: '")[2].partition("'")[0]
        fault, values = f"takes no {given!r}" if given else "needs a value", str(action.metavar).replace("|", " or ")
        return UsageError(f"{name} {fault}: {name} {values}", did_you_mean(given, action.choices or ()))


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """A converter to a number between these two."""
    wanted = f"{least} or more" if most is None else f"{least} to {most}"

    def convert(word: str) -> int:
        number = int(word) if word.removeprefix("-").isdecimal() else None
        if number is None or number < least or (most is not None and number > most):
            raise argparse.ArgumentTypeError(f"{word!r}: give a whole number, {wanted}")
        return number

    return convert


def size_bytes(word: str) -> int:
    """A converter to bytes, which refuses a number that has surely lost its unit."""
    try:
        size = parse_bytes(word)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    if size < MIB:
        lost = f"is that GiB? Write a unit, for example {word.strip()}GiB"
        raise argparse.ArgumentTypeError(f"{word!r}: {lost if size and is_number_text(word) else 'give 1MiB or more'}")
    return size


def _left(action: argparse.Action) -> str:
    """How an argument is written."""
    return " ".join(filter(None, (", ".join(action.option_strings), str(action.metavar or ""))))


class _Layout(argparse.RawDescriptionHelpFormatter):
    """Each argument as we write it; no option is broken at a hyphen."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        return _left(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)
