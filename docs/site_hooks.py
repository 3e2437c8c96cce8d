"""What pages link to outside of docs/ (measurements, examples, templates) is taken into the site, with its links.

mkdocs calls these two functions; README.md, as GitHub shows it, is the site's first page.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")
_CODE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add each file of the project that a page links to, and what is linked to from there."""
    from mkdocs.structure.files import File, InclusionLevel

    todo = [file.src_uri for file in files.documentation_pages()]
    while todo:
        page = todo.pop()
        for target in linked_from(page):
            place = in_site(page, target)
            if place and files.get_file_from_path(place) is None:
                source = File(place, str(ROOT), config["site_dir"], False, inclusion=InclusionLevel.NOT_IN_NAV)
                files.append(source)
                todo += [place] if place.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Links as they are in the project become links as they are in the site."""
    here = page.file.src_uri

    def moved(match: re.Match[str]) -> str:
        place = in_site(here, match[2])
        return match[0] if place is None else match[1] + os.path.relpath(place, os.path.dirname(here) or ".")

    return _LINK.sub(moved, markdown)


def linked_from(page: str) -> list[str]:
    text = source_of(page).read_text(encoding="utf-8")
    return [match[2] for match in _LINK.finditer(_CODE.sub("", text))]


def source_of(page: str) -> Path:
    """The file of a page of the site."""
    return ROOT / "docs" / page if (ROOT / "docs" / page).exists() else ROOT / page


def in_site(page: str, target: str) -> str | None:
    """Where the site has what this page of it links to; None if the project has no such file."""
    found = (source_of(page).parent / target).resolve()
    if not found.is_file() or not found.is_relative_to(ROOT):
        return None
    if found == ROOT / "README.md":
        return "index.md"
    docs = ROOT / "docs"
    return str(found.relative_to(docs if found.is_relative_to(docs) else ROOT))
