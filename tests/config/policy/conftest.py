"""Modules of the user's own."""

import importlib
import sys
import textwrap

import pytest


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules into a folder of their own that can be imported, and forgets them afterwards."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(tmp_path)

    def write_modules(sources=(), **more):
        for name, source in {**dict(sources), **more}.items():
            path = tmp_path / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        importlib.invalidate_caches()
        return tmp_path

    yield write_modules
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]
