"""A training whose parts are imported when they are needed: the report, the evaluation, the export.

After: https://github.com/kitsuyaazuma/blazefl/pull/114
"""
import collections
import importlib
import sys

import torch
from torch import nn

TURNS = {  # step: what is needed from then on
    60: ("xml.etree.ElementTree", "xml.dom.minidom", "html.parser"),
    140: ("sqlite3", "unittest.mock", "doctest", "pydoc_data.topics"),
    200: ("torch.distributions", "torch.utils.tensorboard", "torch.quasirandom"),
    260: ("asyncio", "concurrent.futures", "multiprocessing.managers", "http.server"),
    330: ("numpy.polynomial", "numpy.ma", "torch.fx", "torch.onnx"),
}


class Spirals:
    """Points on arms of a spiral; the arms turn slowly."""

    def __init__(self, arms=5):
        self.arms = arms
        self.generator = torch.Generator().manual_seed(0)

    def batch(self, count, step):
        labels = torch.randint(self.arms, (count,), generator=self.generator)
        radius = torch.rand(count, generator=self.generator) * 4
        angle = radius * 1.5 + 2 * torch.pi * labels / self.arms + step / 4000
        points = torch.stack([radius * angle.cos(), radius * angle.sin()], 1)
        return points + 0.05 * torch.randn(count, 2, generator=self.generator), labels


def need(names):
    """Imports what can be had, and says how many modules came with it."""
    before = len(sys.modules)
    missing = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    count = len(sys.modules) - before
    print(f"   {count} modules more for {names[0]}", f"without {missing}" if missing else "", flush=True)


def report(step, losses, model):
    """A small XML report, once its library is there."""
    tree = sys.modules.get("xml.etree.ElementTree")
    if tree is None:
        return f"step {step}: {sum(losses) / len(losses):.3f}"
    root = tree.Element("step", number=str(step))
    for name, weight in model.named_parameters():
        tree.SubElement(root, "weight", name=name, norm=f"{weight.norm().item():.2f}")
    root.text = f"{sum(losses) / len(losses):.3f}"
    return tree.tostring(root, encoding="unicode")[:110]


def main(steps=450):
    torch.manual_seed(0)
    data = Spirals()
    model = nn.Sequential(
        nn.Linear(2, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 256), nn.SiLU(), nn.Linear(256, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = collections.deque(maxlen=40)
    best = float("inf")
    for step in range(1, steps + 1):
        if step in TURNS:
            need(TURNS[step])
        points, labels = data.batch(512, step)
        loss = nn.functional.cross_entropy(model(points), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
        if step % 30 == 0:
            with torch.no_grad():
                points, labels = data.batch(2000, step)
                error = (model(points).argmax(-1) != labels).float().mean().item()
            best = min(best, error)
            print(report(step, losses, model), flush=True)
    print(f"best error {best:.3f}, {len(sys.modules)} modules")


if __name__ == "__main__":
    main()
