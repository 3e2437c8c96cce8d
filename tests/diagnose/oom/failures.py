"""Failures from flat facts, and changed copies of them."""

import dataclasses
from typing import Any

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.recognition import OutOfMemory

FOUND = OutOfMemory(kind="CPU allocator", where="host", error_type="", message="")
_FOUND = {"where", "kind", "requested_bytes"}
_MEMORY = {"used_bytes", "free_bytes", "reserved_unused_bytes", "limit", "in_use"}
_NAMES = {"parts": "in_use", "frames": "functions"}


def failure_of(**facts: Any) -> Failure:
    """The record with these facts: those of the error, of memory and of the batch by their own names."""
    return replace(Failure(found=FOUND), **facts)


def replace(thing: Any, **facts: Any) -> Any:
    """As `dataclasses.replace`; of a failure also what its parts say."""
    if not isinstance(thing, Failure):
        return dataclasses.replace(thing, **facts)
    facts = {_NAMES.get(name, name): value for name, value in facts.items()}
    found = {name: facts.pop(name) for name in _FOUND & set(facts)}
    memory = {name: facts.pop(name) for name in _MEMORY & set(facts)}
    batch = thing.batch
    if {"rows", "length", "sample", "length_of"} & set(facts):
        now = batch or Batch(0, None)
        rows = facts.pop("rows", now.rows)
        of = facts.pop("length_of", now.of)
        batch = Batch(rows, facts.pop("length", now.length), facts.pop("sample", now.sample), of) if rows else None
    return dataclasses.replace(
        thing,
        **{"batch": batch, **facts},
        found=dataclasses.replace(thing.found, **found),
        memory=dataclasses.replace(thing.memory, **memory),
    )
