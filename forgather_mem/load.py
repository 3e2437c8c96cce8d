"""How does a script get callbacks in one line?"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy import Policy
from forgather_mem.errors import TemplateError


def load_callbacks(
    template: str | os.PathLike[str],
    /,
    *,
    target: str = "trainer_callbacks",
    searchpath: str | os.PathLike[str] | Iterable[str | os.PathLike[str]] = (),
    allow: Sequence[str] = (),
    allow_files: Sequence[str | Path] = (),
    policy: Policy | None = None,
    context_vars: Mapping[str, object] | None = None,
    **variables: object,
) -> list[Any]:
    """The trainer callbacks that a template describes, new ones each time.

    Args:
        template: Its name, looked up in `searchpath`, then in the current folder, then in this library; or the
            absolute path of a file.
        target: Which part of the template is the list of callbacks.
        searchpath: Folders of templates; also one folder.
        allow: What the template may import besides the default: "my_module", "my_module:MyCallback".
        allow_files: Python files that the template may use.
        policy: A policy instead of `allow` and `allow_files`.
        context_vars: Values for `!var`, any objects.
        variables: Jinja variables of the template.

    Raises:
        TemplateError: for everything that is wrong with the template, with file, line and what to do.
    """
    folders = [searchpath] if isinstance(searchpath, str | os.PathLike) else list(searchpath)
    name = os.fspath(template)
    if os.path.isabs(name):
        folders, name = [os.path.dirname(name), *folders], os.path.basename(name)
    env = ConfigEnvironment([*folders, "."], allow=allow, allow_files=allow_files, policy=policy)
    callbacks = env.load(name, **variables).construct(target, context_vars=context_vars)
    if not isinstance(callbacks, list | tuple):
        message = f"the target {target!r} is no list of callbacks; it is of type {type(callbacks).__name__}"
        raise TemplateError(
            message, template=name, hint="write it as !list:@trainer_callbacks or !dlist:@trainer_callbacks"
        )
    return list(callbacks)
