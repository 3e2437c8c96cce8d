"""Arguments that would make a class that is open by default run code, connect somewhere, or read a file.

Configurations and models of transformers are open by default, and a few of their arguments name code: a backbone's
`trust_remote_code`, an `auto_map`, an attention kernel on the hub, a checkpoint that timm unpickles. A template may
not set these. A configuration sets an attribute for any further argument, so neither may it set what would give
attributes other names (`attribute_map`, `__dict__`).

TensorBoard opens an address where a folder is meant. So a template may give one only where a person allowed it, or
where nothing opens it: an argument, or a key inside one, whose name says neither folder nor file is text. Arguments
without a name are looked at, and a chain (`reference::http://host`) is nothing but an address wherever it stands.
"""

from __future__ import annotations

import os
import re
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set, ValuesView
from dataclasses import dataclass

from forgather_mem.config.graph.nodes import DictNode, ListNode, Node

CODE_SWITCHES = frozenset(
    {
        "attribute_map", "auto_map", "backbone_kwargs", "checkpoint_path", "custom_pipelines", "model_args",
        "pretrained_cfg", "pretrained_cfg_overlay", "trust_remote_code",
    }
)  # fmt: skip
"""Arguments that lead to third-party code when set to any true value."""

KERNELS = ("attn_implementation", "experts_implementation")
"""Parts of argument names whose value may name a repository with a kernel ("owner/name")."""

BACKBONES = ("architecture", "backbone", "backbone_checkpoint")
"""Arguments that may name a folder or repository with a model, and so that model's code."""

FILES = ("accelerator_config", "deepspeed", "fsdp_config")
"""Arguments that are a mapping, or the name of a JSON file that is read at once."""

ROOTS = frozenset(("cgroup_root", "proc_root"))
"""Arguments that name another folder for the kernel's files: a probe reads and writes there."""

PLACES = ("checkpoint", "comment", "dir", "file", "folder", "path", "root", "stream", "suffix", "writer")
"""Parts of the names of arguments that are opened, or become a part of what is."""

WEIGHTS = ("generation_config", "target_lang")
"""Arguments of models that are read from the model's folder or repository: `target_lang` names an adapter there."""

HUB = "hf://"
"""What a person allows for uploads to Hugging Face's hub."""

_PLACE = re.compile("|".join(PLACES))
_TEXT = ""
"""The key of an item of a list that is not opened."""
_ADDRESS = re.compile(r"[\x00-\x20]*(?:[\w.+-]{2,}:/|[\w.+-]+://|[\w.+-]*::)")
_CHAIN = re.compile(r"[\x00-\x20]*(?:[\w.+-]*::)+[\w.+-]+:/")
_UNREAD = dict.fromkeys(map(ord, "\t\r\n"))  # who parses an address leaves them out
_HOST = re.compile(r"(?:[\w.+-]+::)*[\w.+-]+://(?:(?!::)[\w.:@+~-])*")


@dataclass(frozen=True, slots=True)
class Forbidden:
    """An argument that a template may not give.

    Attributes:
        message: What it is, and what it would do.
        is_address: It is refused for the address that it holds; else the exact name of the class opens it.
        entry: The allow entry for the address; "" when there is none.
    """

    message: str
    is_address: bool = False
    entry: str = ""


class ArgumentCheck:
    """Looks at the arguments of one construction, at each list and mapping once.

    Args:
        is_allowed: Whether a person allowed an address.
    """

    def __init__(self, is_allowed: Callable[[str], bool]) -> None:
        self._is_allowed = is_allowed
        self._clean: dict[tuple[int, bool], object] = {}  # kept alive, so that no other object gets the number

    def address(self, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Forbidden | None:
        """The first address among the arguments of a call that nobody allowed, or another root."""
        for root in sorted(ROOTS.intersection(kwargs)):
            return Forbidden(f"{root}={kwargs[root]!r:.60} would let {name} read and write elsewhere")
        for key, value in _pairs(args, kwargs, self._clean):
            text = _as_text(value)
            pattern = _ADDRESS if _is_opened(key) else _CHAIN
            if text is not None and pattern.match(text.translate(_UNREAD)) and not self._is_allowed(text):
                return Forbidden(f"{_shown(key, text)} would let {name} open an address", True, entry_for_address(text))
        return None

    def of_transformers(self, name: str, args: Sequence[object], kwargs: Mapping[str, object]) -> Forbidden | None:
        """The first argument of a class of transformers that leads to code, to an upload, or to a file elsewhere.

        >>> check = ArgumentCheck(lambda address: False)
        >>> check.of_transformers("BertConfig", [], {"text_config": {"trust_remote_code": True}}).message
        'trust_remote_code=True would let BertConfig run code from elsewhere'
        >>> check.of_transformers("BertConfig", [], {"attn_implementation": "sdpa", "backbone": "resnet50"}) is None
        True
        """
        for key, value in _pairs(args, kwargs, {}):
            if isinstance(key, str) and not isinstance(value, Node) and _leads_to_code(key, value):
                return Forbidden(f"{key}={value!r:.60} would let {name} run code from elsewhere")
            if key == "push_to_hub" and value and not isinstance(value, Node) and not self._is_allowed(HUB):
                return Forbidden(f"push_to_hub would let {name} upload to the hub", True, HUB)
            text = _as_text(value)
            if text is not None and (key in WEIGHTS or (key in FILES and not _is_file_here(text))):
                return Forbidden(f"{_shown(key, text)} would let {name} read a file or a repository; write a mapping")
        return None


def _leads_to_code(key: str, value: object) -> bool:
    if key in CODE_SWITCHES or key.startswith("__"):
        return bool(value)
    texts = value.values() if isinstance(value, Mapping) else [value]  # one per part of a model
    if any(kernel in key for kernel in KERNELS):
        return any("/" in str(text) for text in texts)
    if key in BACKBONES:
        return any("/" in str(text) or ":" in str(text) or os.path.exists(str(text)) for text in texts)
    return False


def is_below(address: str, prefix: str) -> bool:
    """Whether an address is another one or lies below it.

    >>> is_below("s3://bucket/run", "s3://bucket"), is_below("s3://bucket2/run", "s3://bucket")
    (True, False)
    """
    if f"{address}/" == prefix:
        return True
    rest = address.removeprefix(prefix)
    if not address.startswith(prefix) or "::" in rest or "\\" in rest or ".." in rest:
        return False
    return not rest or prefix.endswith("/") or rest.startswith("/")


def addresses_in(values: Mapping[str, object]) -> Iterator[str]:
    """The addresses among values that a person gives, also deep in lists and mappings."""
    for _, value in _pairs((), values, {}):
        text = _as_text(value)
        if text is not None and _ADDRESS.match(text.translate(_UNREAD)):
            yield text


def entry_for_address(address: str) -> str:
    """The allow entry for all that is on the host or in the bucket of an address; "" when none opens it.

    >>> entry_for_address("s3://bucket/logs/run1"), entry_for_address("simplecache::http://host")
    ('s3://bucket/', 'simplecache::http://host/')
    """
    found = _HOST.match(address)
    entry = found[0] + ("" if found[0].endswith("/") else "/") if found else ""
    return entry if is_below(address, entry) else ""


def _pairs(
    args: Sequence[object], kwargs: Mapping[str, object], clean: dict[tuple[int, bool], object]
) -> Iterator[tuple[object, object]]:
    """Every value among some arguments with its key or None, those inside lists and mappings too, and inside the
    nodes that will become these. What is in a list that would be opened has the list's key.

    Args:
        args: By position.
        kwargs: By name.
        clean: The containers that need not be looked at again; more are added.
    """
    stack: list[tuple[object, object]] = [*((None, value) for value in args), *kwargs.items()]
    while stack:
        key, value = stack.pop()
        yield key, value
        if isinstance(value, str | bytes | int | float | None):
            continue
        is_opened = _is_opened(key)
        inside = _inside(value, key if is_opened else _TEXT)
        if inside is not None and (id(value), is_opened) not in clean:
            clean[id(value), is_opened] = value
            stack.extend(inside)


def _is_opened(key: object) -> bool:
    return key is None or (isinstance(key, str) and _PLACE.search(key) is not None)


def _inside(value: object, key: object) -> Iterator[tuple[object, object]] | None:
    """Keys and values of a container, `key` where there are none."""
    if isinstance(value, DictNode | ListNode):
        value = value.entries if isinstance(value, DictNode) else value.items
    if isinstance(value, Mapping):
        return iter(value.items())
    is_of_c = type(value).__module__ in ("builtins", "_collections")  # the latter of a deque
    if isinstance(value, Iterator) and is_of_c and not isinstance(value, Generator):
        value = value.__reduce__()[1]  # what it goes over, with nothing taken from it
    if isinstance(value, list | tuple | deque | Set | ValuesView):
        return ((key, item) for item in value)
    return None


def _as_text(value: object) -> str | None:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if isinstance(value, str) else None


def _is_file_here(text: str) -> bool:
    """Whether it is a regular file in the working folder, or below it, links resolved."""
    real, here = os.path.realpath(text), os.path.realpath(os.getcwd())
    return real.startswith(os.path.join(here, "")) and os.path.isfile(real)


def _shown(key: object, text: str) -> str:
    return f"{key}={text!r:.60}" if isinstance(key, str) and key else f"{text!r:.60}"
