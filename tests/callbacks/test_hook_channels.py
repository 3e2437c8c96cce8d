"""Channels of hooks: the order of what surrounds a part, also when some of it fails."""

from collections.abc import Callable

import pytest

from forgather_mem.callbacks.hooks import (
    HookContext,
    PipelineHookArgs,
    PipelineHooks,
    RemovableHandle,
)


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


def test_every_after_runs_although_another_one_fails() -> None:
    log: list[str] = []
    hooks = PipelineHooks()

    def fail(arg: PipelineHookArgs) -> None:
        raise ZeroDivisionError

    hooks.register_hook("on_step", HookContext(after=fail))
    hooks.register_hook("on_step", recorder(log, "last"))
    with pytest.raises(ZeroDivisionError), hooks.begin("on_step", PipelineHookArgs()):
        pass
    assert log == ["last before 0", "last after 0"]


def test_an_after_whose_before_never_ran_does_not_run() -> None:
    log: list[str] = []
    hooks = PipelineHooks()

    def fail(arg: PipelineHookArgs) -> None:
        raise ZeroDivisionError

    hooks.register_hook("on_step", recorder(log, "first"))
    hooks.register_hook("on_step", HookContext(before=fail))
    hooks.register_hook("on_step", recorder(log, "never"))
    with pytest.raises(ZeroDivisionError), hooks.begin("on_step", PipelineHookArgs()):
        log.append("body")
    assert log == ["first before 0", "first after 0"]


def leave(handle: RemovableHandle) -> None:
    with handle:
        pass


@pytest.mark.parametrize("remove", [RemovableHandle.remove, RemovableHandle.__call__, leave])
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
    with pytest.raises(AttributeError, match="no field 'global_step'; did you mean 'global_step_id'"):
        arg.copy_with_updates(global_step=1)
