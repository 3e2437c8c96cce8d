"""What is offered by what the census has found."""

from dataclasses import replace

from tests.diagnose.oom.test_remedies import BATCH_2, GRAPH, NO_ROOM, texts


def test_beside_a_cause_no_smaller_batch_is_named() -> None:
    assert BATCH_2 in texts("backward")
    for facts in ({"census": [GRAPH]}, NO_ROOM):
        assert not [text for text in texts("backward", **facts) if "batch_size" in text]


def test_activations_of_a_training_step_are_no_cause() -> None:
    assert texts("forward", census=[replace(GRAPH, kind="activations")]) == texts("forward")
