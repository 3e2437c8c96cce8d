"""Channels of hooks, the order of what surrounds a part, also when some of it fails; the hook that clears the cache."""

from __future__ import annotations

import weakref
from collections.abc import Callable

import pytest
import torch

from forgather_mem.callbacks.hooks import (
    ClearCacheHook,
    ClearCacheHookConfig,
    HookContext,
    PipelineHookArgs,
    PipelineHooks,
    PipelineHooksConfig,
    RemovableHandle,
)
from tests.reclaim.things import Thing, a_cycle
from tests.simulated_device import SimulatedDevice

# ---- clearing ----


def test_the_cache_is_cleared_after_the_body_of_every_tenth_step(device: SimulatedDevice) -> None:
    hooks = ClearCacheHookConfig(empty_cache_at="step", empty_cache_freq=10)()
    cleared_after = []
    for step in range(25):
        with hooks.begin("on_step", PipelineHookArgs(global_step_id=step, epoch_id=0)) as arg:
            device.reserved = device.allocated + 50
        assert arg.global_step_id == step
        if device.reserved == device.allocated:
            cleared_after.append(step)
    assert cleared_after == [9, 19]
    row = hooks.ledger.rows()[0]
    assert (row.what, row.calls, row.freed_bytes) == ("clear", 2, 2 * 50 * 2**20)


def test_epochs_are_counted_by_their_own_id_and_steps_do_not_matter_then(device: SimulatedDevice) -> None:
    hooks = ClearCacheHookConfig(empty_cache_at="epoch", empty_cache_freq=2)()
    cleared_after = []
    for epoch in range(4):
        device.reserved = device.allocated + 50
        with hooks.begin("on_epoch", PipelineHookArgs(global_step_id=99, epoch_id=epoch)):
            with hooks.begin("on_step", PipelineHookArgs(global_step_id=99, epoch_id=epoch)):
                pass
            assert device.reserved == device.allocated + 50
        if device.reserved == device.allocated:
            cleared_after.append(epoch)
    assert cleared_after == [1, 3]


@pytest.mark.usefixtures("uncollected")
@pytest.mark.parametrize("collects", [True, False])
def test_garbage_is_collected_only_when_asked_for_also_without_a_device(collects: bool) -> None:
    hooks = ClearCacheHookConfig(empty_cache_at="step", empty_cache_freq=2, garbage_collection=collects)()
    cycle = a_cycle()
    with hooks.begin("on_step", PipelineHookArgs(global_step_id=0)):
        pass
    assert cycle() is not None  # not due
    with hooks.begin("on_step", PipelineHookArgs(global_step_id=1)):
        pass
    assert (cycle() is None) is collects
    assert hooks.ledger.calls("collect") == int(collects)


def test_the_cache_is_cleared_also_when_the_body_fails(device: SimulatedDevice) -> None:
    hooks = ClearCacheHookConfig(empty_cache_at="step")()
    device.reserved = device.allocated + 50
    with pytest.raises(KeyError), hooks.begin("on_step", PipelineHookArgs()):
        raise KeyError("a user's error")
    assert device.reserved == device.allocated


# ---- configs ----


def test_a_config_has_the_documented_defaults_and_builds_its_class() -> None:
    config = ClearCacheHookConfig()
    assert (config.empty_cache_at, config.empty_cache_freq, config.garbage_collection) == ("epoch", 1, False)
    assert config.class_type is ClearCacheHook
    hooks = config(empty_cache_freq=3)
    assert isinstance(hooks, ClearCacheHook)
    assert (hooks.empty_cache_at, hooks.empty_cache_freq) == ("epoch", 3)
    assert config.empty_cache_freq == 1
    assert ClearCacheHook.InitFromConfig is True


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"empty_cache_at": "batch"}, r"ClearCacheHookConfig\(empty_cache_at='batch'\): the cache is cleared at"),
        ({"empty_cache_freq": 0}, r"ClearCacheHookConfig\(empty_cache_freq=0\): a period is 1 epoch or more"),
        ({"empty_cache_freq": None}, "a period is a whole number of epochs"),
        ({"garbage_collection": "no"}, "garbage_collection is true or false"),
        ({"empty_cache_freq": 2.5}, "a period is a whole number of epochs"),
    ],
)
def test_a_config_that_can_not_work_is_refused_when_it_is_made(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ClearCacheHookConfig(**arguments)  # type: ignore[arg-type]


def test_a_users_own_hooks_and_config_need_no_decorator() -> None:
    class Counting(PipelineHooks):
        def __init__(self, cfg: CountingConfig) -> None:
            super().__init__()
            self.seen = cfg.start
            self.register_hook("on_batch", HookContext("count", before=self._count))

        def _count(self, arg: PipelineHookArgs) -> None:
            self.seen += 1

    class CountingConfig(PipelineHooksConfig[Counting]):
        class_type: type[Counting] = Counting
        start: int = 0

    hooks = CountingConfig(start=5)()
    with hooks.begin("on_batch", PipelineHookArgs()):
        pass
    assert hooks.seen == 6


# ---- sets of hooks ----


def test_a_set_joined_to_another_leaves_it_as_a_whole() -> None:
    log: list[str] = []
    pipeline, ours = PipelineHooks(), PipelineHooks()
    ours.register_hook("on_step", recorder(log, "step"))
    ours.register_hook("on_epoch", recorder(log, "epoch"))
    handle = pipeline.register_pipeline_hooks(ours)
    with pipeline.begin("on_epoch", PipelineHookArgs()), pipeline.begin("on_step", PipelineHookArgs()):
        pass
    assert log == ["epoch before 0", "step before 0", "step after 0", "epoch after 0"]
    handle.remove()
    log.clear()
    with pipeline.begin("on_epoch", PipelineHookArgs()), pipeline.begin("on_step", PipelineHookArgs()):
        pass
    assert log == []
    assert len(ours.hooks["on_step"]) == 1  # the other set still has them


def test_unregister_all_empties_every_channel() -> None:
    hooks = ClearCacheHookConfig()()
    hooks.unregister_all()
    assert [len(channel) for channel in hooks.hooks.values()] == [0] * 6
    assert list(hooks.hooks) == ["on_loop", "on_epoch", "on_step", "on_batch", "on_model_forward", "on_model_backward"]


def test_from_hooks_takes_hooks_configs_lists_of_both_and_nothing() -> None:
    config = ClearCacheHookConfig(empty_cache_at="step")
    assert len(PipelineHooks.from_hooks(None).hooks["on_step"]) == 0
    assert len(PipelineHooks.from_hooks(config).hooks["on_step"]) == 1
    assert len(PipelineHooks.from_hooks(config()).hooks["on_step"]) == 1
    both = PipelineHooks.from_hooks([config, config()])
    assert len(both.hooks["on_step"]) == 2
    both += config()
    assert len(both.hooks["on_step"]) == 3
    with pytest.raises(TypeError, match="'on_step' is no PipelineHooks"):
        PipelineHooks.from_hooks(["on_step"])  # type: ignore[list-item]


def test_an_unknown_channel_is_refused_with_the_known_ones() -> None:
    hooks = PipelineHooks()
    with pytest.raises(ValueError, match="no channel 'on_stop'; the channels are: on_loop, on_epoch, on_step"):
        hooks.register_hook("on_stop", HookContext())  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no channel"):
        hooks.begin("step", PipelineHookArgs())  # type: ignore[arg-type]


def test_what_is_no_hook_is_refused_when_it_is_registered() -> None:
    hooks = PipelineHooks()
    for wrong in (print, HookContext):
        with pytest.raises(TypeError, match=r"on_step: .* is no HookContext; write HookContext\(after=...\)"):
            hooks.register_hook("on_step", wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"ClearCacheHookConfig\(.*is no PipelineHooks; a config is called first"):
        hooks.register_pipeline_hooks(ClearCacheHookConfig())  # type: ignore[arg-type]


# ---- the real pipeline ----


@pytest.mark.usefixtures("uncollected")
@pytest.mark.filterwarnings("default")
def test_our_hook_works_in_a_real_robo_orchard_pipeline() -> None:
    pipeline = pytest.importorskip(
        "robo_orchard_lab.pipeline", reason="robo_orchard_lab is not installed", exc_type=ImportError
    )
    from accelerate import Accelerator
    from robo_orchard_lab.pipeline.batch_processor import SimpleBatchProcessor

    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    cycles: list[weakref.ref[Thing]] = []

    def forward(model: Callable[..., torch.Tensor], batch: torch.Tensor) -> tuple[dict[str, object], torch.Tensor]:
        cycles.append(a_cycle())
        alive.append(sum(cycle() is not None for cycle in cycles))
        loss = model(batch).mean()
        return {"loss": loss}, loss

    alive: list[int] = []
    trainer = pipeline.HookBasedTrainer(
        accelerator=Accelerator(cpu=True), model=model,
        dataloader=torch.utils.data.DataLoader(torch.ones(12, 4), batch_size=2),
        batch_processor=SimpleBatchProcessor.from_callable(forward), optimizer=optimizer,
        lr_scheduler=torch.optim.lr_scheduler.ConstantLR(optimizer), max_step=6,
    )  # fmt: skip
    hooks = ClearCacheHookConfig(empty_cache_at="step", empty_cache_freq=3, garbage_collection=True)()
    handle = hooks.register_into(trainer.hooks)
    trainer()
    assert alive == [1, 2, 3, 1, 2, 3]  # collected after the third and the sixth step
    assert hooks.ledger.calls("collect") == 2
    before = len(trainer.hooks.hooks["on_step"])
    handle.remove()
    assert len(trainer.hooks.hooks["on_step"]) == before - 1


def recorder(log: list[str], name: str) -> HookContext:
    return HookContext.from_callable(
        before=lambda arg: log.append(f"{name} before {arg.global_step_id}"),
        after=lambda arg: log.append(f"{name} after {arg.global_step_id}"),
    )


def test_before_and_after_run_in_the_order_of_registration() -> None:
    log: list[str] = []
    hooks = PipelineHooks()
    for name in ("first", "second"):
        hooks.register_hook("on_step", recorder(log, name))
    with hooks.begin("on_step", PipelineHookArgs(global_step_id=3)):
        log.append("body")
    assert log == ["first before 3", "second before 3", "body", "first after 3", "second after 3"]


def fail(arg: PipelineHookArgs) -> None:
    raise ZeroDivisionError


def test_every_after_runs_although_another_one_fails() -> None:
    log: list[str] = []
    hooks = PipelineHooks()
    hooks.register_hook("on_step", HookContext(after=fail))
    hooks.register_hook("on_step", recorder(log, "last"))
    with pytest.raises(ZeroDivisionError), hooks.begin("on_step", PipelineHookArgs()):
        pass
    assert log == ["last before 0", "last after 0"]


def test_an_after_whose_before_never_ran_does_not_run() -> None:
    log: list[str] = []
    hooks = PipelineHooks()
    hooks.register_hook("on_step", recorder(log, "first"))
    hooks.register_hook("on_step", HookContext(before=fail))
    hooks.register_hook("on_step", recorder(log, "never"))
    with pytest.raises(ZeroDivisionError), hooks.begin("on_step", PipelineHookArgs()):
        log.append("body")
    assert log == ["first before 0", "first after 0"]


@pytest.mark.parametrize("remove", [RemovableHandle.remove, RemovableHandle.__call__])
def test_a_handle_takes_its_hook_out(remove: Callable[[RemovableHandle], None]) -> None:
    log: list[str] = []
    hooks = PipelineHooks()
    hooks.register_hook("on_step", recorder(log, "stays"))
    handle = hooks.register_hook("on_step", recorder(log, "goes"))
    remove(handle)
    remove(handle)  # a second time does nothing
    with hooks.begin("on_step", PipelineHookArgs()):
        pass
    assert log == ["stays before 0", "stays after 0"]


def test_the_same_context_registered_twice_runs_once() -> None:
    log: list[str] = []
    hooks, context = PipelineHooks(), recorder(log, "once")
    hooks.register_hook("on_loop", context)
    hooks.register_hook("on_loop", context)
    with hooks.begin("on_loop", PipelineHookArgs()), context.begin(PipelineHookArgs(global_step_id=1)):
        pass
    assert log == ["once before 0", "once before 1", "once after 1", "once after 0"]


def test_arguments_are_all_optional_and_copied_with_updates() -> None:
    arg = PipelineHookArgs()
    assert (arg.epoch_id, arg.global_step_id, arg.model, arg.max_step) == (0, 0, None, None)
    copy = arg.copy_with_updates(global_step_id=7, batch="rows")
    assert (copy.global_step_id, copy.batch, arg.global_step_id) == (7, "rows", 0)
    with pytest.raises(TypeError, match="unexpected keyword argument 'global_step'"):
        arg.copy_with_updates(global_step=1)
