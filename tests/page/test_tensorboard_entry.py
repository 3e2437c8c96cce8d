"""What TensorBoard loads at its start never raises, whichever TensorBoard it is."""

import importlib
import logging
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from tensorboard.plugins.base_plugin import TBPlugin

from forgather_mem.page.tensorboard_entry import MemoryTabLoader
from tests.programs import printed_by

pytestmark = pytest.mark.filterwarnings("ignore:html5lib's sanitizer is deprecated")  # TensorBoard's own import
ROOT = Path(__file__).parents[2]


def test_the_package_names_it_as_an_entry_point() -> None:
    (line,) = re.findall(
        r"^\[project\.entry-points\.tensorboard_plugins\]\n(.*)\n", (ROOT / "pyproject.toml").read_text(), re.M
    )
    module, _, name = line.split('"')[1].partition(":")
    assert getattr(importlib.import_module(module), name) is MemoryTabLoader


def test_this_tensorboard_takes_it() -> None:
    from tensorboard.backend.application import make_plugin_loader

    tab = make_plugin_loader(MemoryTabLoader).load(SimpleNamespace(data_provider=object()))
    assert isinstance(tab, TBPlugin)
    assert set(tab.get_plugin_apps()) >= {"/follow.js", "/runs", "/data"}


@pytest.mark.parametrize("context", [None, SimpleNamespace(), SimpleNamespace(data_provider=None)])
def test_a_context_that_is_not_as_we_know_it_means_no_tab(context: object, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert MemoryTabLoader().load(context) is None
    assert "no Memory tab in this TensorBoard" in caplog.text


CHILD = """
import sys, types
class Broken:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise {error}
sys.meta_path.insert(0, Broken())
from forgather_mem.page.tensorboard_entry import MemoryTabLoader
print(MemoryTabLoader().load(types.SimpleNamespace(data_provider=object())))
assert "torch" not in sys.modules
"""


@pytest.mark.parametrize(
    ("missing", "error"),
    [
        ("tensorboard.plugins.base_plugin", "ImportError('moved')"),
        ("tensorboard.data.provider", "ImportError('moved')"),
        ("tensorboard.plugin_util", "AttributeError('changed')"),
        ("tensorboard.context", "TypeError('changed')"),
        ("numpy", "RuntimeError('of another ABI')"),
        ("forgather_mem.page.data", "SyntaxError('half installed')"),
    ],
)
def test_where_something_is_missing_or_raises_there_is_no_tab_and_no_error(missing: str, error: str) -> None:
    assert printed_by(CHILD.format(missing=missing, error=error)) == "None\n"
