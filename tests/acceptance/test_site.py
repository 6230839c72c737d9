"""The site of the documentation: its pages, their links, and the build, where its generator is installed."""

import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import REPOSITORY
from write import _relinked, write

from ortdeploy.cli import exit_codes
from ortdeploy.cli.command_line.arguments import COMMANDS
from ortdeploy.manifest.pages import PAGES
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.providers.catalogue import PROVIDERS, short_name
from ortdeploy.rules.catalogue import RULES
from ortdeploy.schemas import schema_names
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE

LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"```.*?```|`[^`\n]*`", re.DOTALL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "docs"
    write(folder)
    return folder


class _Loader(yaml.SafeLoader):
    """Reads the settings without what they name in Python."""


_Loader.add_multi_constructor("tag:yaml.org,2002:python/name:", lambda *_: None)


def settings() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((REPOSITORY / "mkdocs.yml").read_text("utf-8"), _Loader)  # noqa: S506  a safe one
    return found


def listed(nav: Any) -> list[str]:
    """All pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [page for one in (nav if isinstance(nav, list) else nav.values()) for page in listed(one)]


def test_what_the_program_knows_has_its_page(site: Path) -> None:
    assert {path.stem for path in (site / "reference/rules").glob("*.md")} == {*RULES, *PAGES, "index"}
    assert {path.stem for path in (site / "reference/providers").glob("*.md")} == {
        *(short_name(one.name) for one in PROVIDERS),
        "index",
    }
    contracts = (site / "contracts.md").read_text(encoding="utf-8")
    assert {*OPERATIONS, *PREPARE, *POSTPROCESS} <= {*re.findall(r"^### (.+)$", contracts, re.MULTILINE)}
    commands = (site / "reference/commands.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", commands, re.MULTILINE) == list(COMMANDS)
    assert all((site / f"schemas/{name}.schema.json").is_file() for name in schema_names())


def test_every_exit_code_is_listed(site: Path) -> None:
    text = (site / "reference/exit-codes.md").read_text(encoding="utf-8")
    codes = {int(code) for row in re.findall(r"^\| ([\d/]+) \|", text, re.MULTILINE) for code in row.split("/")}
    assert codes == {value for name, value in vars(exit_codes).items() if name.startswith("EXIT_")} | {129, 143}


def test_a_page_of_a_rule_has_its_parts_and_its_example_as_it_is_written(site: Path) -> None:
    text = (site / "reference/rules/unmatched-input.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["What it catches", "Why", "Example", "How to fix"]
    assert "The key: [input](../input.md)." in text
    assert "```text\ninput: {path: inbox/*.pgn}\n```" in text
    assert "on\\_empty: done" in text


def test_a_page_of_a_rule_about_text_shows_a_manifest_that_is_flagged_and_what_to_use_instead(site: Path) -> None:
    text = (site / "reference/rules/undefined-provider-chain.md").read_text(encoding="utf-8")
    flagged, instead = (text.partition(f"## {title}\n\n")[2] for title in ("A manifest that is flagged", "Use instead"))
    assert flagged.startswith("```yaml\n")
    assert "  # flagged\n" in flagged
    assert instead.startswith("```yaml\n")
    assert "# flagged" not in instead


def test_a_link_whose_words_are_code_leads_to_a_page_or_is_no_link() -> None:
    text = "[`a`](../README.md) and [`b`](../x/b.sh), `[c](d)`"
    assert _relinked(text, "docs/page.md", "page.md") == "[`a`](index.md) and `b`, `[c](d)`"


def test_keys_have_their_meaning(site: Path) -> None:
    text = (site / "reference/keys.md").read_text(encoding="utf-8")
    assert re.search(r"^\| `models` \| object \| The ONNX models of this deployment by name\. \|$", text, re.MULTILINE)


def test_every_link_leads_to_a_page(site: Path) -> None:
    pages = {path.relative_to(site).as_posix() for path in site.rglob("*") if path.is_file()}
    for page in sorted(pages):
        if page.endswith(".md"):
            for link in LINK.findall(CODE.sub("", (site / page).read_text(encoding="utf-8"))):
                target = link.partition("#")[0]
                if "://" not in target and target:
                    assert posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) in pages, (page, link)


def test_the_navigation_names_pages_and_leaves_none_out(site: Path) -> None:
    named = listed(settings()["nav"])
    assert len(named) == len(set(named))
    assert [page for page in named if not (site / page).is_file()] == []
    own = {path.relative_to(site).as_posix() for path in site.rglob("*.md")}
    grouped = ("reference/rules/", "reference/providers/", "decisions/")
    assert {page for page in own - set(named) if not page.startswith(grouped)} == set()


def test_pages_show_pictures_that_are_on_the_site(site: Path) -> None:
    start = (site / "index.md").read_text(encoding="utf-8")
    assert "](pictures/apply-live.svg)" in start
    assert (site / "pictures/apply-live.svg").is_file()


@pytest.mark.process
def test_the_site_is_built_without_a_warning(site: Path) -> None:
    zensical = shutil.which("zensical", path=str(Path(sys.executable).parent))
    if zensical is None:
        pytest.skip("the extra docs is not installed")
    folder = site.parent
    shutil.copy(REPOSITORY / "mkdocs.yml", folder)
    (folder / "build").mkdir()
    shutil.copytree(site, folder / "build/docs")
    command = [zensical, "build", "--strict", "--clean", "--config-file", "mkdocs.yml"]
    done = subprocess.run(command, cwd=folder, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = folder / "build/site"
    assert "Do something" in (built / "index.html").read_text(encoding="utf-8")
    assert len(list((built / "reference/rules").glob("*/index.html"))) == len(RULES) + len(PAGES)
    assert "fonts.googleapis.com" not in (built / "index.html").read_text(encoding="utf-8")
