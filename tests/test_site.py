"""The site of `make docs`, as far as it can be seen without mkdocs; and the files that are not Python."""

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import forgather_mem
from forgather_mem.cli.app import COMMANDS
from forgather_mem.cli.parser import CommandParser
from forgather_mem.cli.run import add_arguments
from tests.test_docs import ROOT, blocks, headings

DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
RECIPES = sorted((DOCS / "recipes").glob("*.md"))


def pages(nav: Any) -> Iterator[str]:
    """The pages of a navigation, however deep."""
    if isinstance(nav, str):
        yield nav
    for part in nav.values() if isinstance(nav, dict) else nav if isinstance(nav, list) else ():
        yield from pages(part)


def test_each_page_stands_in_the_navigation_once() -> None:
    assert sorted(pages(SITE["nav"])) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


def test_the_site_asks_no_other_machine_for_anything() -> None:
    assert SITE["theme"]["font"] is False
    assert SITE["strict"] is True
    assert "extra_javascript" not in SITE
    assert all((DOCS / style).is_file() for style in SITE["extra_css"])


def test_each_recipe_stands_in_the_table_of_recipes() -> None:
    table = (DOCS / "recipes" / "index.md").read_text(encoding="utf-8")
    assert set(re.findall(r"\]\((\w+\.md)\)", table)) == {page.name for page in RECIPES} - {"index.md"}


@pytest.mark.parametrize("page", RECIPES, ids=lambda page: page.stem)
def test_a_recipe_is_short_and_begins_with_what_to_copy(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text.count("\n") <= 90
    if page.name != "index.md":
        assert text.index("```") < 450


@pytest.mark.fresh
def test_the_api_pages_have_each_public_name_with_a_docstring() -> None:
    shown = set()
    for page in (DOCS / "api").glob("*.md"):
        shown |= set(re.findall(r"^::: ([\w.]+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
    for path in shown - {"forgather_mem.callbacks.lightning.LightningCallbacks"}:  # which imports Lightning
        where, _, name = path.rpartition(".")
        assert inspect.getdoc(getattr(importlib.import_module(where), name)), path
    public = {f"forgather_mem.{name}" for name in forgather_mem.__all__ if not name.startswith("__")}
    names = set(forgather_mem.__all__)
    for part in ("callbacks", "probes", "actions", "sinks"):
        module = importlib.import_module(f"forgather_mem.{part}")
        public |= {f"{module.__name__}.{name}" for name in module.__all__ if inspect.isclass(getattr(module, name))}
        names |= {*module.__all__}
    assert public - shown == set()
    others = [page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md") if page.parent != DOCS / "api"]
    assert names - {*re.findall(r"\w+", "".join(others))} == {"__version__"}, "a page says what it is for"


def test_links_of_llms_txt_lead_to_files_and_headings() -> None:
    text = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert text.startswith("# forgather_mem\n\n> ")
    assert text.count("\n") < 60
    for path, _, heading in re.findall(r"\]\(([^)#]+)(#([^)]+))?\)", text):
        assert (ROOT / path).exists(), path
        assert not heading or heading in headings(ROOT / path), (path, heading)


def test_the_version_stands_in_one_place() -> None:
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8")).get("version") is None
    assert 'dynamic = ["version"]' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert re.search(
        rf"^## {re.escape(forgather_mem.__version__)}\b", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_what_github_reads_is_yaml_and_what_issues_ask_for_exists(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    for target in re.findall(r"make (\w[\w-]*)", text):
        assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE), target


def test_bug_reports_ask_for_the_report() -> None:
    form = yaml.safe_load((ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8"))
    asked = {part["id"]: part for part in form["body"] if "id" in part}
    assert "forgather-mem report --markdown" in asked["report"]["attributes"]["description"]
    assert all(part["validations"]["required"] in (True, False) for part in asked.values())


def test_the_kubernetes_job_names_its_volumes_and_a_command_that_can_be_run() -> None:
    (job,) = (block for block in blocks(DOCS / "recipes" / "kubernetes.md") if block.note == "file: job.yaml")
    pod = yaml.safe_load(job.body)["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert container["command"][:2] == ["forgather-mem", "run"]
    parser = CommandParser("forgather-mem run", "")
    add_arguments(parser)
    assert parser.parse(container["command"][2:])["command"] == ["train.py"]
    assert container["env"][0]["value"] in [mount["mountPath"] for mount in container["volumeMounts"]]


def test_what_an_assistant_is_configured_with_is_a_command_of_ours() -> None:
    (line,) = re.findall(r"```json\n(.*?)```", (DOCS / "report.md").read_text(encoding="utf-8"), re.DOTALL)
    (server,) = json.loads(line)["mcpServers"].values()
    assert server["command"] == "forgather-mem"
    assert server["args"][0] in COMMANDS


def test_the_schema_of_the_report_is_a_file_of_the_site() -> None:
    assert json.loads((DOCS / "report.schema.json").read_text(encoding="utf-8"))["$schema"].endswith("2020-12/schema")
