"""A stranger's template is rendered in a process of its own, which leaves nothing behind."""

import concurrent.futures
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from forgather_mem.config.environment import ConfigEnvironment
from forgather_mem.config.limits import Limits
from forgather_mem.config.policy.policy import Policy
from forgather_mem.errors import TemplateError

pytestmark = pytest.mark.usefixtures("real_renderer")
TEXT = "a: {{ x }}\nb: !tuple [{{ 1 + 1 }}]\nc: x{{ x }}y\n"


def built(text=TEXT, **variables):
    variables = variables or {"x": "k: [1]"}
    return ConfigEnvironment(policy=Policy()).load_from_string(text, **variables).construct()


def refused(text, budgets=None, **variables):
    with pytest.raises(TemplateError) as caught:
        ConfigEnvironment(policy=Policy(), budgets=budgets).load_from_string(text, **variables)
    return caught.value


WANTED = {"a": "k: [1]", "b": (2,), "c": "xk: [1]y"}


def test_variables_go_there_and_the_text_comes_back_with_them():
    assert built() == WANTED
    values = {"n": None, "l": [1, {"k": "v: w"}], 3: 2.5, "big": 2**90, "t": "\U0001f600 \x00"}
    assert built("a: {{ x.l[1]['k'] }}\nb: {{ x[3] + x.big }}\nc: {{ x.t|length }}", x=values) == {
        "a": "v: w", "b": 2.5 + 2**90, "c": 3,
    }  # fmt: skip
    environment = ConfigEnvironment(policy=Policy(), global_vars={"g": "a: b"})
    assert environment.load_from_string("{{ g }}").construct() == "a: b"


def test_an_error_comes_back_with_all_its_fields():
    error = refused("a: 1\nb: {{ cfg.lrr }}", cfg={"lr": 1})
    assert str(error) == (
        "<string>:2:11: there is no 'lrr' in this mapping\n   2 | b: {{ cfg.lrr }}\n     |           ^\n"
        "  did you mean 'lr'?"
    )


@pytest.mark.slow
def test_a_place_is_found_in_the_file_that_it_comes_from(tmp_path):
    (tmp_path / "base.yaml").write_text("# {{ 1 }}\n[list]\nx: 1\n")
    (tmp_path / "main.yaml").write_text("-- extends 'base.yaml'\n[list]\n\ny: !call:os:system [ls]\n")
    config = ConfigEnvironment(tmp_path, policy=Policy()).load("main.yaml")
    with pytest.raises(TemplateError) as caught:
        config.construct()
    assert (caught.value.template, caught.value.line, caught.value.column) == ("main.yaml", 4, 4)
    assert caught.value.chain == "in block list"
    (tmp_path / "main.yaml").write_text("-- extends 'base.yaml'\n[list]\ny: {{ 1 }}\n")
    changed = ConfigEnvironment(tmp_path, policy=Policy()).load("main.yaml")
    (tmp_path / "main.yaml").write_text("now: other")
    assert changed.rendered.place(2).template == "main.yaml"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: {{ (['\U000e0001' * 1000000] * 240) is upper }}", "not enough memory|of CPU time"),
        ("a: 1\nb: {{ 'a' * 10**12 }}", "not enough memory"),
        ("-- set x = 1\n-- for i in range(10**9)\n-- endfor", "more than 0.1 s of CPU time"),
        (
            "a: 1\nb: {{ [0] * 10**6 }}{{ '%*d' % (10**8, 1) }}",
            "more than 4,194,304 characters|not enough memory|of CPU time",
        ),
        ("{% set t = (1, 1) %}" + "{% set t = (t, t) %}" * 60 + "a: {{ t is filter }}", "CPU time in one operation"),
    ],
)
def test_what_takes_too_much_ends_there_and_costs_nothing_here(text, message):
    began_s = time.process_time()
    error = refused(text, Limits(render_cpu_s=0.1))
    assert re.search(message, error.message)
    assert error.template == "<string>"
    assert time.process_time() - began_s < 0.5


@pytest.mark.slow
def test_nothing_is_left_behind():
    for _ in range(2):  # the first time something is imported
        before = (sorted(os.listdir("/proc/self/fd")), threading.active_count())
        built()
        with pytest.raises(TemplateError):
            built("{{ nope }}")
    assert (sorted(os.listdir("/proc/self/fd")), threading.active_count()) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_interrupt_ends_it_and_arrives():
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        with pytest.raises(KeyboardInterrupt):
            ConfigEnvironment(policy=Policy(), budgets=Limits(render_cpu_s=30)).load_from_string(
                "-- for i in range(10**12)\n-- endfor"
            )
    finally:
        signal.signal(signal.SIGALRM, before)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_a_thread_and_a_daemonic_process_may_load_one():
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert list(pool.map(lambda _: built(), range(3))) == [WANTED] * 3
    context = multiprocessing.get_context("fork")
    answers = context.Queue()
    process = context.Process(target=lambda: answers.put(built()), daemon=True)
    process.start()
    assert answers.get(timeout=60) == WANTED
    process.join()


def test_a_script_without_streams_loads_one_and_is_not_run_again(tmp_path):
    (tmp_path / "jinja2.py").write_text("raise SystemExit('a stranger has been imported')")
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent("""\
        import os, signal, sys
        sys.path.remove(os.path.dirname(os.path.abspath(__file__)))
        for stream in (0, 1, 2):
            os.close(stream)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF, signal.SIGVTALRM})
        from forgather_mem import ConfigEnvironment, TemplateError
        built = ConfigEnvironment().load_from_string("a: {{ x }}", x="1: 2").construct()
        try:
            ConfigEnvironment().load_from_string("-- for i in range(10**9)\\n-- endfor")
        except TemplateError as error:
            built["b"] = error.message
        is_imported = "jinja2" in sys.modules
        with open("out", "a") as file:
            file.write(f"{built} {is_imported}")
        """)
    )
    subprocess.run([sys.executable, script], cwd=tmp_path, check=True, timeout=120)
    assert (tmp_path / "out").read_text() == (
        "{'a': '1: 2', 'b': 'this template takes more than 0.5 s of CPU time'} False"
    )


@pytest.mark.parametrize(
    ("executable", "why"),
    [("", "'' is no Python"), ("/bin/false", "is no Python"), ("/nonexistent/python", "No such file"),
     ("{folder}/python", "has ended without an answer")],
)  # fmt: skip
def test_without_an_interpreter_it_is_refused_and_ones_own_is_not(executable, why, monkeypatch, tmp_path):
    (tmp_path / "python").symlink_to("/bin/false")
    monkeypatch.setattr(sys, "executable", executable.format(folder=tmp_path))
    error = refused(TEXT, x=1)
    assert why in error.message
    assert "allow_files=[its folder]" in error.hint
    (tmp_path / "own.yaml").write_text("a: {{ x }}")
    assert ConfigEnvironment(tmp_path, allow_files=[tmp_path]).load("own.yaml", x=1).construct() == {"a": 1}
