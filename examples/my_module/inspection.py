"""Callbacks for a look into a training: which events come, and what stands in the trainer's state."""

from transformers import TrainerCallback


class DebugCallback(TrainerCallback):
    """Prints events as they come. A handler looks each event up by its name, so one lookup serves them all."""

    def __init__(self, events=("on_train_begin", "on_step_end", "on_log", "on_evaluate", "on_train_end")):
        self.events = tuple(events)

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if not name.startswith("on_") or name not in self.events:
            return method

        def told(args, state, control, **objects):
            print(f"event {name} at step {state.global_step}, with {', '.join(sorted(objects))}")
            return method(args, state, control, **objects)

        return told


class StateInspectionCallback(TrainerCallback):
    """Prints step, epoch, last log line and the model's device every N-th step."""

    def __init__(self, every_steps=1):
        self.every_steps = every_steps

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every_steps:
            return
        last = state.log_history[-1] if state.log_history else "nothing logged yet"
        device = next(model.parameters()).device if model is not None else "no model"
        print(f"step {state.global_step} of {state.max_steps}, epoch {state.epoch:.2f}, {device}: {last}")
