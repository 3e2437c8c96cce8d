"""What `Config.misfits` finds without building anybody's objects."""

import subprocess
import sys
import textwrap

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError

USERS = """\
made = []
class Any:
    def __init__(self, every_steps: int = 1, verbose: bool = False, text=None, lr=0.1):
        made.append(self)
    def __call__(self, *args):
        made.append(args)
def say(text, lr=1):
    made.append(text)
"""


@pytest.fixture
def users(tmp_path, monkeypatch):
    """A module of the user's own, which remembers what it makes."""
    (tmp_path / "of_a_user.py").write_text(USERS)
    monkeypatch.syspath_prepend(tmp_path)
    import of_a_user

    yield of_a_user
    del sys.modules["of_a_user"]


def found(text, **variables):
    policy = Policy(allow=["of_a_user"])
    errors = ConfigEnvironment(policy=policy).load_from_string(text).misfits(context_vars=variables)
    return [(error.line, error.message) for error in errors]


def refusal(text):
    with pytest.raises(TemplateError) as refused:
        ConfigEnvironment(policy=Policy()).load_from_string(text).construct()
    return [(refused.value.line, refused.value.message)]


def test_nothing_of_a_users_class_is_built(users):
    assert found("a: !singleton:of_a_user:Any [1, 'no']\nb: !singleton:of_a_user:say [x]\n") == []
    assert found("a: !meta:of_a_user:Any [[1]]\nb: !factory:of_a_user:Any\nc: !partial:of_a_user:Any {lr: x}\n") == []
    assert users.made == []


@pytest.mark.parametrize(
    "text",
    [
        "a: !singleton:forgather_mem:Every {steps: 0}",
        "a: !singleton:forgather_mem:AtEvent [step_finish]",
        "a: !singleton:forgather_mem:Above {name: host/rss, limit: 1}",
        "a: !singleton:forgather_mem.callbacks:SimpleGarbageCollector {collect_freq_epoch: -1}",
        "a: !partial:forgather_mem.callbacks:TBMemoryLogger []\nb: !factory:forgather_mem:Every {steps: 1, at: never}",
        "a: !singleton:set [[[1], 2]]",
        "a: [{b: !singleton:forgather_mem.callbacks:TBMemoryLogger {metrics: [no/such]}}]",
        "a: !singleton:forgather_mem:Rule {when: !singleton:forgather_mem:Every {steps: !call:int [x]}, do: []}",
    ],
)
def test_what_a_constructor_of_ours_refuses_is_found_as_loading_tells_it(text):
    assert found(text) == refusal(text)


def test_a_failure_is_told_once_and_what_contains_it_is_left():
    text = """
        a: &a !singleton:forgather_mem:Every {steps: 0}
        b: !singleton:forgather_mem:Rule {when: *a, do: [!singleton:forgather_mem.actions:Collect ]}
        c: !singleton:forgather_mem.callbacks:MemoryCallback {rules: [!singleton:forgather_mem:Rule {when: *a, do: []}]}
    """
    assert [line for line, _ in found(textwrap.dedent(text))] == [2]


def test_ours_are_left_where_a_users_object_or_an_unknown_value_is_needed(users):
    text = """
        a: !singleton:forgather_mem:Rule {when: !call:forgather_mem:Every {steps: 1}, do: [!singleton:of_a_user:Any ]}
        b: !singleton:forgather_mem:Every {steps: !var unknown}
        c: !singleton:forgather_mem.callbacks:MemoryAlert {call: !partial:of_a_user:say []}
        d: !singleton:forgather_mem:Every {steps: !call:no.such:name []}
        e: !singleton:forgather_mem:Every {steps: !var {name: given, default: 0}}
    """
    assert found(textwrap.dedent(text), given=3) == []
    [(line, message)] = found(textwrap.dedent(text))
    assert line == 6
    assert "Every(steps=0): a period is 1 step or more" in message
    assert found("a: !singleton:forgather_mem:Every {steps: !var given}", given=-1)[0][0] == 1
    assert users.made == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a: !singleton:forgather_mem.callbacks:TBMemoryLogger\n    every_steps 2\n", 2),
        ("a: !singleton:forgather_mem.callbacks:TBMemoryLogger\n    logging_dir runs/x\n", 2),
        ("a: !singleton:forgather_mem.callbacks:TBMemoryLogger metrics [a, b]\n", 1),
        ("a: !singleton:forgather_mem.callbacks:PeakMemory\n    prefix x_\n", 2),
        ("a: !singleton:of_a_user:Any\n    every_steps 2\n", 2),
        ("a: !singleton:of_a_user:say\n    lr 2\n", 2),
        ("a: !partial:of_a_user:say\n    lr 2\n", 2),
    ],
)
def test_a_missing_colon_is_asked_about_in_its_line(users, text, line):
    config = ConfigEnvironment(policy=Policy(allow=["of_a_user"])).load_from_string(text)
    [error] = config.misfits()
    word = text.split("\n")[line - 1].split()[0 if line == 2 else 2]
    assert (error.line, error.hint) == (line, f"is a ':' missing after {word!r}?")


@pytest.mark.parametrize(
    "argument", ["'lr 2'", "text follows", "a lr 2", "lr", "lr is the learning rate", "|\n    lr 2", "[lr 2]", "2"]
)
def test_a_text_that_reads_like_one_is_an_argument(users, argument):
    assert found(f"a: !singleton:of_a_user:say {argument}\n") == []


EFFECTS = """
import atexit, gc, signal, sys, threading
import forgather_mem.actions, forgather_mem.callbacks, forgather_mem.probes, forgather_mem.sinks
import forgather_mem.telemetry.triggers
from forgather_mem.config.construction.resolve import parameters_of
from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.policy.policy import Policy

GIVEN = {
    "collect_freq_epoch": "2", "every_steps": "5", "logging_dir": "logs", "path": "there.json", "verbose": "true",
    "when": "!call:forgather_mem:Every {steps: 3}", "do": "[!call:forgather_mem.actions:Collect ]", "steps": "3",
    "name": "device/reserved_frac", "limit": "0.5", "event": "save", "events": "[save]", "snapshot": "true",
    "names": "[save]", "rules": "[!call:forgather_mem:Rule {when: !call:forgather_mem:Every {steps: 3}, do: []}]",
    "action": "!call:forgather_mem.actions:Collect []", "output_dir": "out", "save": "true", "stop": "true",
    "hparams": "{a: 1}",
}
lines = []
for package in ("callbacks", "probes", "actions", "sinks", "telemetry.triggers"):
    module = sys.modules[f"forgather_mem.{package}"]
    for name in module.__all__:
        made = getattr(module, name)
        if not isinstance(made, type) or not Policy().verdict(f"forgather_mem.{package}:{name}").allowed:
            continue
        takes = parameters_of(made)
        names = takes.named if takes else ()
        for given in ({n for n in names if n in GIVEN}, (takes.required if takes else set())):
            if all(n in GIVEN for n in given):
                arguments = ", ".join(f"{n}: {GIVEN[n]}" for n in sorted(given))
                lines.append(f"- !factory:forgather_mem.{package}:{name} {{{arguments}}}")
config = ConfigEnvironment(policy=Policy()).load_from_string("all:\\n" + "\\n".join(lines))
config.misfits()  # imports whatever is imported on first use
def state():
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    collector = list(gc.callbacks), gc.get_threshold(), gc.isenabled(), gc.get_freeze_count()
    return (threading.active_count(), collector, handlers,
            sys.getprofile(), sys.gettrace(), sys.excepthook, atexit._ncallbacks())
seen = []
watching = False
def watch(event, args):
    if watching and (event in WATCHED or event.startswith(("socket.", "subprocess.", "os.", "shutil."))):
        seen.append((event, str(args)[:200]))
WATCHED = {"open", "signal", "sqlite3.connect", "ctypes.dlopen", "import"}
sys.addaudithook(watch)
before, watching = state(), True
errors = config.misfits()
watching = False
print("SEEN", seen)
print("STATE", before == state())
print("BUILT", len(lines) - len(errors))
"""


def test_the_constructors_that_are_tried_do_nothing_but_check(tmp_path):
    done = subprocess.run([sys.executable, "-c", EFFECTS], capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert "SEEN []" in lines
    assert "STATE True" in lines
    assert list(tmp_path.iterdir()) == []
    assert int(lines[-1].split()[1]) >= 60, lines[-1]  # with and without arguments; the others refuse them
