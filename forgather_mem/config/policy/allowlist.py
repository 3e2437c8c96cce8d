"""The allow list: names a template may use by default, names that need an exact entry, and old names of ours.

The policy's only table; its long lists are in `allowlist.txt`. It is plain text: reading it imports none of its names.
A test compares it with the installed packages.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

VALUE_FUNCTIONS = ("items", "keys", "values", "getitem")
"""Names that are not Python built-ins: methods of a mapping, and `x[key]`."""

OPENABLE = ("call", "named_list", "named_tuple", "named_dict")
"""Further names of Forgather that are not Python built-ins. `call` runs what it is given, so only an exact entry opens
it; the `named_` three are what `!list:@name`, `!tuple:@name` and `!dict:@name` become."""


def _lists() -> dict[str, list[str]]:
    """The names of `allowlist.txt` by its parts."""
    found: dict[str, list[str]] = {}
    file = os.path.join(os.path.dirname(__file__), "allowlist.txt")
    text: str = __loader__.get_data(file).decode()  # type: ignore[name-defined]  # from an archive, too
    for line in text.splitlines():
        head, *names = line.partition("#")[0].split() or [""]
        if head.startswith("["):
            part = found[line.strip()] = []
        elif head:
            part += [head + name for name in names] if head.endswith(":") else [head, *names]
    return found


_LISTS = _lists()
BUILTINS = tuple(_LISTS["[built-ins]"])
"""Python built-ins that make values; `config.construction.value_builtins` holds bounded versions of them."""

EXACT = frozenset(_LISTS["[exact]"])
"""Exactly these names, not their attributes."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A family of names that is open by default.

    Attributes:
        modules: Pattern of the modules the name may be written with; only these are imported.
        defined_in: The namespace in which the object must be defined.
        bases: The class must derive from one of these, given as module:name.
        listed: The class or function must be in the `__all__` of its module, or of `defined_in`; for a module without
            one, its classes count. With neither `bases` nor `listed`, any class is open.
        names: Pattern of the name, for what can be decided before an import.
    """

    modules: re.Pattern[str]
    defined_in: str
    bases: frozenset[str] = frozenset()
    listed: bool = False
    names: re.Pattern[str] = re.compile(r"[A-Za-z]\w*")


def _ours(package: str) -> Grant:
    return Grant(re.compile(rf"forgather_mem\.{package}(\.[a-z]\w*)*"), f"forgather_mem.{package}", listed=True)


_TRANSFORMERS = re.compile(
    r"transformers(\.(trainer\w*|integrations(\.\w+)*|configuration_utils|modeling_utils"
    r"|models\.\w+(\.(configuration|modeling)_\w+)?))?"
)
_TRANSFORMERS_NAMES = re.compile(
    r"(?!Auto[A-Z]|DataCollator)(?!\w*(Tokenizer|Processor|FeatureExtractor)(Fast)?\Z)x?[A-Z]\w*"
)
_OPTIM_BASES = frozenset(_LISTS["[bases of torch.optim]"])
GRANTS = (
    *map(_ours, ("callbacks", "probes", "actions", "sinks", "trackers", "demo")),
    Grant(re.compile(r"forgather_mem\.(telemetry\.)?triggers"), "forgather_mem.telemetry.triggers", listed=True),
    Grant(_TRANSFORMERS, "transformers", frozenset(_LISTS["[bases of transformers]"]), names=_TRANSFORMERS_NAMES),
    Grant(re.compile(r"torch\.optim(\.[a-z]\w*)?"), "torch.optim", _OPTIM_BASES, names=re.compile(r"[A-Z]\w*")),
    Grant(re.compile(r"forgather\.ml\.trainer\.callbacks(\.[a-z]\w*)?"), "forgather.ml.trainer.callbacks"),
)

HARD = frozenset(_LISTS["[hard]"])
"""Names that only an exact entry opens, together with everything below them; a namespace entry never does."""

HARD_LAST = frozenset({"from_pretrained", "load_from_checkpoint", "push_to_hub"})
"""Last parts of names that only an exact entry opens, whichever module defines them."""


def is_hard(dotted: str) -> bool:
    """Whether only an exact entry opens a name, given in dotted form.

    >>> is_hard("torch.load"), is_hard("torch.hub.load"), is_hard("torch.loads")
    (True, True, False)
    """
    parts = dotted.split(".")
    if parts[-1] in HARD_LAST:
        return True
    return any(".".join(parts[:end]) in HARD for end in range(1, len(parts) + 1))


ALIASES = {name: f"forgather_mem.callbacks:{name.partition(':')[2]}" for name in _LISTS["[of forgather]"]}
"""Old and current names of Forgather, and our replacement where Forgather's can't be imported."""
