"""What a plan replaces of torch's, transformers' and accelerate's that they have promised nobody, by name and for good.

All of it goes through `replace`: what a version does not have stays as it is, and the plan says so. It is called in
processes that plan and then end. Nothing is imported: a library may be half imported, or not be used at all.
"""

from __future__ import annotations

import functools
import sys
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from weakref import WeakSet

from forgather_mem.planning.loop.notes import Note

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from queue import Queue
    from typing import Any

    import torch

TRIED_WITH = "torch 2.6 and 2.13, transformers 4.46 and 5.23, accelerate 1.15, lightning 2.6"
COMPILED = Note("torch.compile is planned as if it were off: compiled it usually takes less.", "at most")
_COMPILER, _NOTES = "torch._dynamo", "_notes_of_a_plan"
_CONFIGURES = ("dtype", "torch_dtype", "attn_implementation")
_LOADING = {
    "num_workers": 0, "timeout": 0, "pin_memory": False, "persistent_workers": False, "prefetch_factor": None,
    "multiprocessing_context": None,
}  # fmt: skip


def replace(name: str, make: Callable[[Any], object], notes: list[str]) -> None:
    """Put what is made of it in its place.

    Args:
        name: Its module and its path in there, as "torch.nn:Module.__call__"; what is not imported is not used.
        make: Called with what is there.
        notes: Told if that is not what was tried.
    """
    module, _, path = name.partition(":")
    *owners, last = path.split(".")
    if module not in sys.modules:
        return
    try:
        owner = functools.reduce(getattr, owners, sys.modules[module])
        setattr(owner, last, make(getattr(owner, last)))
    except (AttributeError, TypeError) as error:
        library = module.partition(".")[0]
        version = getattr(sys.modules[library], "__version__", "")
        notes.append(f"{library} {version} is not as it was tried ({TRIED_WITH}), so that this may be wrong: {error}.")


def surround(name: str, around: Callable[..., object], notes: list[str]) -> None:
    """Let this be called in its place, with what is there before the arguments; else as `replace`."""

    def wrapping(there: Callable[..., object]) -> object:
        @functools.wraps(there)
        def wrapped(*args: object, **keywords: object) -> object:
            return around(there, *args, **keywords)

        return wrapped

    replace(name, wrapping, notes)


def around_passes(around: Callable[..., object], notes: list[str]) -> None:
    """Let torch's engine be called by this, with its method and the arguments, whichever function begins a pass."""

    def engine(now: object) -> object:
        class Engine(type(now)):  # type: ignore[misc]
            def run_backward(self, *arguments: object, **keywords: object) -> object:
                return around(super().run_backward, *arguments, **keywords)

        return Engine()

    replace("torch.autograd:Variable._execution_engine", engine, notes)


def need_no_values(notes: list[str]) -> None:
    """Let torch not ask for values that change nothing here.

    `torch.amp.GradScaler` steps as if no gradient were infinite, and a distribution does not check what it is given.
    Data is loaded in this process: another could not send it.
    """

    def step(_: object, optimizer: Any, found: object, *args: object, **keywords: object) -> object:
        return optimizer.step(*args, **keywords)

    replace("torch.amp:GradScaler._maybe_opt_step", lambda _: step, notes)
    replace("torch.distributions:Distribution._validate_args", lambda _: False, notes)
    # An encoder takes rows with padding for nested tensors, which have no sizes here: as where it is not at the end
    replace("torch:_nested_tensor_from_mask_left_aligned", lambda _: lambda *_: False, notes)
    loader = sys.modules["torch.utils.data"].DataLoader
    for name, value in _LOADING.items():
        setattr(loader, name, property(lambda _, value=value: value, lambda *_: None))  # type: ignore[misc]


def step_as_on_a_device(notes: list[str]) -> None:
    """Let optimizers work on all tensors at once where they would on a device: with copies as large as all of them."""

    def choose(parameters: list[torch.Tensor], differentiable: bool, use_fused: bool = False) -> tuple[bool, bool]:
        return False, not differentiable

    name = "_default_to_fused_or_foreach"
    for module in {"torch.optim.optimizer", *(one for one in sys.modules if one.startswith("torch.optim."))}:
        if module == "torch.optim.optimizer" or hasattr(sys.modules[module], name):
            replace(f"{module}:{name}", lambda _: choose, notes)


def leave_compiler_unloaded() -> None:
    """Let what asks torch's compiler for its configuration, or not to compile something, not load it.

    To load it takes as long as to import torch, and all optimizers and operations without values would. It is loaded
    where more is asked of it: the same module then.
    """
    if _COMPILER in sys.modules or (spec := find_spec(_COMPILER)) is None:
        return
    sys.modules[_COMPILER] = vars(sys.modules["torch"])["_dynamo"] = module = module_from_spec(spec)
    import_module(f"{_COMPILER}.config")
    path = vars(module).pop("__path__")

    def load(name: str) -> object:
        if name.startswith("__") and name != "__path__":
            raise AttributeError(name)
        vars(module)["__path__"] = path
        del module.__getattr__, module.eval_frame
        spec.loader.exec_module(module)  # type: ignore[union-attr]
        leave_uncompiled(vars(module).get(_NOTES, []))
        return getattr(module, name)

    # Of models it is asked whether they are compiled, and none is
    frames = ModuleType(f"{_COMPILER}.eval_frame")
    frames.OptimizedModule = type("OptimizedModule", (), {})  # type: ignore[attr-defined]
    vars(frames)["__getattr__"] = lambda name: getattr(load("eval_frame"), name)
    vars(module).update(eval_frame=frames, graph_break=lambda *_, **__: None, __getattr__=load)
    vars(module)["disable"] = lambda function=None, *_, **__: function or (lambda one: one)


def leave_uncompiled(notes: list[str]) -> None:
    """Let all run as if `torch.compile` were off; a note says so where it is on."""
    vars(sys.modules[_COMPILER])[_NOTES] = notes  # for when it is loaded

    def chosen(choose: Callable[[object], object], callback: object) -> object:
        if not callable(callback):
            return choose(callback)
        notes.extend([] if COMPILED in notes else [COMPILED])
        return None

    surround("torch._dynamo.eval_frame:_callback_from_stance", chosen, notes)


def leave_weights_unread(notes: list[str]) -> None:
    """Let parameters take no memory, and `from_pretrained` of transformers read the configuration alone."""
    nn = sys.modules["torch.nn"]

    def registered(register: Callable[..., None], module: object, name: str, weight: torch.nn.Parameter | None) -> None:
        if weight is not None and weight.device.type != "meta":  # one that is tied stays the same
            weight = nn.Parameter(weight.to("meta"), requires_grad=weight.requires_grad)
        register(module, name, weight)

    def moved(move: Callable[..., object], module: torch.nn.Module, *args: Any, **keywords: Any) -> object:
        if all(parameter.device.type != "meta" for parameter in module.parameters()):
            return move(module, *args, **keywords)
        dtype = sys.modules["torch"]._C._nn._parse_to(*args, **keywords)[1]
        return module if dtype is None else move(module, dtype)

    def from_pretrained(cls: Any, name: str, /, *_: object, config: object = None, **keywords: object) -> object:
        config = cls.config_class.from_pretrained(name) if config is None else config
        chosen = {key: keywords[key] for key in _CONFIGURES if keywords.get(key) not in (None, "auto")}
        return cls._from_config(config, **chosen)

    surround("torch.nn:Module.register_parameter", registered, notes)
    surround("torch.nn:Module.to", moved, notes)
    of_models = "transformers.modeling_utils:PreTrainedModel.from_pretrained"
    replace(of_models, lambda _: classmethod(from_pretrained), notes)


def let_tensors_answer(answers: Mapping[str, Callable[..., object]], notes: list[str]) -> None:
    """Let tensors without values answer where torch asks no operation: methods by name."""
    for name, answer in answers.items():
        replace(f"torch._subclasses.fake_tensor:FakeTensor.{name}", lambda _, answer=answer: answer, notes)  # type: ignore[misc]


def write_no_weights(notes: list[str]) -> None:
    """Let safetensors write nothing, and storages without values have an address each: else all weights are tied."""
    surround("torch:UntypedStorage.data_ptr", lambda of, it: it._cdata if it.device.type == "meta" else of(it), notes)
    # A tensor's own stays 0: nobody is to read there
    surround("safetensors.torch:_is_complete", lambda _, one: one.nbytes == one.untyped_storage().nbytes(), notes)
    surround("safetensors.torch:serialize_file", lambda *_, **__: None, notes)


def let_no_queue_wait(queues: Iterable[Queue[object]], notes: list[str]) -> None:
    """For threads that this process does not have: what is put into a full queue of theirs takes the place of another.

    So it is with that of a TensorBoard writer, which is waited for until it is empty.
    """
    known = WeakSet(queues)

    def replacing(put: Callable[..., None], queue: Queue[object], *args: object, **keywords: object) -> None:
        while queue in known and 0 < queue.maxsize <= queue.qsize():
            queue.get_nowait()
        put(queue, *args, **keywords)

    surround("queue:Queue.put", replacing, notes)
    surround("queue:Queue.join", lambda join, queue: None if queue in known else join(queue), notes)


def swap(one: torch.Tensor, other: torch.Tensor) -> None:
    """As `torch.utils.swap_tensors`, which refuses where somebody has a weak reference: that is to have the new one.

    Hooks stay.
    """
    hooks = one._backward_hooks, one._post_accumulate_grad_hooks
    sys.modules["torch"]._C._swap_tensor_impl(one, other)
    one.__class__, other.__class__ = other.__class__, one.__class__
    one.__dict__, other.__dict__ = other.__dict__, one.__dict__
    for name, kept in zip(("_backward_hooks", "_post_accumulate_grad_hooks"), hooks, strict=True):
        if kept:
            setattr(one, name, kept)
