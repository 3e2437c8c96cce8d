"""A folder of templates."""

import pytest

from tests.config.rendering.folders import Folder


@pytest.fixture
def folder(tmp_path):
    return Folder(tmp_path)
