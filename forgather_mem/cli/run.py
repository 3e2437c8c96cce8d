"""The help of `forgather-mem run`. The command itself is in `launch`, which imports none of this."""

from __future__ import annotations

from typing import Annotated

import typer


def register(app: typer.Typer, panel: str) -> None:
    """Add the command to the application."""
    settings = {"ignore_unknown_options": True, "allow_interspersed_args": False}
    app.command("run", rich_help_panel=panel, context_settings=settings)(run)


def run(
    command: Annotated[
        list[str],
        typer.Argument(metavar="COMMAND...", help="A script, -m module, torchrun, ..., with its own options."),
    ],
    template: str = typer.Option("callbacks/watch.yaml", metavar="NAME", help="The callbacks that watch."),
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A variable of the template. Repeatable.")
    ] = None,
    allow: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="A module that the template may use. Repeatable.")
    ] = None,
    report: str | None = typer.Option(None, metavar="OUT.json", help="Write the report to this file, too."),
    fail_on: str | None = typer.Option(None, metavar="leak", help="Exit with 3 when the report finds a leak."),
    max_peak: Annotated[
        list[str] | None,
        typer.Option(metavar="host=SIZE|gpu0=SIZE", help="Exit with 3 when the peak was higher. Repeatable."),
    ] = None,
) -> None:
    """Watch any training command, unchanged, and report where the memory went.

    Its exit code, signals and output stay its own. The report goes to stderr.

    FORGATHER_MEM=0 switches the watching off; files go below FORGATHER_MEM_DIR.
    """
    raise AssertionError("__main__ runs this command, before it imports any other")
