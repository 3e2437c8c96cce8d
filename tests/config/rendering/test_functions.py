"""The functions that a template may call."""

import datetime
import re

from tests.config.rendering.folders import text


def test_times_of_one_render_are_one_moment_and_paths_are_the_platform_s(monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", "/cfg")
    monkeypatch.setenv("HOME", "/home/me")
    monkeypatch.setenv("USER", "me")
    assert text("{{ now() == now() }} {{ (now() - utcnow()).total_seconds()|abs < 86400 }}") == "True True"
    datetime.datetime.fromisoformat(text("{{ isotime() }}"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d-\d\d-\d\d", text("{{ utcfiletime() }}"))
    assert text("{{ user_config_dir('app', version='1') }} {{ forgather_config_dir() }} {{ user_home_dir() }}") == (
        "/cfg/app/1 /cfg/forgather /home/me"
    )
    assert text("{{ joinpath('a', 'b/../c.py')|replace('b/../', '') }}") == "a/c.py"
    assert text("{{ modname_from_path('/a/mod.py') }} {{ splitext('a.b') }} {{ repr('x') }}") == "mod ('a', '.b') 'x'"
