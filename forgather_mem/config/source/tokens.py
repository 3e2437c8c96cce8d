"""The characters that delimit tokens for values from outside, and origin markers."""

from __future__ import annotations

import re

# Private-use characters: YAML prints them, and no template uses them for anything else.
TOKEN_OPEN, TOKEN_CLOSE, ORIGIN_OPEN, ORIGIN_CLOSE = "\uf4c1", "\uf4c2", "\uf4c3", "\uf4c4"
RESERVED = frozenset((TOKEN_OPEN, TOKEN_CLOSE, ORIGIN_OPEN, ORIGIN_CLOSE))
TOKEN = re.compile(f"{TOKEN_OPEN}[0-9a-f_]+{TOKEN_CLOSE}")
ORIGIN = re.compile(f"{ORIGIN_OPEN}([0-9]+)\\.([0-9]+)\\.([0-9]+){ORIGIN_CLOSE}")
