"""A folder of templates, and the sandbox that they are rendered in."""

import pytest

from forgather_mem.config.rendering.sandbox import Sandbox
from forgather_mem.config.rendering.taint import TaintTokens
from tests.config.rendering.folders import Folder


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(TaintTokens(), paste_values=False)
