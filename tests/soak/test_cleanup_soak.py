import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


@pytest.mark.soak
@pytest.mark.filterwarnings("default")
def test_a_second_training_in_one_process_finds_what_the_first_left() -> None:
    example = runpy.run_path(str(EXAMPLES / "when_to_clean_up.py"))
    without, with_it = (example["left_by"](example["trainings"], clean) for clean in (False, True))
    assert with_it < 25
    assert without > with_it + 25
