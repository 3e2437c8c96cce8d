"""The server of the page: it tells the runs of its folder to who has its address, and nothing to anybody else."""

import json
import os
import re
import socket
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from forgather_mem.errors import ForgatherMemError
from forgather_mem.page import server as module
from forgather_mem.page.html import ASSETS
from forgather_mem.page.server import PageServer
from tests.browser import Browser, why_no_browser
from tests.page.runs import HOSTILE, written_log
from tests.reporting.logs import log_of
from tests.reporting.report_fixtures import leaking, written

HEAD = "Host: 127.0.0.1\r\n\r\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("first", "second"):
        log_of(tmp_path / "runs" / name)
        written(leaking(), tmp_path / "runs" / name)
    (tmp_path / "secret.json").write_text('{"secret": 1}')
    (tmp_path / "runs" / "link").symlink_to(tmp_path)
    return tmp_path / "runs"


def serving(folder: Path) -> Iterator[PageServer]:
    with PageServer(folder) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def server(folder: Path) -> Iterator[PageServer]:
    yield from serving(folder)


def connected(server: PageServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=60)


def answer_to(server: PageServer, request: str | bytes) -> bytes:
    """All that comes until the server hangs up."""
    with connected(server) as connection:
        raw = request.replace("TOKEN", server.token).encode("latin-1") if isinstance(request, str) else request
        try:
            connection.sendall(raw)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionError:
            return b""


def test_the_address_has_a_token_that_nobody_guesses_and_is_of_this_machine_only(folder: Path) -> None:
    with PageServer(folder) as one, PageServer(folder) as other:
        assert one.server_address[0] == "127.0.0.1"
        assert one.token != other.token
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", one.address)


def test_a_browser_gets_the_page_its_files_and_the_runs(server: PageServer) -> None:
    for route, kind in {"": "text/html", "runs": "application/json", **ASSETS}.items():
        with urllib.request.urlopen(server.address + route, timeout=30) as answer:
            assert answer.headers["Content-Type"] == f"{kind}; charset=utf-8"
            text = answer.read().decode()
        if route == "runs":
            assert {run["name"] for run in json.loads(text)["runs"]} == {"first", "second"}
        elif not route:
            assert "<script>" not in text  # the policy lets none run that stands in the page


def test_a_run_is_told_as_an_event_by_its_number(server: PageServer) -> None:
    runs = {run["name"]: run["id"] for run in server.runs.listed()}
    for name, number in runs.items():
        with urllib.request.urlopen(f"{server.address}events?run={number}", timeout=30) as stream:
            line = stream.readline()
        assert line.startswith(b"data: {")
        assert json.loads(line[6:])["name"] == name


ROUTES = [
    "../secret.json", "../../../../etc/passwd", "%2e%2e/secret.json", "..%2f..%2fetc%2fpasswd", "first/report.json",
    "link/secret.json", "/etc/passwd", "page.js/..", "page.js%00", "page.js?x", "./page.js", "PAGE.JS", "events",
    "events?run=", "events?run=-1", "events?run=999999", "events?run=9999999", "events?run=first", "events?run=0&run=1",
    "events?run=../first", "events?run=\xb2", "runs?folder=/etc", "data?run=first", "favicon.ico",
    "%0d%0aSet-Cookie:%20evil=1", "?", "#", "\x00", "<script>evil</script>",
]  # fmt: skip


@pytest.mark.parametrize("route", ROUTES)
def test_whatever_is_no_route_of_ours_is_not_found(server: PageServer, route: str) -> None:
    refused(answer_to(server, f"GET /TOKEN/{route} HTTP/1.1\r\n{HEAD}"), 404)


@pytest.mark.parametrize(
    "path",
    [
        "/", "/TOKEN", "/TOKEN%2f", "/tOKEN/", "/TOKEN\\", "//", "/TOKEN/TOKEN/", "/x/../TOKEN/", "TOKEN/", "*", "",
        "http://127.0.0.1/TOKEN/", "http://evil.example/TOKEN/", "/" + "x" * 60_000 + "/", "/" + "\xe9" * 32 + "/",
        "/" + 32 * "A" + "/", "/page.js", "/runs", "/events?run=0", "/?TOKEN", "/%54OKEN/",
    ],
)  # fmt: skip
def test_without_the_token_nothing_is_found(server: PageServer, path: str) -> None:
    path = path.replace("tOKEN", server.token[:-1]).replace("%54OKEN", f"%{ord(server.token[0]):x}{server.token[1:]}")
    refused(answer_to(server, f"GET {path} HTTP/1.1\r\n{HEAD}"), 404, 400)


@pytest.mark.parametrize(
    "host",
    [
        "Host: evil.example", "Host: 127.0.0.1.evil.example", "Host: evil.example:80\r\nHost: 127.0.0.1", "X-Host: x",
        "Host: 127.0.0.1\r\nHost: 127.0.0.1", "Host: 127.0.0.1:80@evil.example", "Host: localhost:123456", "Host:",
        "Host: [::1]", "Host: 127.1", "Host: 2130706433", "Host: 127.0.0.1:", "Host: localhost.",
        "Host: evil.example\r\nX-Forwarded-Host: 127.0.0.1",
    ],
)  # fmt: skip
def test_a_page_of_another_name_that_leads_here_gets_nothing(server: PageServer, host: str) -> None:
    refused(answer_to(server, f"GET /TOKEN/ HTTP/1.1\r\n{host}\r\n\r\n"), 421)


def test_a_tunnel_may_end_at_another_port(server: PageServer) -> None:
    for host in ("localhost:9999", "127.0.0.1", "localhost"):
        assert answer_to(server, f"GET /TOKEN/ HTTP/1.1\r\nHost: {host}\r\n\r\n").startswith(b"HTTP/1.0 200 OK\r\n")


@pytest.mark.parametrize(
    "method",
    ["HEAD", "POST", "PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH", "PROPFIND", "get", "__init__", "evil"],
)
def test_there_is_one_method(server: PageServer, method: str) -> None:
    refused(answer_to(server, f"{method} /TOKEN/ HTTP/1.1\r\nContent-Length: 0\r\n{HEAD}"), 501)


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n", 431),
        (b"GET / HTTP/1.1\r\n" + b"X: x\r\n" * 200 + b"\r\n", 431),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / evil HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/one\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"evil\r\n\r\n", 400),
    ],
)
def test_what_is_no_request_is_refused(server: PageServer, request_: bytes, code: int) -> None:
    refused(answer_to(server, request_), code)


def refused(answer: bytes, *codes: int) -> None:
    """Nothing but the standard words came back."""
    if not answer:  # hung up in the middle of too much
        return
    head, _, body = answer.partition(b"\r\n\r\n")
    if head.startswith(b"HTTP/"):
        assert int(head.split()[1]) in codes, head
        assert b"Content-Security-Policy: default-src 'none'" in head
        assert re.fullmatch(rb"[A-Z][A-Za-z -]+\n", body)
    else:  # version 0.9 has no headers
        assert re.fullmatch(rb"[A-Z][A-Za-z -]+\n", answer)
    for word in (b"secret", b"evil", b"Set-Cookie", b"Python"):
        assert word not in answer


def test_who_sends_a_request_too_slowly_is_hung_up_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_REQUEST_S", 0.2)
    for server in serving(folder):
        for begun in (b"", b"GET /", f"GET /{server.token}/ HTTP/1.1\r\nHost: 127.0.0.1\r\n".encode()):
            with connected(server) as connection:
                connection.sendall(begun)
                assert b"200 OK" not in connection.recv(1000)


def test_too_many_connections_are_closed_at_once_and_later_ones_are_served(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_CONNECTIONS", 3)
    for server in serving(folder):
        waiting = [connected(server) for _ in range(3)]
        assert answer_to(server, f"GET /TOKEN/ HTTP/1.1\r\n{HEAD}") == b""
        for connection in waiting:
            connection.sendall(f"GET /{server.token}/ HTTP/1.1\r\n{HEAD}".encode())
            assert b"200 OK" in connection.recv(65536)
            while connection.recv(65536):
                pass
            connection.close()
        while not answer_to(server, f"GET /TOKEN/ HTTP/1.1\r\n{HEAD}"):  # its thread has yet to end
            pass


def test_a_limited_number_of_pages_is_kept_up_to_date(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_STREAMS", 1)
    for server in serving(folder):
        server.runs.listed()
        with urllib.request.urlopen(f"{server.address}events?run=0", timeout=30) as stream:
            assert stream.readline().startswith(b"data: {")
            refused(answer_to(server, f"GET /TOKEN/events?run=0 HTTP/1.1\r\n{HEAD}"), 503)
        with server.streams:  # the page was left: its place is free at once
            pass


def test_a_page_gets_what_comes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    log = written_log(folder / "live", 0, [("step_end", 1, {"host/rss_bytes": 2.0**30})])
    for server in serving(folder):
        number = next(run["id"] for run in server.runs.listed() if run["name"] == "live")
        with urllib.request.urlopen(f"{server.address}events?run={number}", timeout=60) as stream:
            assert steps_of(stream.readline()) == [1]
            assert stream.readline() == b"\n"
            rows = [("step_end", step, {"host/rss_bytes": 2.0**30}) for step in (1, 2, 3)]
            written_log(folder / "other", 0, rows)
            with log.open("ab") as file:
                file.writelines((folder / "other" / log.name).read_bytes().splitlines(keepends=True)[2:4])
            assert steps_of(stream.readline()) == [1, 2, 3]


def steps_of(line: bytes) -> list[int]:
    return json.loads(line.removeprefix(b"data: "))["steps"]


def test_serving_writes_nothing(folder: Path) -> None:
    before = {path: path.lstat().st_mtime_ns for path in folder.rglob("*")}
    for server in serving(folder):
        for route in ("", "runs", "page.js"):
            answer_to(server, f"GET /TOKEN/{route} HTTP/1.1\r\n{HEAD}")
    assert {path: path.lstat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_folder_without_runs_and_a_port_that_is_taken_are_told(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ForgatherMemError, match="no run was found"):
        PageServer(tmp_path / "empty")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(OSError, match="in use"):
            PageServer(folder, taken.getsockname()[1])


@pytest.mark.skipif(bool(why_no_browser()), reason=why_no_browser() or "there is one")
def test_a_browser_shows_a_run_follows_it_and_asks_nobody_else(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOOK_S", 0.05)
    rows = [("step_end", step, {"host/rss_bytes": 2.0**30}) for step in range(1, 31)]
    log = written_log(folder / HOSTILE.replace("/", ""), 0, rows[:20])
    whole = written_log(folder / "other", 0, rows).read_bytes().splitlines(keepends=True)
    os.utime(log, (3e9, 3e9))  # the newest is shown first
    browser = Browser()
    try:
        for server in serving(folder):
            browser.requests()
            browser.log()
            browser.open(server.address)
            assert browser.wait(SHOWN.format(steps=20)) == [20, 4]
            browser.run("window.forgatherMem.page.setZoom([5, 10])")
            with log.open("ab") as file:
                file.writelines(whole[21:31])
            assert browser.wait(SHOWN.format(steps=30)) == [30, 4]
            assert browser.run("return window.forgatherMem.page.zoom") == [5, 10]
            browser.run(
                "const one = document.querySelector('select');"
                "one.value = [...one.options].find(option => option.text.startsWith('first')).value;"
                "one.dispatchEvent(new Event('change'))"
            )
            assert browser.wait(SHOWN.format(steps=40)) == [40, 4]
            assert browser.run("return window.forgatherMem.page.zoom") is None
            asked = [address for address in browser.requests() if not address.startswith(("chrome:", "data:"))]
            assert [address for address in asked if not address.startswith(server.address)] == []
            assert [entry["message"] for entry in browser.log()] == []
            assert not browser.run("return window.bad")
    finally:
        browser.close()


SHOWN = """
const steps = () => window.forgatherMem?.page?.run.steps.length;
for (let tried = 0; tried < 600 && steps() !== {steps}; tried++) await new Promise(done => setTimeout(done, 100));
return [steps(), document.querySelector('select').options.length];
"""
