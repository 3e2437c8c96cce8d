"""Commands that show templates: which there are, their text, their meaning, their targets, and what they refer to."""

from __future__ import annotations

from pathlib import Path

from forgather_mem.cli.app import complain
from forgather_mem.cli.command import FAILURE
from forgather_mem.cli.options import add_searchpath, add_template_arguments, environment_of, parse_settings
from forgather_mem.cli.output import print_rows, print_text
from forgather_mem.cli.parser import CommandParser

add_arguments = add_template_arguments  # of a command that has no more of its own


def ls_arguments(parser: CommandParser) -> None:
    add_searchpath(parser)
    parser.add_argument("--path", action="store_true", help="Print the library's own folder, for other search paths.")


def ls(searchpath: list[Path], path: bool) -> None:
    """List templates, each with its first comment line."""
    from forgather_mem.config.source.search import Searcher, library

    if path:
        print_text(str(library()))
        return
    print_rows([*Searcher([*searchpath, "."]).names().items()])


def pp_arguments(parser: CommandParser) -> None:
    add_template_arguments(parser)
    parser.add_argument("--debug", action="store_true", help="Show which line of which file each line comes from.")


def pp(template: str, settings: list[str], searchpath: list[Path], debug: bool) -> None:
    """Show the text that a template renders to (also called `render`)."""
    environment, name = environment_of(template, searchpath)
    rendered = environment.render(name, **parse_settings(settings))
    if not debug:
        print_text(rendered.shown.removesuffix("\n"))
        return
    rows = []
    for number, line in enumerate(rendered.text.removesuffix("\n").split("\n"), 1):
        place = rendered.place(number)
        first, *more = rendered.put_back(line).split("\n")  # a value from outside may have several lines
        rows.append((f"{place.template}:{place.line}", f"| {first}"))
        rows += [("", f"| {text}") for text in more]
    print_rows(rows)


def graph_arguments(parser: CommandParser) -> None:
    add_template_arguments(parser)
    parser.add_argument(
        "-t", "--target", dest="targets", metavar="NAME", action="append", default=[],
        help="Only this target. Repeatable.",
    )  # fmt: skip


def graph(template: str, settings: list[str], searchpath: list[Path], targets: list[str]) -> None:
    """Show what a template means: its calls, values and variables."""
    from forgather_mem.config.graph.nodes import tree

    environment, name = environment_of(template, searchpath)
    config = environment.load(name, **parse_settings(settings))
    for wanted in targets:
        config.target(wanted)  # raises where there is none
    lines = tree(config.graph, targets or None)
    print_rows([(f"{'    ' * deep}{key}: {text}{f'   ({note})' if note else ''}",) for deep, key, text, note in lines])


def targets(template: str, settings: list[str], searchpath: list[Path]) -> int:
    """List the targets of a template: name, what it is, where it stands."""
    from forgather_mem.config.check import no_callbacks
    from forgather_mem.config.graph.nodes import built_of, in_a_line, items_of, shortened_text

    environment, name = environment_of(template, searchpath)
    config = environment.load(name, **parse_settings(settings))
    rows = []
    for target in config.targets:
        value, place = config.graph.target(target), config.graph.place_of(target)
        text = in_a_line(value) if items_of(value) is None else built_of(value)
        rows.append((shortened_text(target), text, f"{place.template}:{place.line}"))
    print_rows(rows)
    mistakes = [*config.lost().values(), *(one.error for one in no_callbacks(config) if one.kind == "template")]
    for error in mistakes:
        complain(str(error))
    return FAILURE if mistakes else 0


def trefs(template: str, settings: list[str], searchpath: list[Path]) -> None:
    """Show the templates that a template extends, includes and imports, as a tree, with their files.

    When one is missing or has an error, the tree has what was found so far, and the error follows.
    """
    environment, name = environment_of(template, searchpath)
    found, error = environment.references(name, **parse_settings(settings))
    print_rows([("    " * level + name, file) for level, name, file in found])
    if error is not None:  # reports what is missing
        raise error
