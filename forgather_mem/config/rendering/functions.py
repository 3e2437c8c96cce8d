"""The functions that a template may call.

The names are Forgather's: times, paths, and the platform's folders for a user's files. They are plain functions of
plain strings; the sandbox handles tainted values.
"""

from __future__ import annotations

import datetime
import getpass
import os
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

_FILE_TIME = "%Y-%m-%dT%H-%M-%S"


def _local(moment: datetime.datetime) -> datetime.datetime:
    """Without a time zone."""
    return moment.astimezone().replace(tzinfo=None)


def _utc(moment: datetime.datetime) -> datetime.datetime:
    return moment.replace(tzinfo=None)


TIMES: Final[Mapping[str, Callable[[datetime.datetime], object]]] = MappingProxyType(
    {
        "now": _local,
        "utcnow": _utc,
        "isotime": lambda moment: _local(moment).isoformat(timespec="seconds"),
        "utcisotime": lambda moment: _utc(moment).isoformat(timespec="seconds"),
        "filetime": lambda moment: _local(moment).strftime(_FILE_TIME),  # suitable for a file name
        "utcfiletime": lambda moment: _utc(moment).strftime(_FILE_TIME),
    }
)
"""What a template calls without arguments. All of them see the moment of the render, even if it is rendered again for
its source map."""


def modname_from_path(path: str) -> str:
    """The module name of a Python file.

    >>> modname_from_path("src/my_model.py")
    'my_model'
    """
    return os.path.splitext(os.path.basename(path))[0]


def user_home_dir() -> str:
    return os.path.expanduser("~")


def forgather_config_dir() -> str:
    return _FOLDERS["user_config_dir"]("forgather", getpass.getuser())


def _folder(name: str, variable: str, default: str) -> Callable[..., str]:
    """A folder of the XDG base directory specification 0.8: the variable if it is an absolute path, else the default.
    `appauthor` has an effect on Windows only."""

    def folder(appname: str | None = None, appauthor: str | None = None, version: str | None = None) -> str:
        first = os.environ.get(variable, "").split(os.pathsep)[0]
        base = first if os.path.isabs(first) else os.path.expanduser(default)
        return os.path.join(base, *([appname, *([version] if version else [])] if appname else []))

    folder.__name__ = name
    return folder


_FOLDERS = {
    name: _folder(name, *where)
    for name, where in {
        "user_data_dir": ("XDG_DATA_HOME", "~/.local/share"),
        "user_cache_dir": ("XDG_CACHE_HOME", "~/.cache"),
        "user_config_dir": ("XDG_CONFIG_HOME", "~/.config"),
        "site_data_dir": ("XDG_DATA_DIRS", "/usr/local/share"),
        "site_config_dir": ("XDG_CONFIG_DIRS", "/etc/xdg"),
    }.items()
}
FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = MappingProxyType(
    {
        **{
            name: getattr(os.path, name)
            for name in ("normpath", "abspath", "relpath", "dirname", "basename", "splitext")
        },
        **_FOLDERS,
        "joinpath": os.path.join,
        "repr": repr,
        "modname_from_path": modname_from_path,
        "user_home_dir": user_home_dir,
        "getcwd": os.getcwd,
        "forgather_config_dir": forgather_config_dir,
    }
)
