"""What the sentences of a plan mean for its peak."""

import pickle

from forgather_mem.planning.loop.notes import Note, bound_of_notes


def test_what_is_not_planned_counts_more_and_a_process_tells_it_to_another() -> None:
    notes = [Note("All of it.", "at most"), Note("Longest.", lengths_differ=True), Note("Not all.", "at least")]
    told = pickle.loads(pickle.dumps(notes))
    bounds = [bound_of_notes(notes) for notes in (told[:2], told, ["Else."])]
    assert bounds == ["at most", "at least", "exact"]
    assert [note.lengths_differ for note in told] == [False, True, False]
