"""Failures from flat facts, and changed copies of them."""

import dataclasses
from typing import Any

from forgather_mem.diagnose.oom.batch_shapes import Batch
from forgather_mem.diagnose.oom.failure import Failure
from forgather_mem.diagnose.oom.recognition import OutOfMemory

FOUND = OutOfMemory(kind="CPU allocator", where="host", error_type="", message="")
_FOUND = {"where", "kind", "requested_bytes"}
_NAMES = {"parts": "in_use", "frames": "functions"}


def failure_of(**facts: Any) -> Failure:
    """The record with these facts: those of the error and of the batch by their own names."""
    return replace(Failure(found=FOUND), **facts)


def replace(thing: Any, **facts: Any) -> Any:
    """As `dataclasses.replace`; of a failure also what its parts say."""
    if not isinstance(thing, Failure):
        return dataclasses.replace(thing, **facts)
    facts = {_NAMES.get(name, name): value for name, value in facts.items()}
    found = {name: facts.pop(name) for name in _FOUND & set(facts)}
    batch = thing.batch
    if {"rows", "length", "sample"} & set(facts):
        now = batch or Batch(0, None)
        rows = facts.pop("rows", now.rows)
        batch = Batch(rows, facts.pop("length", now.length), facts.pop("sample", now.sample)) if rows else None
    return dataclasses.replace(thing, **{"batch": batch, **facts}, found=dataclasses.replace(thing.found, **found))
