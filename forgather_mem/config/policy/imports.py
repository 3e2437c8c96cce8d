"""Imports what a name refers to: a module, a file, and the callable in it, checked by where it is defined."""

from __future__ import annotations

import functools
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType

from forgather_mem.config.policy import denied as refusals
from forgather_mem.config.policy.allowlist import Grant, is_hard
from forgather_mem.config.policy.names import Name, is_within
from forgather_mem.errors import Hinted, did_you_mean

_CACHED = type(functools.lru_cache(len))


class NoSuchName(Hinted, LookupError):
    """The module, or the name in it, does not exist; the message is for people."""


def import_module(name: str, *, anywhere: bool = True) -> ModuleType:
    """Import a module by its dotted name.

    Args:
        name: The module.
        anywhere: False excludes the working folder: a name that is open by default refers to the installed package, not
            to a folder of the same name that came with somebody's templates.

    Raises:
        NoSuchName: if this module does not exist. Exceptions of the module itself pass through.
    """
    root = name.partition(".")[0]
    if not anywhere and root not in sys.modules:
        spec = importlib.util.find_spec(root)
        if spec is None:
            raise NoSuchName(f"there is no installed package {root!r}")
        here = os.path.realpath(os.getcwd())
        places = [*(spec.submodule_search_locations or ()), spec.origin or ""]
        if any(os.path.realpath(os.path.dirname(place)) == here for place in places if place):
            raise NoSuchName(f"{root!r} is found in the working folder, not as an installed package")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(error.name + ".")):
            raise NoSuchName(f"there is no module {error.name!r} to import") from error
        raise


def find_file(written: str, directory: str | None) -> Path:
    """The real path of a Python file, looked up beside the template, then in the working folder.

    Raises:
        NoSuchName: if there is no such file.
    """
    for path in _places(written, directory):
        if path.is_file():
            return path
    beside = f"beside the template ({directory}) or " if directory else ""
    folders = filter(None, (directory, "."))
    near = did_you_mean(written, [path.name for folder in folders for path in Path(folder).glob("*.py")])
    raise NoSuchName(f"there is no file {written!r} {beside}in the working folder" + (f"; {near}" if near else ""))


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
    try:
        # Not `exec_module`: it may take the bytecode of an earlier content, of the same second and size
        exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
    except BaseException:
        for loaded in [key for key in sys.modules if is_within(key, name)]:
            del sys.modules[loaded]
        raise
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
            outer = ".".join(parts[:i])
            raise NoSuchName(f"{outer!r} in {name.module} is not a class; a name can only lead through classes")
        try:
            found = getattr(found, part)
        except AttributeError as error:
            known = [key for key in dir(found) if isinstance(key, str) and not key.startswith("_")]
            known.sort(key=lambda key: (key[:1] != part[:1], abs(len(key) - len(part))))  # as not all may be compared
            hint = did_you_mean(part, known)
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
