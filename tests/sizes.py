"""Sizes in the files of data beside tests: "13.7 GiB" is a number of bytes, and so is "13.7 GiB - 8.8 GiB"."""

import re
from typing import Any

from forgather_mem.units import GIB, KIB, MIB

_UNITS = {"KiB": KIB, "MiB": MIB, "GiB": GIB}
_SIZES = re.compile(r"[\d.]+ [KMG]iB(?: - [\d.]+ [KMG]iB)*")


def sized(value: Any) -> Any:
    """What was read of such a file, with each size as its bytes."""
    if isinstance(value, dict):
        return {name: sized(part) for name, part in value.items()}
    if isinstance(value, list):
        return [sized(part) for part in value]
    if not isinstance(value, str) or not _SIZES.fullmatch(value):
        return value
    first, *less = (int(float(number) * _UNITS[unit]) for number, unit in map(str.split, value.split(" - ")))
    return first - sum(less)
