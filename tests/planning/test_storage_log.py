"""Each storage once, from the moment when it is made until it goes."""

import torch

from forgather_mem.planning.storage_log import Kept, StorageLog, Stretch, Trace


def live_bytes(log: StorageLog) -> int:
    return sum(log.sizes[event] if event >= 0 else -log.sizes[~event] for event in log.events)


def test_views_are_one_storage() -> None:
    log, tensor = StorageLog(), torch.zeros(256)
    for seen in (tensor, tensor[:10], tensor.view(16, 16), tensor.detach()):
        log.saw(seen)
    assert list(log.sizes) == [1024]


def test_it_goes_with_its_last_view() -> None:
    log, tensor = StorageLog(), torch.zeros(256)
    log.saw(tensor)
    view = tensor[1:]
    del tensor
    assert live_bytes(log) == 1024
    del view
    assert live_bytes(log) == 0


def test_a_storage_that_is_resized_has_its_new_size() -> None:
    log, tensor = StorageLog(), torch.zeros(4)
    log.saw(tensor, "gradients")
    tensor.untyped_storage().resize_(64)
    log.saw(tensor)
    assert live_bytes(log) == 64
    assert log.parts[-1] == "gradients"


def test_what_a_storage_is_for_may_be_told_later_and_stays() -> None:
    log, tensor = StorageLog(), torch.zeros(4)
    log.saw(tensor)
    log.saw(tensor, "gradients")
    log.saw(tensor, "optimizer")
    assert log.parts == ["gradients"]


def test_a_phase_begins_once() -> None:
    log = StorageLog()
    log.begin("forward")
    log.begin("forward")
    log.begin("data", 2)
    assert [(stretch.step, stretch.phase) for stretch in log.stretches] == [(1, "data"), (1, "forward"), (2, "data")]
    assert (log.stretches[-1].step, log.phase) == (2, "data")


def test_a_closed_log_notes_nothing() -> None:
    log, one = StorageLog(), torch.zeros(4)
    log.saw(one)
    log.close()
    del one
    assert list(log.events) == [0]


def test_what_is_kept_can_be_left_out_and_what_it_replaces_is_known() -> None:
    stretches = Stretch(0, 1, "data"), Stretch(2, 2, "optimizer")
    trace = Trace([0, 1, 2, ~0, ~1, 3], [8, 4, 16, 1], stretches)
    assert trace.replaced_bytes(Kept("`rows`", 1, 16, {2})) == 12
    assert [[*events] for _, events in trace.without({2}).by_stretch()] == [[0, 1], [~0, ~1, 3]]
    assert trace.replaced_bytes(Kept("`one`", 1, 1, {3})) == 0


def test_what_is_kept_of_each_step_grows_and_the_gradients_of_a_step_do_not() -> None:
    def trace(kept: int) -> Trace:
        events, sizes, stretches = list[int](), list[int](), list[Stretch]()
        for step in range(6):
            for phase in ("forward", "backward", "forward", "optimizer"):  # the second with gradients of the first
                stretches.append(Stretch(len(events), min(2, step + 1), phase))
                if phase == "backward":
                    events, sizes = [*events, len(sizes), len(sizes) + 1], [*sizes, 100, kept]
            events.append(~(len(sizes) - 2))
        return Trace(events, sizes, stretches)

    assert (trace(0).grown_bytes(), trace(8).grown_bytes()) == (0, 16)
