"""`forgather-mem ls`: the templates that there are."""

import re

from forgather_mem.config.source.search import library


def test_ls_lists_templates_with_their_first_comment(cli):
    code, out, _ = cli("ls")
    assert code == 0
    lines = dict(re.split(r"\s{2,}", line, maxsplit=1) for line in out.splitlines())
    assert lines["base.yaml"] == "What all runs share"
    assert lines["callbacks/memory.yaml"]
    assert cli("ls", "--path") == (0, f"{library()}\n", "")
