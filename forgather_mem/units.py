"""Formats bytes, seconds and fractions for people, and parses what people write.

Inside the library bytes are bytes, seconds are seconds and shares are fractions; they are converted only here. 1 GiB =
2**30 B and is never written GB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

KIB = 2**10
MIB = 2**20
GIB = 2**30
_SIZES = {"": 1, "b": 1, "kib": KIB, "mib": MIB, "gib": GIB, "tib": 2**40}
_DECIMAL = {"kb": "KiB", "mb": "MiB", "gb": "GiB", "tb": "TiB", "k": "KiB", "m": "MiB", "g": "GiB"}


def format_bytes(num_bytes: float, sign: str = "") -> str:
    """Bytes with a binary unit and about three digits; with "+" as `sign` a difference.

    >>> format_bytes(0), format_bytes(4096), format_bytes(3.1 * 2**20), format_bytes(-41.3 * 2**30)
    ('0 B', '4.0 KiB', '3.1 MiB', '-41.3 GiB')
    >>> format_bytes(4096, "+"), format_bytes(-4096, "+")
    ('+4.0 KiB', '-4.0 KiB')
    """
    size = abs(num_bytes)
    if size < KIB:
        return f"{num_bytes:{sign}.0f} B"
    for unit, factor in (("KiB", KIB), ("MiB", MIB), ("GiB", GIB)):
        if size < factor * 1023.95:
            return f"{num_bytes / factor:{sign},.1f} {unit}"
    return f"{num_bytes / 2**40:{sign},.1f} TiB"


def by_sides(sizes: Iterable[int]) -> str:
    """The sizes of a tensor.

    >>> by_sides((3, 1024, 768))
    '3 x 1,024 x 768'
    """
    return " x ".join(f"{size:,}" for size in sizes)


def format_duration(seconds: float) -> str:
    """A duration in its two largest relevant units.

    >>> format_duration(0.0004), format_duration(7.3), format_duration(1860), format_duration(7440)
    ('0.4 ms', '7.3 s', '31 min', '2 h 04 min')
    >>> format_duration(0.000043), format_duration(0)
    ('43 us', '0.0 ms')
    """
    if 0 < seconds < 1e-4:
        return f"{seconds * 1e6:.0f} us"
    if seconds < 1:
        return f"{seconds * 1e3:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min" if seconds >= 600 else f"{int(seconds // 60)} min {seconds % 60:02.0f} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def format_share(fraction: float) -> str:
    """A fraction as a percentage.

    >>> format_share(0.003), format_share(0.92)
    ('0.3 %', '92.0 %')
    """
    return f"{fraction * 100:.1f} %"


def format_pace(count: float, what: str = "", per: str = "a step") -> str:
    """A number of things per step on average, to three digits; of rare ones in about how many steps one comes.

    >>> format_pace(0.1, " item"), format_pace(1.0, " item"), format_pace(8040.2)
    ('+1 item in 10 steps', '+1 item a step', '+8,040 a step')
    >>> format_pace(1 / 3.75), format_pace(1 / 999.6)
    ('+1 in about 4 steps', '+1 in 1,000 steps')
    >>> format_pace(20.0, " item", "an evaluation")
    '+20 items an evaluation'
    """
    if 0 < count < 0.5 and per == "a step":
        steps = round(1 / count)
        return f"+1{what} in {'about ' * (abs(steps * count - 1) > 0.005)}{steps:,} steps"
    many = f"{count:,.0f}" if count >= 999.5 else f"{count:.3g}"
    return f"+{many}{what}{'s' * bool(what and many != '1')} {per}"


def parse_bytes(text: str | int | float) -> int:
    """Parse a size: a number of bytes, or a number with B, KiB, MiB, GiB or TiB.

    >>> parse_bytes("40GiB") == 40 * 2**30, parse_bytes("1.5 MiB"), parse_bytes(512)
    (True, 1572864, 512)

    Raises:
        ValueError: for another unit ("GB" is refused, because half of its readers mean GiB) or no number.
    """
    if isinstance(text, int | float) and not isinstance(text, bool):
        return int(text)
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a number and a unit, for example '40GiB' or '512MiB'")
    number, unit = match.groups()
    if unit.lower() not in _SIZES:
        meant = _DECIMAL.get(unit.lower())
        better = f"write {number}{meant}" if meant else "the units are B, KiB, MiB, GiB, TiB"
        raise ValueError(f"{text!r}: unknown unit {unit!r}; {better}")
    return int(float(number) * _SIZES[unit.lower()])


def parse_share(text: str | int | float) -> float:
    """Parse a share: a fraction, or a number with %.

    >>> parse_share("90%"), parse_share(0.9)
    (0.9, 0.9)

    Raises:
        ValueError: for anything that is not a number.
    """
    try:
        if isinstance(text, str) and text.strip().endswith("%"):
            return float(text.strip()[:-1]) / 100
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is not a share; write '90%' or 0.9") from None


def is_number_text(text: str) -> bool:
    """Whether Python reads a text as a number.

    >>> is_number_text("-1e3"), is_number_text("1,000")
    (True, False)
    """
    try:
        float(text)
    except ValueError:
        return False
    return True
