import json
import os
import re
from pathlib import Path

import pytest

from tests.forked import Forked

pytestmark = pytest.mark.alone(forked=True)
pytest.importorskip("IPython", reason="IPython is not installed: pip install ipython")
ROOT = Path(__file__).parent.parent
ALIVE = "sum(ref() is not None for ref in watched)"
CELLS = {
    "load": "%load_ext forgather_mem\n%load_ext forgather_mem.notebook",
    "no error": "%forgather_mem release error",
    "make": "import torch, weakref; watched = []\nmodel = torch.nn.Linear(1024, 1024, bias=False)",
    "watch": "watched.append(weakref.ref(model)); torch.ones(1000, 1000)",
    "show model": "model",
    "fail": "_hidden = torch.ones(2**18)\ndef train(model):\n    batch = torch.ones(3000, 1000)\n"
    "    watched.append(weakref.ref(batch))\n    raise ValueError('diverged')\ntrain(model)",
    "alive": "%forgather_mem",
    "unknown": "%forgather_mem release modl",
    "release model": "%forgather_mem release model",
    "release both": "%forgather_mem release error",
    "left": f"print({ALIVE}, 'model' in globals(), sorted(Out))",
    "variable works": "print(torch.ones(2).sum().item())",
    "keep": "kept = {'best': Out[4]}",
    "release result": "%forgather_mem release Out[4]",
    "release results": "torch.zeros(5)",
    "ours": "import forgather_mem; job = forgather_mem.cleanup(); job",
    "release all": "%forgather_mem release Out Out[4] kept kept",
    "end": "print(Out, '_4' in globals(), 'kept' in globals())",
    "after": "del _hidden\n%forgather_mem",
    "a variable": "error = torch.ones(2**20)",
    "release variable": "%forgather_mem release error",
    "variable left": "print('error' in globals())",
    "hold": "import types; box = types.SimpleNamespace(history=[torch.ones(2**20)])\n"
    "grows = [torch.ones(2**18)]; text = 'x' * 2**21; short = 'x'\n"
    "class Rows: seen = [torch.ones(2**19)]",
    "held": "%forgather_mem",
    "release held": "%forgather_mem release box.history Rows.seen",
    "usage": "%forgather_mem relase model",
    "measure": "%%forgather_mem\ngrows.append(torch.ones(2**19))\n"
    "fresh = torch.ones(2**20); large = torch.ones(2**24).sum(); many = list(range(2**15)); again = many, fresh\n"
    "both = {'a': torch.ones(2**18), 'b': [torch.zeros(2**17).numpy(), 'x' * 2**18]}\nprint('ran')",
    "free": "%%forgather_mem\nlarger = torch.ones(2**19); del again, fresh; both.clear()",
    "graphs": "%%forgather_mem\nlosses, weight = [], torch.ones(2**19, requires_grad=True)\n"
    "for _ in range(3): losses.append((weight * 2).exp().sum())",
    "words": "%%forgather_mem release fresh\nprint('ran')",
    "awaits": "import asyncio, forgather_mem.notebook\nasync def run():\n"
    "    print(forgather_mem.notebook.measure_cell(get_ipython(), 'await run()', ''))\nasyncio.run(run())",
    "fill": "rows = []\nfor row in range(3): rows.append(row)",
    "old": "def fill():\n    rows.append(1)",
    "define": "def fill():\n\n    rows.append(2)\nclass Keeps:\n    kept = []\n    def add(self): self.kept.append(3)",
    "lines": "%%forgather_mem\nfrom forgather_mem.source.container_code import adding_lines\n"
    "from forgather_mem.source.source_lines import line_name\nfrom tests.heap.users_modules import named\n"
    "rows.append(4)\n"
    "names = [*named(rows), *named(Keeps.kept)]\n"
    "print([line_name(*line) for name in names for line in adding_lines(name, True)])",
    "help": "print(get_ipython().magics_manager.magics['cell']['forgather_mem'].__doc__)",
    "train": "import torch; net = torch.nn.Linear(8, 8); sgd = torch.optim.SGD(net.parameters())\n"
    "def train():\n    with forgather_mem.watch() as watching:\n        for _ in range(3):\n"
    "            net(torch.ones(1, 8)).sum().backward(); sgd.step()\n    return watching\n",
    "unasked": "_ = train(); 1",
    "asked": "train().report()",
    "graph in a frame": "def fails():\n    loss = (weight * 2).exp().sum()\n    raise ValueError('diverged')\nfails()",
    "graph of the error": "%forgather_mem",
    "measured result": "%%forgather_mem\n1 + 10",
    "led to": "def close(big): return lambda: big\ndef each():\n    held = torch.ones(2**21)\n    yield 1\n"
    "seen = [types.SimpleNamespace(x=torch.ones(2**19, requires_grad=True).exp())]\n"
    "closed, pieces, some = close(torch.ones(2**20)), each(), {torch.ones(2**17)}; next(pieces)\n%forgather_mem",
    "wrap": "from forgather_mem.callbacks.trainer.method_patches import MethodPatches\nclass Job:\n"
    "    def train(self): raise ValueError('diverged')\n"
    "job = Job(); MethodPatches().wrap(job, 'train', lambda call, *_: call()); job.train()",
    "release wrapped": "%forgather_mem release error job",
    "unload": "%unload_ext forgather_mem",
    "unloaded": "print('forgather_mem' in get_ipython().magics_manager.magics['line'])",
}


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    cells = json.dumps(list(CELLS.values()))
    code, out, err = Forked(ROOT / "tests/notebook_child.py", [cells], ROOT, os.environ).wait()
    assert code == 0, err
    return dict(zip(CELLS, json.loads(out.splitlines()[-1]), strict=True))


def test_what_is_alive_is_shown_by_name_the_largest_first(printed: dict[str, str]) -> None:
    lines = printed["alive"].splitlines()
    assert re.fullmatch(r"forgather_mem: host [\d.]+ MiB \([\d.]+ [GM]iB free, (host|container)\)", lines[0])
    rows = [" ".join(line.split()) for line in lines[1:4]]
    # The frames of the last error hold the batch; Out[5] is the model, which has a name already
    assert rows == ["error 11.4 MiB ValueError", "model 4.0 MiB Linear", "Out[4] 3.8 MiB Tensor [1000, 1000] float32"]
    assert lines[4].strip() == "all live tensors: 20.3 MiB"
    assert lines[5].strip() == "release by name: %forgather_mem release error"


def test_a_cell_says_what_it_took_and_who_holds_what_is_new(printed: dict[str, str]) -> None:
    ran, sizes, *rows = printed["measure"].splitlines()
    start, end, most = map(float, re.findall(r"([\d.]+) MiB", sizes))
    assert end - start > 3
    assert most - end > 40, "the sum was of a tensor that is gone"
    told = "ran fresh +4.0 MiB Tensor [1048576] float32 grows +2.0 MiB list both +1.8 MiB dict many +1.2 MiB list"
    assert " ".join(" ".join([ran, *rows]).split()) == told
    assert "%forgather_mem release error" in printed["help"]
    freed = " ".join(" ".join(printed["free"].splitlines()[1:]).split())
    assert freed == "fresh -4.0 MiB Tensor [1048576] float32 larger +2.0 MiB Tensor [524288] float32 both -1.8 MiB dict"
    graphs = " ".join(" ".join(printed["graphs"].splitlines()[1:]).split())
    assert graphs == "losses +6.0 MiB list weight +2.0 MiB Tensor [524288] float32"


def test_a_released_variable_says_that_the_last_error_still_holds_it(printed: dict[str, str]) -> None:
    text = printed["release model"]
    assert "model (Linear) is still held, 4.0 MiB in 1 tensor, by" in text
    assert re.search(r"  sys\.last_\w+(\.__traceback__)?, local 'model' of train \(", text)
    assert "Out[5]" not in text  # the remembered result went with the name


def test_releasing_the_error_frees_what_its_frames_held(printed: dict[str, str]) -> None:
    before, after = re.findall(r"([\d.]+) MiB", printed["release both"])[:2]
    assert float(before) - float(after) > 12
    assert printed["left"] == "0 False [4]\n"
    assert printed["variable works"] == "2.0\n"
    assert printed["variable left"] == "False\n"  # a variable of that name


def test_a_method_that_we_had_wrapped_keeps_nothing_of_the_error(printed: dict[str, str]) -> None:
    assert printed["release wrapped"].endswith("let go of error, job\n")


def test_a_result_that_a_variable_holds_is_not_gone_and_that_is_said(printed: dict[str, str]) -> None:
    text = printed["release result"]
    assert "Out[4] (Tensor [1000, 1000] float32) is still held, 3.8 MiB in 1 tensor, by" in text
    assert "  __main__.kept['best']" in text


def test_all_remembered_results_go_at_once(printed: dict[str, str]) -> None:
    assert "still held" not in printed["release all"]
    assert printed["end"] == "{} False False\n"
    assert "all live tensors: 0 B" in printed["after"]
    assert "release by name" not in printed["after"]


def test_a_line_that_adds_is_of_the_newest_definition_or_of_the_cell_that_runs(printed: dict[str, str]) -> None:
    define, runs = (list(CELLS).index(name) + 1 for name in ("define", "lines"))
    first, own, second = eval(printed["lines"].splitlines()[0])
    assert (first, own, second) == (f"In[{define}], line 3", f"In[{runs}], line 5", f"In[{define}], line 6")


def test_what_a_graph_in_a_frame_keeps_is_the_errors(printed: dict[str, str]) -> None:
    assert re.search(r"\n  error +2.0 MiB  ValueError\n", printed["graph of the error"])


def test_what_only_objects_closures_and_queues_lead_to_is_theirs(printed: dict[str, str]) -> None:
    for row in ("pieces +8.0 MiB", "closed +4.0 MiB", "seen +4.0 MiB", "some +512.2 KiB"):
        assert re.search(rf"\n  {row}  ", printed["led to"])


def test_the_result_of_a_measured_cell_has_its_number(printed: dict[str, str]) -> None:
    number = list(CELLS).index("measured result") + 1
    assert printed["measured result"].startswith(f"Out[{number}]: 11\n")


def test_a_cell_has_the_report_once(printed: dict[str, str]) -> None:
    assert [printed[name].count("== forgather-mem ==") for name in ("train", "unasked", "asked")] == [0, 1, 1]


@pytest.mark.parametrize(
    ("cell", "text"),
    [
        ("no error", "forgather_mem: there is no 'error'\n"),
        ("unknown", "forgather_mem: there is no 'modl'; did you mean 'model'?"),
        ("usage", "%forgather_mem relase model: write %forgather_mem, or %forgather_mem release NAME"),
        ("words", "%%forgather_mem release fresh: the cell was not run; write %%forgather_mem alone."),
        ("awaits", "%%forgather_mem: the cell was not run; one that awaits"),
        ("unloaded", "False\n"),
    ],
)
def test_a_wrong_word_is_told_and_a_right_one_does_it(printed: dict[str, str], cell: str, text: str) -> None:
    assert printed[cell].startswith(text)


def test_what_an_object_holds_is_listed_by_its_attribute_and_released(printed: dict[str, str]) -> None:
    for row in ("box.history +4.0 MiB  list", "text +2.0 MiB  str", "Rows.seen +2.0 MiB  list"):
        assert re.search(rf"\n  {row}\n", printed["held"])
    assert printed["held"].endswith("%forgather_mem release box.history\n")
    assert "  short" not in printed["held"]
    assert "still held" not in printed["release held"]
    before, after = map(float, re.findall(r"([\d.]+) MiB", printed["release held"])[:2])
    assert before - after > 5
