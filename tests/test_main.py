"""The entry point."""

from forgather_mem.config.source.search import library
from tests.cli.commands import in_a_process


def test_the_module_and_the_command_are_one():
    done = in_a_process("ls", "--path")
    assert (done.returncode, done.stdout) == (0, f"{library()}\n")
