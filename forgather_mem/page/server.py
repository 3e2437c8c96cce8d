"""Serves the page of the runs in a folder to browsers on this machine: what is read is followed while it is written.

Whoever has the address may read these runs, and nothing else: it has a random token, each request names a route of a
fixed list, and a run by its number. Nothing of a request becomes part of a path or of an answer's headers.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import os
import re
import secrets
import socketserver
import threading
import time
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from select import select
from socket import SHUT_RDWR, socket
from weakref import WeakValueDictionary

from forgather_mem.errors import ForgatherMemError, escape_controls, shown
from forgather_mem.page.data import Json, run_data
from forgather_mem.page.html import ASSETS, around, asset
from forgather_mem.page.tables import in_short
from forgather_mem.reporting.build import FILE_NAME
from forgather_mem.reporting.run_dir import find_runs, run_report
from forgather_mem.telemetry.report_schema import read_report

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
MAX_CONNECTIONS, MAX_STREAMS = 48, 16
_REQUEST_S = 5.0  # for a whole request; a browser sends it at once
_SEND_S = 20.0  # for one answer, or one change of what is followed
_LOOK_S, _BEAT_S = 1.0, 10.0
# Any port: a tunnel's other end may have another. A page of somebody else's can't have these names.
_OUR_HOSTS = re.compile(r"(127\.0\.0\.1|localhost)(:\d{1,5})?")
_EVENTS = re.compile(r"events\?run=(\d{1,6})")
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; img-src data:; script-src 'self'; style-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_SHELL = around('<script type="module" src="follow.js"></script>')
_Connection = socket | tuple[bytes, socket]


class PageServer(ThreadingHTTPServer):
    """A server of the runs in a folder, for `serve_forever`.

    Args:
        folder: A run's folder, or one above several.
        port: 0 for any that is free.

    Attributes:
        address: Where the page is, with its token.

    Raises:
        NoRun: there is no run.
        OSError: the port can't be had.
    """

    daemon_threads, block_on_close, request_queue_size = True, False, 64

    def __init__(self, folder: str | Path, port: int = 0) -> None:
        self.runs = FollowedRuns(folder)
        self.token = secrets.token_urlsafe(24)
        self.streams = threading.BoundedSemaphore(MAX_STREAMS)
        self._connections = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((HOST, port), _Request)
        self.address = f"http://{HOST}:{self.server_address[1]}/{self.token}/"

    def server_bind(self) -> None:
        socketserver.TCPServer.server_bind(self)  # HTTPServer's asks the network for this machine's name

    def process_request_thread(self, request: _Connection, client_address: object) -> None:
        """Answer, or close the connection at once if there are too many."""
        if not self._connections.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: _Connection, client_address: object) -> None:
        logger.debug("a request failed", exc_info=True)  # most often the browser has gone


class _Request(BaseHTTPRequestHandler):
    """One request of one connection."""

    server: PageServer
    timeout = _SEND_S

    def handle(self) -> None:
        self.late = threading.Timer(_REQUEST_S, _hang_up, [self.connection])
        self.late.daemon = True
        self.late.start()
        try:
            self.handle_one_request()
        finally:
            self.late.cancel()

    def do_GET(self) -> None:
        self.late.cancel()
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _OUR_HOSTS.fullmatch(hosts[0]):
            self.send_error(HTTPStatus.MISDIRECTED_REQUEST)
            return
        token, slash, route = self.path.removeprefix("/").partition("/")
        right = hmac.compare_digest(token.encode("latin-1", "replace"), self.server.token.encode())
        stream = _EVENTS.fullmatch(route)
        if not (right and slash and self.path.startswith("/")):
            self.send_error(HTTPStatus.NOT_FOUND)
        elif route == "":
            self._send(_SHELL, "text/html")
        elif route in ASSETS:
            self._send(asset(route), ASSETS[route])
        elif route == "runs":
            self._send(json.dumps({"live": True, "runs": self.server.runs.listed()}), "application/json")
        elif stream and (run := self.server.runs.run(int(stream[1]))) is not None:
            self._stream(run)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def _send(self, text: str, kind: str, code: int = HTTPStatus.OK) -> None:
        body = text.encode()
        self._begin(code, f"{kind}; charset=utf-8", len(body))
        self.wfile.write(body)

    def _begin(self, code: int, kind: str, num_bytes: int | None = None) -> None:
        self.send_response(code)
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", kind)
        if num_bytes is not None:
            self.send_header("Content-Length", str(num_bytes))
        self.end_headers()

    def _stream(self, run: FollowedRun) -> None:
        """Server-sent events: the data of the run, again whenever it has changed, until the browser goes."""
        if not self.server.streams.acquire(blocking=False):
            self.send_error(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        try:
            self._begin(HTTPStatus.OK, "text/event-stream")
            sent, beat_s = 0, 0.0
            while True:
                version, data = run.latest()
                if version != sent:
                    self.wfile.write(b"data: " + data + b"\n\n")
                elif time.monotonic() > beat_s + _BEAT_S:
                    self.wfile.write(b":\n\n")  # where a tunnel has broken this is an error
                elif select([self.connection], [], [], _LOOK_S)[0]:
                    break  # it has nothing to say but that it goes
                else:
                    continue
                sent, beat_s = version, time.monotonic()
        finally:
            self.server.streams.release()

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with the standard words only: the message may hold what was asked for."""
        self._send(f"{HTTPStatus(code).phrase}\n", "text/plain", code)

    def version_string(self) -> str:
        return "forgather-mem"

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass  # a request would write to the terminal


def _hang_up(connection: socket) -> None:
    with contextlib.suppress(OSError):  # it has gone by itself
        connection.shutdown(SHUT_RDWR)


# ---- what is served: the runs of a folder as data of the page, up to date while they are being written ----


@dataclass(frozen=True, slots=True)
class FollowingPace:
    """How often a run that goes on is looked at, and how much of it. Seconds are of the clock.

    Attributes:
        core_frac: Of one core: reading a long run takes a second and more, and the training may need both.
        least_s: Between two looks.
        most_runs: Of a folder.
    """

    core_frac: float = 0.04
    least_s: float = 1.0
    most_runs: int = 200


_PACE = FollowingPace()


class FollowedRuns:
    """All runs in and below a folder, by numbers that stay theirs.

    Raises:
        NoRun: if there is none.
    """

    def __init__(self, folder: str | Path) -> None:
        self._folder = Path(os.path.expanduser(folder))
        self._lock = threading.Lock()
        self._numbers: dict[Path, int] = {}
        self._followed: WeakValueDictionary[int, FollowedRun] = WeakValueDictionary()  # while somebody looks
        self._places = find_runs(self._folder)[: _PACE.most_runs]

    def listed(self) -> list[Json]:
        """Number and name of each run, the newest first, and of those that have ended script, verdict and peak."""
        with self._lock:
            with contextlib.suppress(ForgatherMemError, OSError):
                self._places = find_runs(self._folder)[: _PACE.most_runs]
            return [
                {
                    "id": self._numbers.setdefault(place, len(self._numbers)),
                    "name": self._name(place),
                    "about": self._about(place),
                }
                for place in self._places
            ]

    def run(self, number: int) -> FollowedRun | None:
        """The run with this number; None for a number that was not given to any."""
        with self._lock:
            place = next((place for place, its in self._numbers.items() if its == number), None)
            if place is None:
                return None
            return self._followed.setdefault(number, FollowedRun(place, self._name(place)))

    def _about(self, place: Path) -> str:
        report, _ = read_report(place / FILE_NAME)
        return "" if report is None else escape_controls(in_short(report))

    def _name(self, place: Path) -> str:
        name = os.path.relpath(place, self._folder)
        return escape_controls(place.absolute().name if name == "." else name)


class FollowedRun:
    """One run, which is read anew at each look."""

    def __init__(self, place: Path, name: str) -> None:
        self._place, self._name = place, name
        self._lock = threading.Lock()
        self._data, self._version, self._due_s = b"", 0, 0.0

    def latest(self) -> tuple[int, bytes]:
        """The number of changes so far, and the data as one line of JSON, at most a second older than the files.

        It is older in a long run: reading it and making it takes no more than 4 % of one core.
        """
        with self._lock:
            if time.monotonic() < self._due_s:
                return self._version, self._data
            begun_s = time.thread_time()
            data = self._made()
            self._due_s = time.monotonic() + max(_PACE.least_s, (time.thread_time() - begun_s) / _PACE.core_frac)
            if data != self._data:
                self._version, self._data = self._version + 1, data
            return self._version, self._data

    def _made(self) -> bytes:
        try:
            data = run_data(run_report(self._place), self._place, self._name)
        except (ForgatherMemError, OSError) as error:
            data = {"error": shown(str(error))}
        return json.dumps(data, separators=(",", ":"), allow_nan=False).encode()
