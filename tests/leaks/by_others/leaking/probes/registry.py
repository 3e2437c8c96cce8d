"""Small helper shared by our experiments: look up activations by step."""


class ActivationRegistry:
    by_step = {}
    last_step = -1

    @classmethod
    def record(cls, step, name, tensor):
        entry = cls.by_step.setdefault(step, {})
        entry[name] = tensor.detach()
        cls.last_step = step

    @classmethod
    def latest(cls, name):
        return cls.by_step[cls.last_step][name]
