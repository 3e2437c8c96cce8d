import importlib.util
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name.removesuffix(".py"), EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.soak
@pytest.mark.filterwarnings("default")
def test_a_second_training_in_one_process_finds_what_the_first_left() -> None:
    example = load("when_to_clean_up.py")
    without, with_it = (example.left_by(example.trainings, clean) for clean in (False, True))
    assert with_it < 25
    assert without > with_it + 25
