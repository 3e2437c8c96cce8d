"""The page as one HTML file: data, script and style inside, and a policy that lets nothing else in."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from importlib.resources import files

from forgather_mem.page.data import Json

ASSETS = {
    "uPlot.min.css": "text/css",
    "page.css": "text/css",
    "uPlot.iife.min.js": "text/javascript",
    "page.js": "text/javascript",
    "follow.js": "text/javascript",
}
"""The files of a page that is served, and their types."""

BEGIN = '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>where the memory went</title>\n'
"""What each page begins with, and no other file."""


def page_html(runs: Sequence[Json]) -> str:
    """A page of these runs, each as `page.data` gives it: of several, one is shown and all are compared.

    It is ASCII, works from a file, asks for nothing from elsewhere, and runs no script but its own.
    """
    script, style = asset("uPlot.iife.min.js") + "\n" + asset("page.js"), asset("uPlot.min.css") + asset("page.css")
    policy = f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)}; base-uri 'none'"
    policy = f'<meta http-equiv="Content-Security-Policy" content="{policy}; form-action \'none\'">\n'
    data = f'<script type="application/json" id="runs">{script_json(runs)}</script>\n'
    return around(f"{data}<script>{script}</script>", policy=policy, style=f"<style>{style}</style>")


def framed(runs: Sequence[Json]) -> str:
    """The same as a part of another page, as of a notebook."""
    page = html.escape(page_html(runs))
    return f'<iframe srcdoc="{page}" style="width: 100%; height: 44rem; border: 0"></iframe>'


def around(scripts: str, *, policy: str = "", style: str = "") -> str:
    """The page's HTML, empty but for these elements."""
    return (
        f'{BEGIN}{policy}<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">\n'
        f"{style}</head>\n"
        '<body><main id="page"><noscript>This page needs JavaScript.</noscript></main>\n'
        f"{scripts}</body></html>\n"
    )


def script_json(data: object) -> str:
    """JSON that can't end the element that it stands in, without characters that turn text around."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def asset(name: str) -> str:
    """A file of the page: its own script and style, and uPlot's."""
    return files("forgather_mem.page").joinpath("assets", name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
