"""The functions that a template may call.

The names are Forgather's: times, paths, and the platform's folders for a user's files. They are plain functions of
plain strings; the sandbox handles tainted values.
"""

from __future__ import annotations

import datetime
import getpass
import os
import sys
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

_FILE_TIME = "%Y-%m-%dT%H-%M-%S"
_MAC_SUPPORT = "Library/Application Support"


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
    return user_config_dir("forgather", getpass.getuser())


def user_data_dir(appname: str | None = None, appauthor: str | None = None, version: str | None = None) -> str:
    """The folder for a user's data, `~/.local/share` on Linux; `appauthor` has an effect on Windows only."""
    return _folder("XDG_DATA_HOME", "~/.local/share", f"~/{_MAC_SUPPORT}", appname, version)


def user_cache_dir(appname: str | None = None, appauthor: str | None = None, version: str | None = None) -> str:
    return _folder("XDG_CACHE_HOME", "~/.cache", "~/Library/Caches", appname, version)


def user_config_dir(appname: str | None = None, appauthor: str | None = None, version: str | None = None) -> str:
    return _folder("XDG_CONFIG_HOME", "~/.config", f"~/{_MAC_SUPPORT}", appname, version)


def site_data_dir(appname: str | None = None, appauthor: str | None = None, version: str | None = None) -> str:
    return _folder("XDG_DATA_DIRS", "/usr/local/share", f"/{_MAC_SUPPORT}", appname, version)


def site_config_dir(appname: str | None = None, appauthor: str | None = None, version: str | None = None) -> str:
    return _folder("XDG_CONFIG_DIRS", "/etc/xdg", f"/{_MAC_SUPPORT}", appname, version)


def _folder(variable: str, linux: str, mac: str, appname: str | None, version: str | None) -> str:
    """XDG base directory specification 0.8: the variable if it is an absolute path, else the default."""
    first = os.environ.get(variable, "").split(os.pathsep)[0]
    folder = first if os.path.isabs(first) else os.path.expanduser(mac if sys.platform == "darwin" else linux)
    return os.path.join(folder, *([appname, *([version] if version else [])] if appname else []))


FUNCTIONS: Final[Mapping[str, Callable[..., object]]] = MappingProxyType(
    {
        "joinpath": os.path.join,
        "normpath": os.path.normpath,
        "abspath": os.path.abspath,
        "relpath": os.path.relpath,
        "dirname": os.path.dirname,
        "basename": os.path.basename,
        "splitext": os.path.splitext,
        "repr": repr,
        "modname_from_path": modname_from_path,
        "user_home_dir": user_home_dir,
        "getcwd": os.getcwd,
        "forgather_config_dir": forgather_config_dir,
        "user_data_dir": user_data_dir,
        "user_cache_dir": user_cache_dir,
        "user_config_dir": user_config_dir,
        "site_data_dir": site_data_dir,
        "site_config_dir": site_config_dir,
    }
)
