"""All attacks of tests/config, those that a process of its own renders among them."""

import pytest

from tests.config import test_attacks as quick
from tests.config.test_attacks import (  # noqa: F401  # the same tests, of all
    all_results,
    results,
    test_every_attack_ends_in_our_error,
    test_no_attack_runs_code,
    test_no_attack_takes_long_or_much_memory,
    test_no_message_is_too_long_or_moves_a_cursor,
    test_there_are_enough_attacks_and_all_were_run,
)

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def attacks() -> list[tuple[str, str]]:
    return [(file, attack["name"]) for file, attack in quick.ATTACKS]
