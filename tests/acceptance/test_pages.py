"""Pages of the documentation whose snippets run, and those in another language."""

import json
import re
from pathlib import Path

import pytest
from conftest import REPOSITORY
from support import take_pictures
from support.pages import run_page, shell, snippets

DOCS = REPOSITORY / "docs"


@pytest.mark.process
@pytest.mark.parametrize("page", ["tutorial.md", "editors.md"])
def test_every_command_of_a_page_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    text = (DOCS / page).read_text(encoding="utf-8")
    (tmp_path / "pumps").mkdir()
    with shell(tmp_path / "pumps") as opened:
        assert run_page(text, opened, lambda printed, written: printed == written) == text


@pytest.mark.parametrize("page", ["tutorial.md", "editors.md"])
def test_what_a_page_does_not_run_installs_something(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for kind, _, body in snippets(text):
        assert kind in {"bash", "console", "csv", "json", "lua", "python", "text", "yaml"}
        assert kind != "bash" or re.search(r"\b(pip|npm) install\b", body)


@pytest.mark.parametrize(
    ("page", "original"), [("README.zh-CN.md", "README.md"), ("docs/tutorial.zh-CN.md", "docs/tutorial.md")]
)
def test_a_translation_has_the_snippets_of_the_original(page: str, original: str) -> None:
    translated, first = ((REPOSITORY / one).read_text(encoding="utf-8") for one in (page, original))
    assert snippets(translated) == snippets(first)
    levels = [re.findall(r"^(#+) ", text, re.MULTILINE) for text in (translated, first)]
    assert levels[0] == levels[1]


def test_what_editors_are_told_fits_what_is_printed() -> None:
    blocks = {title: body for _, title, body in snippets((DOCS / "editors.md").read_text(encoding="utf-8")) if title}
    (task,) = json.loads(blocks[".vscode/tasks.json"])["tasks"]
    pattern = task["problemMatcher"]["pattern"]
    line = "deployments/m.yaml:26:5: error[unknown-key]: Unknown key"
    found = re.match(pattern["regexp"], line)
    assert found is not None
    places = ("file", "line", "column", "severity", "code", "message")
    assert [found[pattern[one]] for one in places] == [
        "deployments/m.yaml",
        "26",
        "5",
        "error",
        "unknown-key",
        "Unknown key",
    ]
    assert json.loads(blocks[".vscode/settings.json"])


@pytest.mark.parametrize("page", sorted(path.name for path in DOCS.glob("*.md")))
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    text = (DOCS / page).read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
        assert (DOCS / link).exists(), link


PAGES = [*sorted(DOCS.rglob("*.md")), *(REPOSITORY / name for name in ("README.md", "README.zh-CN.md"))]


def test_every_picture_is_shown_and_made_by_the_script() -> None:
    shown = {
        (page.parent / image).resolve()
        for page in PAGES
        for image in re.findall(r"!\[[^\]]+\]\(([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == set((DOCS / "pictures").iterdir())
    taken = {*(f"{name}.svg" for name in take_pictures.SCREENS), *(f"{name}.webp" for name in take_pictures.PAGES)}
    assert {path.name for path in shown} == taken
    assert sum(path.stat().st_size for path in shown) < 600_000


def test_keys_and_steps_for_those_who_come_from_elsewhere_exist() -> None:
    known = (DOCS / "manifest.md").read_text(encoding="utf-8")
    text = (DOCS / "coming-from.md").read_text(encoding="utf-8")
    cells = [row.split(" | ")[1] for row in re.findall(r"^\| (.+) \|$", text, re.MULTILINE)]
    names = {
        name for cell in cells for code in re.findall(r"`([^`]+)`", cell) for name in re.findall(r"\b([a-z_]+):", code)
    }
    steps = {code for cell in cells for code in re.findall(r"`([a-z]+_[a-z]+|nms|letterbox|unletterbox)`", cell)}
    assert len(names) > 15
    assert len(steps) > 4
    assert [name for name in names | steps if not re.search(rf"\b{name}\b", known)] == []
    for path in re.findall(r"`(deployments/[^`]+)`", text):
        assert (REPOSITORY / path).exists()
