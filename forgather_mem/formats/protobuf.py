"""Fields of protocol buffer messages, as bytes: the part of the format that our TensorBoard events need.

A message is its fields one after the other. TensorBoard's classes for them are not used where a training runs:
importing them takes 1.4 MiB of its memory and 20 ms.

>>> text(1, "loss") + integer(2, 300)
b'\\n\\x04loss\\x10\\xac\\x02'
"""

from __future__ import annotations

import math
import struct

_VARINT, _EIGHT_BYTES, _LENGTH_FIRST, _FOUR_BYTES = 0, 1, 2, 5  # how the bytes of a value are delimited
_DOUBLE, _FLOAT = struct.Struct("<d"), struct.Struct("<f")
_INT64 = 1 << 64


def varint(number: int) -> bytes:
    """An integer from 0, seven bits a byte."""
    found = []
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


def integer(field: int, number: int) -> bytes:
    """An int32, int64 or enum; a negative one as its two's complement."""
    return _key(field, _VARINT) + varint(number % _INT64)


def double(field: int, number: float) -> bytes:
    """A number of 8 bytes."""
    return _key(field, _EIGHT_BYTES) + _DOUBLE.pack(number)


def single(field: int, number: float) -> bytes:
    """A number of 4 bytes, its last ones; infinite beyond their range."""
    try:
        packed = _FLOAT.pack(number)
    except OverflowError:
        packed = _FLOAT.pack(math.copysign(math.inf, number))
    return _key(field, _FOUR_BYTES) + packed


def text(field: int, content: str) -> bytes:
    """A string."""
    return nested(field, content.encode())


def nested(field: int, *parts: bytes) -> bytes:
    """A message of these fields; also plain bytes, which are written alike."""
    content = b"".join(parts)
    return _key(field, _LENGTH_FIRST) + varint(len(content)) + content


def _key(field: int, delimited: int) -> bytes:
    return varint(field << 3 | delimited)
