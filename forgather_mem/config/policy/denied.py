"""The error about refused names, and the line that opens exactly these."""

from __future__ import annotations

import importlib
import importlib.machinery
import shlex
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from forgather_mem.config.policy.allowlist import ALIASES, BUILTINS, EXACT, GRANTS, VALUE_FUNCTIONS
from forgather_mem.config.policy.names import Name
from forgather_mem.errors import TemplateError, nearest, ours

MAX_CHARS = 650  # of the message and of the hint, each
NOT_LISTED = "is not on the allow list"
_PACKAGES = tuple(f"forgather_mem{part}" for part in ("", ".callbacks", ".sinks", ".probes", ".actions"))
"""Packages of ours that list their names without loading what they name."""

_NEAR = 0.85


@dataclass(frozen=True, slots=True)
class Refusal:
    """One refused name.

    Attributes:
        name: As written in the template.
        package: The package it belongs to, for grouping; "built-ins", "files".
        why: Half a sentence, e.g. "is not on the allow list".
        entry: The allow entry that opens it; "" if none does.
        is_file: Whether the entry belongs in `allow_files`.
        at: Where the template uses it, as "file:line:column".
    """

    name: str
    package: str
    why: str
    entry: str = ""
    is_file: bool = False
    at: str = ""
    allowed: ClassVar = False


class Refused(TemplateError):
    """The policy refuses names: `names`. `entries` opens those that can be opened."""

    names: tuple[str, ...] = ()
    entries: tuple[str, ...] = ()

    @classmethod
    def of(cls, refusals: Sequence[Refusal], located: Callable[..., TemplateError], text: str | None = None) -> Refused:
        """The error about some names, in place of the one that `located` makes; the caller raises it."""
        error = cls(text or message(refusals))
        error.__dict__.update(located(error.message, hint=hint(refusals)).__dict__)
        error.names = tuple(refusal.name for refusal in refusals)
        error.entries = tuple(dict.fromkeys(refusal.entry for refusal in refusals if refusal.entry))
        return error


def entry_for(name: Name) -> str:
    """The narrowest sensible entry for a name: the namespace of the user's own package, or the exact name in somebody
    else's package."""
    if name.kind == "built-in":
        return str(name)
    root = name.module.partition(".")[0]
    return str(name) if _is_of_others(root) else root


def _is_of_others(root: str) -> bool:
    """Whether it belongs to the standard library or an installed package; found without importing it."""
    if root in sys.stdlib_module_names or root == "forgather_mem":
        return True
    try:
        spec = importlib.machinery.PathFinder.find_spec(root)
    except ours(ImportError, ValueError, OSError):
        return False
    places = [spec.origin or "", *(spec.submodule_search_locations or ())] if spec else []
    return any("site-packages" in place or "dist-packages" in place for place in places)


def message(refusals: Sequence[Refusal]) -> str:
    """The refused names: one in a sentence, several grouped by package."""
    if len(refusals) == 1:
        return f"{refusals[0].name!r} {refusals[0].why}; nothing was imported"
    packages = {refusal.package: number for number, refusal in reversed([*enumerate(refusals)])}
    lines = [f"{len(refusals)} names are refused; nothing was imported"]
    for shown, refusal in enumerate(sorted(refusals, key=lambda one: packages[one.package])):
        why = "" if refusal.why == NOT_LISTED else f": {refusal.why}"
        line = f"  {refusal.package}: {refusal.name:.100} ({refusal.at:.100}){why}"
        if sum(map(len, lines)) + len(line) > MAX_CHARS:
            lines.append(f"  ... and {len(refusals) - shown} more")
            break
        lines.append(line)
    return "\n".join(lines)


def hint(refusals: Sequence[Refusal]) -> str | None:
    """The one line that opens exactly these, for each of the three places where the user may write it."""
    names = sorted({refusal.entry for refusal in refusals if refusal.entry and not refusal.is_file})
    files = sorted({refusal.entry for refusal in refusals if refusal.entry and refusal.is_file})
    if not names and not files:
        return None
    packages = sorted({refusal.entry if refusal.is_file else refusal.package for refusal in refusals if refusal.entry})
    trusted = f"if you wrote or trust {' and '.join(packages)}"
    options = [f"--allow {shlex.quote(entry)}" for entry in names]
    options += [f"--allow-file {shlex.quote(entry)}" for entry in files]
    python = [f"allow={_listed(names)}"] if names else []
    python += [f"allow_files={_listed(files)}"] if files else []
    places = [
        " ".join(options),
        f"ConfigEnvironment(..., {', '.join(python)})",
        f"[tool.forgather_mem] allow = {_listed([*names, *files])}",
    ]
    meant = similar_name(refusals[0].name) if len(refusals) == 1 and refusals[0].why == NOT_LISTED else None
    if meant is not None:
        trusted = f"did you mean {meant!r}? Otherwise, {trusted}"
    for shown in (places, places[:1]):
        text = f"{trusted}:  " + "  |  ".join(shown)
        if len(text) < MAX_CHARS:
            return text
    return f"if you wrote or trust these {len(packages)} packages:  forgather-mem allow TEMPLATE  lists and opens them"


def _listed(entries: Sequence[str]) -> str:
    return "[" + ", ".join('"' + entry.replace("\\", "\\\\").replace('"', '\\"') + '"' for entry in entries) + "]"


def similar_name(text: str) -> str | None:
    """The name, open by default, that looks most like a refused one; None if none does.

    >>> similar_name("forgather_mem.calbacks:TBMemoryLoger"), similar_name("datetime:timedleta")
    ('forgather_mem.callbacks:TBMemoryLogger', 'datetime:timedelta')
    >>> similar_name("PeakMemory"), similar_name("sortd"), similar_name("my_module:Thing")
    ('forgather_mem.callbacks:PeakMemory', 'sorted', None)
    """
    module, _, name = text.rpartition(":")
    known = _known()
    if not module:
        places = {name: module for module, names in reversed(known.items()) for name in names}
        near = nearest(text, places, _NEAR)
        return f"{places[near]}:{near}".removeprefix(":") if near else None
    near_module = module if module in known else nearest(module, known, _NEAR)
    names = known.get(near_module or "", [])
    near = name if name in names or not names else nearest(name, names, _NEAR)
    if near is None and module == "forgather_mem":  # where the name is, or is nearly, in another of our modules
        return similar_name(name)
    found = f"{near_module}:{near}"
    return found if near_module and near is not None and found != text else None


def _known() -> dict[str, list[str]]:
    """Names by module, built-ins by none; no names where a module can't tell them without being imported."""
    known: dict[str, list[str]] = {grant.defined_in: [] for grant in GRANTS}
    for entry in (*ALIASES, *EXACT):
        module, _, name = entry.partition(":")
        known.setdefault(module, []).append(name)
    for package in reversed(_PACKAGES):
        names: Iterable[str] = importlib.import_module(package).__all__
        known[package] = [name for name in names if package != "forgather_mem" or f"{package}:{name}" in EXACT]
    return {**known, "": [*BUILTINS, *VALUE_FUNCTIONS]}
