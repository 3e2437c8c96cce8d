"""The policy: decides which names a template may use and turns an allowed name into its object.

A name is checked as text before anything is imported, and the object again by where it is defined. Only the caller may
widen the policy (arguments, command line, environment, the `pyproject.toml` of the current folder); never a template, a
variable, or the folder of a template.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import ClassVar

from forgather_mem.config.policy import denied as refusals
from forgather_mem.config.policy.allow_entries import Address, entries_of_environment, entries_of_folder, parse_entry
from forgather_mem.config.policy.allowlist import ALIASES, BUILTINS, EXACT, GRANTS, VALUE_FUNCTIONS, Grant, is_hard
from forgather_mem.config.policy.denied import Refusal, Refused
from forgather_mem.config.policy.names import Name, is_within, parse_name
from forgather_mem.config.policy.remote_code import Forbidden, is_below
from forgather_mem.config.source.rendered import SourceLocation
from forgather_mem.errors import did_you_mean, nearest, ours

_CACHED = type(functools.lru_cache(len))


class NoSuchName(LookupError):
    """The module, or the name in it, does not exist; the message is for people."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


def import_module(name: str, *, anywhere: bool = True) -> ModuleType:
    """Import a module by its dotted name.

    Args:
        name: The module.
        anywhere: False excludes the working folder: a name that is open by default refers to the installed package, not
            to a folder of the same name that came with somebody's templates.

    Raises:
        NoSuchName: if this module does not exist. Exceptions of the module itself pass through.
    """
    if not anywhere:
        _check_installed(name.partition(".")[0])
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise NoSuchName(f"there is no module {error.name!r} to import", _other_module(error.name)) from error
        raise


def _other_module(name: str) -> str | None:
    """A hint with the module of the same package whose name is closest."""
    package, _, last = name.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ())
    known = [module.name for module in pkgutil.iter_modules(folders) if not module.name.startswith("_")]
    near = nearest(last, known)
    return f"did you mean '{package}.{near}'?" if near else None


def _check_installed(root: str) -> None:
    if root in sys.modules:
        return
    spec = importlib.util.find_spec(root)
    if spec is None:
        raise NoSuchName(f"there is no installed package {root!r}")
    here = os.path.realpath(os.getcwd())
    places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
    if any(os.path.realpath(os.path.dirname(place)) == here for place in places if place):
        raise NoSuchName(f"{root!r} is found in the working folder, not as an installed package")


def find_file(written: str, directory: str | None) -> Path:
    """The real path of a Python file, looked up beside the template, then in the working folder.

    Raises:
        NoSuchName: if there is no such file.
    """
    for path in _places(written, directory):
        if path.is_file():
            return path
    beside = f"beside the template ({directory}) or " if directory else ""
    near = did_you_mean(written, [name for folder in (directory, ".") if folder for name in _python_files(folder)])
    raise NoSuchName(f"there is no file {written!r} {beside}in the working folder" + (f"; {near}" if near else ""))


def _python_files(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if name.endswith(".py")]
    except ours(OSError):
        return []


def find_package_folder(written: str, directory: str | None) -> Path:
    """The real path of a folder, looked up like a file; it need not exist."""
    beside, here = _places(written, directory)
    return beside if beside.is_dir() else here


def _places(written: str, directory: str | None) -> list[Path]:
    """The real path beside the template, and in the working folder."""
    folders = (directory or "", os.getcwd())
    return [Path(os.path.realpath(os.path.join(folder, os.path.expanduser(written)))) for folder in folders]


def import_file(path: Path, searchpath: Sequence[Path] = ()) -> ModuleType:
    """Run a Python file as a module of its own, once per content of the file.

    Its relative imports are looked up in `searchpath`, then beside the file. Two files with the same base name are two
    modules. If the file raises, nothing of it is left in `sys.modules`.
    """
    import hashlib  # loads OpenSSL: 3 ms of every start

    source = path.read_bytes()
    digest = hashlib.blake2b(str(path).encode() + b"\0" + source, digest_size=6).hexdigest()
    name = f"{path.stem}_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    folders = [str(folder) for folder in (*searchpath, path.parent)]
    spec = importlib.util.spec_from_file_location(name, path, submodule_search_locations=folders)
    assert spec is not None  # the path ends in .py
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    done = False
    try:
        # Not `exec_module`: it may take the bytecode of an earlier content, of the same second and size
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
        done = True
    finally:
        if not done:
            for loaded in [key for key in sys.modules if key == name or key.startswith(name + ".")]:
                del sys.modules[loaded]
    return module


def walk_qualname(module: ModuleType, name: Name, *, strict: bool = True) -> Callable[..., object]:
    """The callable that the name refers to in an imported module.

    If strict, the path may lead through classes only: never through a module that was merely imported there, an
    instance, a partial or a method.

    Raises:
        NoSuchName: for a part that does not exist, or that the path may not lead through.
    """
    found: object = module
    parts = name.qualname.split(".")
    for i, part in enumerate(parts):
        if strict and i and not isinstance(found, type):
            raise NoSuchName(
                f"{'.'.join(parts[:i])!r} in {name.module} is not a class; a name can only lead through classes"
            )
        try:
            found = getattr(found, part)
        except AttributeError as error:
            hint = did_you_mean(part, _names_in(found, part))
            near = refusals.similar_name(part) or ""
            if name.module.startswith("forgather_mem") and near.endswith(f":{part}"):  # in another module of ours
                hint = f"did you mean {near!r}?"
            raise NoSuchName(f"{name.module} has no {part!r}", hint) from error
        if isinstance(found, ModuleType) and found is sys.modules.get(f"{name.module}.{part}") and i < len(parts) - 1:
            rest = Name("module", f"{name.module}.{part}", ".".join(parts[i + 1 :]))
            return walk_qualname(found, rest, strict=strict)
    if not callable(found):
        raise NoSuchName(f"{name} is neither a class nor a function; it is of type {type(found).__name__}")
    return found


def _names_in(found: object, wanted: str) -> list[str]:
    """Its public names, also those that are loaded on first use; those that look most like the wanted one first."""
    known = [key for key in dir(found) if isinstance(key, str) and not key.startswith("_")]
    return sorted(known, key=lambda key: (key[:1] != wanted[:1], abs(len(key) - len(wanted))))


def definition_site(found: object) -> Name | None:
    """Where a class or function is defined, or None if unknown (instances, partials).

    >>> from collections import OrderedDict
    >>> str(definition_site(inspect.unwrap)), definition_site(functools.partial(len))
    ('inspect:unwrap', None)
    """
    if isinstance(found, MethodType) and isinstance(found.__self__, type):
        found = found.__func__
    if isinstance(found, FunctionType | _CACHED):
        try:
            found = inspect.unwrap(found)
        except ValueError:  # a cycle of __wrapped__
            return None
    if not isinstance(found, type | FunctionType | BuiltinFunctionType):
        return None
    module, qualname = getattr(found, "__module__", None), getattr(found, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        return None
    return Name("module", module, qualname)


def out_of_place(found: object, name: Name, namespace: str, grant: Grant | None) -> str | None:
    """Why an object is not one that the namespace (or the grant of the default table) opens, or None."""
    site = definition_site(found)
    if site is None:
        return f"is of type {type(found).__name__}, whose origin can't be told"
    if not is_within(site.module, namespace):
        return f"is defined in {site.module}, outside {namespace}"
    if grant is None and name.kind == "module" and is_hard(site.dotted):
        return f"is {site}, which only an exact entry opens"
    if grant is not None and not _is_granted(found, name, grant):
        return "is not among the names that are open by default"
    return None


def _is_granted(found: object, name: Name, grant: Grant) -> bool:
    if grant.bases:
        bases = found.__mro__ if isinstance(found, type) else ()
        return not grant.bases.isdisjoint(f"{base.__module__}:{base.__qualname__}" for base in bases)
    if not grant.listed:
        return isinstance(found, type)
    for module in map(sys.modules.get, (name.module, grant.defined_in)):
        listing = getattr(module, "__all__", None)
        if listing is None and getattr(found, "__module__", None) == grant.defined_in and isinstance(found, type):
            return True
        if listing is not None and name.qualname in listing and getattr(module, name.qualname) is found:
            return True
    return False


DEFAULT = "open by default"
_HARD = "can run or fetch code, so only an exact entry allows it"
_GUARDED = frozenset(("forgather", "forgather_mem", "torch", "transformers"))
_VALUES = frozenset(BUILTINS) | frozenset(VALUE_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class NameUse:
    """A use of a name in a template.

    Attributes:
        name: As written in the template, without a trailing `@...`.
        place: Its location.
        path: Its path in the graph, e.g. `$.trainer_callbacks.gc`.
        directory: Folder of the template, for the relative path of a file; None for text from memory.
        submodule_searchpath: For a file: folders searched by its relative imports.
    """

    name: str
    place: SourceLocation
    path: str
    directory: str | None = None
    submodule_searchpath: tuple[str, ...] = ()


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
        if isinstance(allow, str):
            raise ValueError(f"allow={allow!r}: give a list, as in allow=[{allow!r}]")
        return cls([*allow, *entries_of_environment(), *entries_of_folder(Path.cwd())], allow_files)

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
                refusal = replace(found, at=str(use.place))
            elif use.submodule_searchpath and (folder := self._refused_folder(use)):
                why = f"looks for modules in {folder}, which holds no allowed file"
                refusal = Refusal(use.name, "files", why, folder, True, str(use.place))
            else:
                continue
            first = first or use
            refused.setdefault((use.name, refusal.entry), refusal)
        if first:
            raise Refused.of(list(refused.values()), first.place, first.path)

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
        except NoSuchName as error:
            raise use.place.error(str(error), path=use.path, hint=error.hint) from error

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
        return Refused.of([refusal], use.place, use.path, f"{found.message}; a template may not set it")

    def _find(self, use: NameUse, opening: Opening) -> Callable[..., object]:
        name = opening.name
        if name.kind == "file":
            folders = [find_package_folder(folder, use.directory) for folder in use.submodule_searchpath]
            module = import_file(find_file(name.module, use.directory), folders)
            found = walk_qualname(module, name, strict=not self.is_unsafe)
            return self._in_place(use, found, opening, module.__name__)
        try:
            module = import_module(name.module, anywhere=opening.why != DEFAULT)
            found = walk_qualname(module, name, strict=not self.is_unsafe)
        except (NoSuchName, ImportError):  # Forgather is not installed, incomplete, or has moved the class
            if opening.alias is None:
                raise
            return walk_qualname(import_module(opening.alias.module), opening.alias)
        return self._in_place(use, found, opening, opening.namespace)

    def _in_place(
        self, use: NameUse, found: Callable[..., object], opening: Opening, namespace: str | None
    ) -> Callable[..., object]:
        name = opening.name
        if self.is_unsafe or namespace is None or not (why := out_of_place(found, name, namespace, opening.grant)):
            return found
        entry = str(name) if name.kind == "module" else ""
        refusal = Refusal(use.name, _package(use.name), why, entry)
        raise Refused.of([refusal], use.place, use.path, f"{use.name!r} {why}; it was not called")

    def _decide(self, text: str, directory: str | None) -> Opening | Refusal:
        try:
            name = parse_name(text, private=self.is_unsafe)
            path = str(find_file(name.module, directory)) if name.kind == "file" else ""
        except (ValueError, NoSuchName) as error:
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
            return Refusal(text, _package(text), _HARD, str(name))
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
            path = str(find_package_folder(folder, use.directory))
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
