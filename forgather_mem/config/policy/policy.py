"""The policy: decides which names a template may use and turns an allowed name into its object.

A name is checked as text before anything is imported, and the object again by where it is defined. Only the caller may
widen the policy (arguments, command line, environment, the `pyproject.toml` of the current folder); never a template, a
variable, or the folder of a template.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

from forgather_mem.config.policy import denied as refusals
from forgather_mem.config.policy import imports
from forgather_mem.config.policy.allow_entries import Address, entries_of_environment, entries_of_folder, parse_entry
from forgather_mem.config.policy.allowlist import ALIASES, BUILTINS, EXACT, GRANTS, VALUE_FUNCTIONS, Grant, is_hard
from forgather_mem.config.policy.denied import Refusal, Refused
from forgather_mem.config.policy.names import Name, is_within, parse_name
from forgather_mem.config.policy.remote_code import Forbidden, is_below
from forgather_mem.errors import TemplateError

DEFAULT = "open by default"
_GUARDED = frozenset(("forgather", "forgather_mem", "torch", "transformers"))
_VALUES = frozenset(BUILTINS) | frozenset(VALUE_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class NameUse:
    """A use of a name in a template.

    Attributes:
        name: As written in the template, without a trailing `@...`.
        error: Makes the error about it, of a message and a `hint`: only then is it located, which may render the
            template once more.
        directory: Folder of the template, for the relative path of a file; None for text from memory.
        submodule_searchpath: For a file: folders searched by its relative imports.
    """

    name: str
    error: Callable[..., TemplateError]
    directory: str | None = None
    submodule_searchpath: tuple[str, ...] = ()

    @property
    def at(self) -> str:
        """Its location, as "file:line:column"."""
        found = self.error("")
        return f"{found.template}:{found.line}:{found.column}"


@dataclass(frozen=True, slots=True)
class Opening:
    """How an allowed name is opened: which reading of it applies, and where the object must be defined.

    Attributes:
        name: The reading.
        why: "open by default", or "'my_module' allows it".
        namespace: Where the object must be defined; None for an exact entry, which may be defined anywhere.
        grant: The default that opens it.
        alias: Our own name, if this one can't be imported.
    """

    name: Name
    why: str
    namespace: str | None = None
    grant: Grant | None = None
    alias: Name | None = None
    allowed: ClassVar = True


class Policy:
    """The rules for what a template may name.

    Args:
        allow: Namespaces ("my_module": anything defined in it or below it), exact names ("json:JSONDecoder",
            "getattr"), files ("callbacks.py"), or addresses that arguments may hold ("s3://bucket/").
        allow_files: Python files, or folders of them, by real path.

    Raises:
        ValueError: for an entry that is neither a namespace nor a name.
    """

    UNSAFE_ANY: ClassVar[Policy]
    """Every name is allowed: only for templates that you would also run as Python. Warns once per process."""

    def __init__(self, allow: Sequence[str] = (), allow_files: Sequence[str | Path] = ()) -> None:
        if isinstance(allow, str):
            raise ValueError(f"allow={allow!r}: give a list, as in allow=[{allow!r}]")
        files = [allow_files] if isinstance(allow_files, str | Path) else list(allow_files)
        files += [entry for entry in allow if _is_file(entry)]
        entries = [parse_entry(entry) for entry in allow if not _is_file(entry)]
        self._exact = frozenset(str(entry) for entry in entries if isinstance(entry, Name))
        self._addresses = tuple(entry for entry in entries if isinstance(entry, Address))
        self._namespaces = tuple(entry for entry in entries if type(entry) is str)
        self._files = tuple(os.path.realpath(os.path.expanduser(file)) for file in files)
        self.is_unsafe = False  # True: every name is allowed
        self._decided: dict[str, Opening | Refusal] = {}

    @classmethod
    def of_person(cls, allow: Sequence[str] = (), allow_files: Sequence[str | Path] = ()) -> Policy:
        """The given entries and those the user has configured: `FORGATHER_MEM_ALLOW` (separated by commas) and
        `[tool.forgather_mem] allow` in the `pyproject.toml` of the current folder."""
        configured = [*entries_of_environment(), *entries_of_folder(Path.cwd())]
        return cls(allow if isinstance(allow, str) else [*allow, *configured], allow_files)  # a text is refused there

    def __repr__(self) -> str:
        if self.is_unsafe:
            return "Policy.UNSAFE_ANY"
        allow = [*self._namespaces, *sorted(self._exact), *map(str, self._addresses)]
        return f"Policy(allow={allow}, allow_files={list(self._files)})"

    @property
    def opens_modules(self) -> bool:
        """Whether it opens any module beyond the default, files aside."""
        return self.is_unsafe or bool(self._namespaces or self._exact)

    def verdict(self, name: str, directory: str | None = None) -> Opening | Refusal:
        """The decision about one name, from its text alone: nothing is imported.

        >>> Policy().verdict("os:system").allowed, Policy().verdict("torch.optim:AdamW").why
        (False, 'open by default')
        """
        found = self._decided.get(name)
        if found is None:
            found = self._decide(name, directory)
            if ".py:" not in name:  # that depends on the template's folder and its current contents
                self._decided[name] = found
        return found

    def check(self, uses: Iterable[NameUse]) -> None:
        """Refuse all disallowed names at once, without importing anything.

        Raises:
            TemplateError: with every refused name, and the one line that opens exactly these.
        """
        refused: dict[tuple[str, str], Refusal] = {}
        first = None
        for use in uses:
            found = self.verdict(use.name, use.directory)
            if isinstance(found, Refusal):
                refusal = replace(found, at=use.at)
            elif use.submodule_searchpath and (folder := self._refused_folder(use)):
                why = f"looks for modules in {folder}, which holds no allowed file"
                refusal = Refusal(use.name, "files", why, folder, True, use.at)
            else:
                continue
            first = first or use
            refused.setdefault((use.name, refusal.entry), refusal)
        if first:
            raise Refused.of(list(refused.values()), first.error)

    def load(self, use: NameUse) -> Callable[..., object]:
        """The callable that an allowed name refers to: imported, walked to, and checked for where it is defined.

        Raises:
            TemplateError: if the name is refused, does not exist, or is defined outside what was opened. Exceptions of
                the imported module itself pass through.
        """
        self.check([use])
        opening = self.verdict(use.name, use.directory)
        assert isinstance(opening, Opening)
        try:
            return self._find(use, opening)
        except imports.NoSuchName as error:
            raise use.error(str(error), hint=error.hint) from error

    def owns(self, path: str | os.PathLike[str]) -> bool:
        """Whether a person allowed a file, or a folder that it is in, links resolved; or everything."""
        real = os.path.realpath(path)
        return self.is_unsafe or any(real == file or real.startswith(os.path.join(file, "")) for file in self._files)

    def allows_address(self, address: str) -> bool:
        """Whether a person opened an address, or what it lies below."""
        return self.is_unsafe or any(is_below(address, prefix) for prefix in self._addresses)

    def guards(self, name: str) -> bool:
        """Whether the arguments of an allowed name are looked at: of all that is open by default, also when a person
        opened its whole package; not of what a person opened by its exact name, nor of their own code."""
        opening = None if self.is_unsafe or ".py:" in name else self.verdict(name, None)
        if not isinstance(opening, Opening):
            return False
        return opening.why == DEFAULT or (opening.namespace or "").partition(".")[0] in _GUARDED

    def refuse_argument(self, use: NameUse, found: Forbidden) -> Refused:
        """The error about an argument that a template may not give; the caller raises it."""
        opening = self.verdict(use.name, use.directory)
        assert isinstance(opening, Opening)
        entry = found.entry or ("" if found.is_address else str(opening.name))
        refusal = Refusal(use.name, entry if found.is_address else _package(use.name), "", entry)
        return Refused.of([refusal], use.error, f"{found.message}; a template may not set it")

    def _find(self, use: NameUse, opening: Opening) -> Callable[..., object]:
        name = opening.name
        try:
            if name.kind == "file":
                folders = [imports.find_package_folder(folder, use.directory) for folder in use.submodule_searchpath]
                module = imports.import_file(imports.find_file(name.module, use.directory), folders)
                opening = replace(opening, namespace=module.__name__)
            else:
                module = imports.import_module(name.module, anywhere=opening.why != DEFAULT)
            found = imports.walk_qualname(module, name, strict=not self.is_unsafe)
        except (imports.NoSuchName, ImportError):  # Forgather is not installed, incomplete, or has moved the class
            if opening.alias is None:
                raise
            return imports.walk_qualname(imports.import_module(opening.alias.module), opening.alias)
        within = opening.namespace
        if self.is_unsafe or within is None or not (why := imports.out_of_place(found, name, within, opening.grant)):
            return found
        entry = str(name) if name.kind == "module" else ""
        refusal = Refusal(use.name, _package(use.name), why, entry)
        raise Refused.of([refusal], use.error, f"{use.name!r} {why}; it was not called")

    def _decide(self, text: str, directory: str | None) -> Opening | Refusal:
        try:
            name = parse_name(text, private=self.is_unsafe)
            path = str(imports.find_file(name.module, directory)) if name.kind == "file" else ""
        except (ValueError, imports.NoSuchName) as error:
            return Refusal(text, _package(text), f"can't be used ({error})")
        if self.is_unsafe:
            _warn_unsafe()
            return Opening(name, "Policy.UNSAFE_ANY")
        if path:
            here = os.path.relpath(path)
            allowed = Opening(name, f"{here!r} is an allowed file")
            return allowed if self.owns(path) else Refusal(text, _package(text), refusals.NOT_LISTED, here, True)
        for reading in name.readings():
            if str(reading) in self._exact:
                return Opening(reading, f"{str(reading)!r} allows it")
        if any(is_hard(reading.dotted) for reading in name.readings()):
            return Refusal(text, _package(text), "can run or fetch code, so only an exact entry allows it", str(name))
        opening = self._by_namespace(name) or _default(name)
        return opening or Refusal(text, _package(text), refusals.NOT_LISTED, refusals.entry_for(name))

    def _by_namespace(self, name: Name) -> Opening | None:
        for reading in name.readings() if name.kind == "module" else ():
            for namespace in self._namespaces:
                if is_within(reading.module, namespace):
                    return Opening(reading, f"{namespace!r} allows it", namespace)
        return None

    def _refused_folder(self, use: NameUse) -> str | None:
        own = [os.path.dirname(file) if file.endswith(".py") else file for file in self._files]
        for folder in use.submodule_searchpath if not self.is_unsafe else ():
            path = str(imports.find_package_folder(folder, use.directory))
            if not any(path == o or path.startswith(o.rstrip(os.sep) + os.sep) for o in own):
                return os.path.relpath(path)
        return None


Policy.UNSAFE_ANY = Policy()
Policy.UNSAFE_ANY.is_unsafe = True


def _is_file(entry: str) -> bool:
    return entry.endswith(".py") and "://" not in entry


def _default(name: Name) -> Opening | None:
    if name.kind == "built-in":
        return Opening(name, DEFAULT) if name.qualname in _VALUES else None
    for reading in name.readings():
        text = str(reading)
        if text in ALIASES:
            return Opening(reading, DEFAULT, alias=parse_name(ALIASES[text]))
        if text in EXACT:
            return Opening(reading, DEFAULT)
        for grant in GRANTS:
            if grant.modules.fullmatch(reading.module) and grant.names.fullmatch(reading.qualname):
                return Opening(reading, DEFAULT, grant.defined_in, grant)
    return None


def _package(text: str) -> str:
    if ".py:" in text:
        return "files"
    return "built-ins" if text.isidentifier() else text.partition(":")[0].partition(".")[0][:80]


@functools.cache
def _warn_unsafe() -> None:
    text = "Policy.UNSAFE_ANY: this process builds whatever a template names; use it for your own templates only"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
