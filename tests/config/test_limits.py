"""The limits that docs/security_details.md shows are those there are."""

import dataclasses
import re
from pathlib import Path

from forgather_mem.config.limits import Limits


def test_the_table_of_the_document_is_that_of_the_code():
    text = (Path(__file__).parents[2] / "docs" / "security_details.md").read_text(encoding="utf-8")
    table = re.search(r"^source_bytes .*?^render_cpu_s .*?$", text, re.M | re.S)
    assert table is not None
    shown = {name: float(limit) for name, limit in map(str.split, table[0].splitlines())}
    assert shown == dataclasses.asdict(Limits())
