"""Which names may a template use, and what object does an allowed name become?

A name is checked as text before anything is imported, and the object again by the place where it is defined.
Who may widen the policy: the person who calls (arguments, command line, environment, the `pyproject.toml` of
the current folder). Never a template, a variable, or the folder a template lies in.
"""

from __future__ import annotations

import functools
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from forgather_mem.config import refusal as refusals
from forgather_mem.config.allowed import ALIASES, BUILTINS, EXACT, GRANTS, VALUE_FUNCTIONS, Grant, is_hard
from forgather_mem.config.arguments import code_argument
from forgather_mem.config.entries import entries_of_environment, entries_of_folder, parse_entry
from forgather_mem.config.imports import (
    NoSuchName,
    find_file,
    find_folder,
    import_file,
    import_module,
    out_of_place,
    walk,
)
from forgather_mem.config.names import Name, is_within, parse_name
from forgather_mem.config.places import Place
from forgather_mem.config.refusal import Refusal, Refused

DEFAULT = "open by default"
_HARD = "can run or fetch code, so that only an exact entry opens it"
_VALUES = frozenset(BUILTINS) | frozenset(VALUE_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class NameUse:
    """A name where a template uses it.

    Attributes:
        name: As the template writes it, without a trailing `@...`.
        place: Where it stands.
        path: Where in the graph, as `$.trainer_callbacks.gc`.
        directory: Folder of the template, for the relative path of a file; None for text from memory.
        submodule_searchpath: For a file: folders in which its relative imports look.
    """

    name: str
    place: Place
    path: str
    directory: str | None = None
    submodule_searchpath: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the policy says of a name.

    Attributes:
        name: As the template writes it.
        allowed: Whether it may be used. The object must still be defined where the entry says.
        why: "open by default", "'my_module' allows it", or half a sentence with the reason of the refusal.
        entry: The allow entry that would open a refused name; "" when none can.
        is_file: The entry is one for `allow_files`.
    """

    name: str
    allowed: bool
    why: str
    entry: str = ""
    is_file: bool = False


@dataclass(frozen=True, slots=True)
class _Opening:
    """How an allowed name is opened: which reading of it, and where the object must be defined."""

    name: Name
    why: str
    namespace: str | None = None  # None: an exact entry, defined anywhere
    grant: Grant | None = None
    alias: Name | None = None  # ours, when the name does not import


class Policy:
    """What a template may name.

    Args:
        allow: Namespaces ("my_module": what is defined in it or below it), exact names ("json:JSONDecoder",
            "getattr"), or files ("callbacks.py").
        allow_files: Python files, or folders of them, by real path.

    Raises:
        ValueError: for an entry that is no namespace and no name.
    """

    UNSAFE_ANY: ClassVar[Policy]
    """Every name is allowed: for templates that you would run as Python. Warns once per process."""

    def __init__(self, allow: Sequence[str] = (), allow_files: Sequence[str | Path] = ()) -> None:
        if isinstance(allow, str):
            raise ValueError(f"allow={allow!r}: give a list, as in allow=[{allow!r}]")
        files = [allow_files] if isinstance(allow_files, str | Path) else list(allow_files)
        files += [entry for entry in allow if entry.endswith(".py")]
        entries = [parse_entry(entry) for entry in allow if not entry.endswith(".py")]
        self._exact = frozenset(str(entry) for entry in entries if isinstance(entry, Name))
        self._namespaces = tuple(entry for entry in entries if isinstance(entry, str))
        self._files = tuple(os.path.realpath(os.path.expanduser(file)) for file in files)
        self._any = False
        self._decided: dict[str, _Opening | Verdict] = {}

    @classmethod
    def of_person(cls, allow: Sequence[str] = (), allow_files: Sequence[str | Path] = ()) -> Policy:
        """The given entries and those a person wrote down: `FORGATHER_MEM_ALLOW` (separated by commas) and
        `[tool.forgather_mem] allow` in the `pyproject.toml` of the current folder."""
        if isinstance(allow, str):
            raise ValueError(f"allow={allow!r}: give a list, as in allow=[{allow!r}]")
        return cls([*allow, *entries_of_environment(), *entries_of_folder(Path.cwd())], allow_files)

    def __repr__(self) -> str:
        if self._any:
            return "Policy.UNSAFE_ANY"
        return f"Policy(allow={[*self._namespaces, *sorted(self._exact)]}, allow_files={list(self._files)})"

    @property
    def is_unsafe(self) -> bool:
        """Whether every name is allowed."""
        return self._any

    @property
    def opens_modules(self) -> bool:
        """Whether it allows anything besides the default, files apart."""
        return self._any or bool(self._namespaces or self._exact)

    def verdict(self, name: str, directory: str | None = None) -> Verdict:
        """What the policy says of one name, by its text alone: nothing is imported.

        >>> Policy().verdict("os:system").allowed, Policy().verdict("torch.optim:AdamW").why
        (False, 'open by default')
        """
        found = self._decide(name, directory)
        return found if isinstance(found, Verdict) else Verdict(name, True, found.why)

    def check(self, uses: Iterable[NameUse]) -> None:
        """Refuse all names that are not allowed, at once, having imported nothing.

        Raises:
            TemplateError: names every refused name and the one line that opens exactly these.
        """
        refused: dict[tuple[str, str], Refusal] = {}
        first = None
        for use in uses:
            found = self._decide(use.name, use.directory)
            if isinstance(found, Verdict):
                refusal = Refusal(use.name, _package(use.name), found.why, found.entry, found.is_file, str(use.place))
            elif use.submodule_searchpath and (folder := self._refused_folder(use)):
                why = f"looks for modules in {folder}, which is no folder of an allowed file"
                refusal = Refusal(use.name, "files", why, folder, True, str(use.place))
            else:
                continue
            first = first or use
            refused.setdefault((use.name, refusal.entry), refusal)
        if first:
            raise Refused.of(list(refused.values()), first.place, first.path)

    def load(self, use: NameUse) -> Callable[..., object]:
        """The callable that an allowed name means: import, walk, and check where it is defined.

        Raises:
            TemplateError: when the name is refused, does not exist, or is defined outside what was opened.
                What the imported module itself raises passes through.
        """
        self.check([use])
        opening = self._decide(use.name, use.directory)
        assert isinstance(opening, _Opening)
        try:
            return self._find(use, opening)
        except NoSuchName as error:
            raise use.place.error(str(error), path=use.path, hint=error.hint) from error

    def check_arguments(self, use: NameUse, args: Sequence[object], kwargs: Mapping[str, object]) -> None:
        """Refuse arguments that would make a class of transformers fetch and run code, unless a person opened
        the class by its exact name.

        Raises:
            TemplateError: names the argument.
        """
        if self._any or not use.name.startswith("transformers"):
            return
        opening = self._decide(use.name, use.directory)
        is_exact = isinstance(opening, _Opening) and opening.why != DEFAULT and opening.namespace is None
        if not is_exact and isinstance(opening, _Opening) and (found := code_argument(args, kwargs)):
            message = f"{found} would let {use.name} run code from elsewhere; a template may not set it"
            refusal = Refusal(use.name, "transformers", "", str(opening.name))
            raise Refused.of([refusal], use.place, use.path, message)

    def _find(self, use: NameUse, opening: _Opening) -> Callable[..., object]:
        name = opening.name
        if name.kind == "file":
            folders = [find_folder(folder, use.directory) for folder in use.submodule_searchpath]
            module = import_file(find_file(name.module, use.directory), folders)
            found = walk(module, name, strict=not self._any)
            return self._in_place(use, found, opening, module.__name__)
        try:
            module = import_module(name.module, anywhere=opening.why != DEFAULT)
            found = walk(module, name, strict=not self._any)
        except (NoSuchName, ImportError):  # Forgather is not installed, or not whole, or moved the class
            if opening.alias is None:
                raise
            return walk(import_module(opening.alias.module), opening.alias)
        return self._in_place(use, found, opening, opening.namespace)

    def _in_place(
        self, use: NameUse, found: Callable[..., object], opening: _Opening, namespace: str | None
    ) -> Callable[..., object]:
        name = opening.name
        if self._any or namespace is None or not (why := out_of_place(found, name, namespace, opening.grant)):
            return found
        entry = str(name) if name.kind == "module" else ""
        refusal = Refusal(use.name, _package(use.name), why, entry)
        raise Refused.of([refusal], use.place, use.path, f"{use.name!r} {why}; it was not called")

    def _decide(self, text: str, directory: str | None) -> _Opening | Verdict:
        if ".py:" in text:  # depends on the folder of the template and on what lies there now
            return self._decide_file(text, directory)
        found = self._decided.get(text)
        if found is None:
            found = self._decided[text] = self._decide_name(text)
        return found

    def _decide_name(self, text: str) -> _Opening | Verdict:
        try:
            name = parse_name(text, private=self._any)
        except ValueError as error:
            return Verdict(text, False, f"can't be used ({error})")
        if self._any:
            _warn_unsafe()
            return _Opening(name, "Policy.UNSAFE_ANY")
        for reading in name.readings():
            if str(reading) in self._exact:
                return _Opening(reading, f"{str(reading)!r} allows it")
        if any(is_hard(reading.dotted) for reading in name.readings()):
            return Verdict(text, False, _HARD, str(name))
        opening = self._by_namespace(name) or _default(name)
        return opening or Verdict(text, False, refusals.NOT_LISTED, refusals.entry_for(name))

    def _by_namespace(self, name: Name) -> _Opening | None:
        for reading in name.readings() if name.kind == "module" else ():
            for namespace in self._namespaces:
                if is_within(reading.module, namespace):
                    return _Opening(reading, f"{namespace!r} allows it", namespace)
        return None

    def _decide_file(self, text: str, directory: str | None) -> _Opening | Verdict:
        try:
            name = parse_name(text, private=self._any)
            path = str(find_file(name.module, directory))
        except (ValueError, NoSuchName) as error:
            return Verdict(text, False, f"can't be used ({error})")
        if self._any:
            _warn_unsafe()
            return _Opening(name, "Policy.UNSAFE_ANY")
        if any(path == file or path.startswith(file.rstrip(os.sep) + os.sep) for file in self._files):
            return _Opening(name, f"{os.path.relpath(path)!r} is an allowed file")
        return Verdict(text, False, refusals.NOT_LISTED, os.path.relpath(path), True)

    def _refused_folder(self, use: NameUse) -> str | None:
        own = [os.path.dirname(file) if file.endswith(".py") else file for file in self._files]
        for folder in use.submodule_searchpath if not self._any else ():
            path = str(find_folder(folder, use.directory))
            if not any(path == o or path.startswith(o.rstrip(os.sep) + os.sep) for o in own):
                return os.path.relpath(path)
        return None


Policy.UNSAFE_ANY = Policy()
Policy.UNSAFE_ANY._any = True


def _default(name: Name) -> _Opening | None:
    if name.kind == "built-in":
        return _Opening(name, DEFAULT) if name.qualname in _VALUES else None
    for reading in name.readings():
        text = str(reading)
        if text in ALIASES:
            return _Opening(reading, DEFAULT, alias=parse_name(ALIASES[text]))
        if text in EXACT:
            return _Opening(reading, DEFAULT)
        for grant in GRANTS:
            if grant.modules.fullmatch(reading.module) and grant.names.fullmatch(reading.qualname):
                return _Opening(reading, DEFAULT, grant.defined_in, grant)
    return None


def _package(text: str) -> str:
    if ".py:" in text:
        return "files"
    return "built-ins" if text.isidentifier() else text.partition(":")[0].partition(".")[0][:80]


@functools.cache
def _warn_unsafe() -> None:
    text = "Policy.UNSAFE_ANY: this process builds whatever a template names; use it for your own templates only"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
