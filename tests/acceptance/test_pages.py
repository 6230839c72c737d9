"""Pages of the documentation whose snippets run, and those in another language."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from support import take_pictures
from support.pages import EXAMPLES, copy_digits, manual, run_examples, run_page, shell, snippets

from ortdeploy.manifest.document import parse_document
from ortdeploy.manifest.schema_check import check_document

DOCS = REPOSITORY / "docs"


@pytest.mark.process
@pytest.mark.parametrize("page", ["tutorial.md", "editors.md", "boards.md"])
def test_every_command_of_a_page_prints_what_it_says(
    page: str, tmp_path: Path, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    text = (DOCS / page).read_text(encoding="utf-8")
    (tmp_path / "pumps").mkdir()
    with shell(tmp_path / "pumps", shell_program) as opened:
        assert run_page(text, opened, lambda printed, written: printed == written) == text


@pytest.mark.process
@pytest.mark.quick("failed-rows.md")
@pytest.mark.parametrize("page", EXAMPLES)
def test_the_example_of_a_how_to_page_prints_what_it_says(
    page: str, tmp_path: Path, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    copy_digits(tmp_path)
    text = (DOCS / page).read_text(encoding="utf-8")
    if "preset: generate" in text:
        pytest.importorskip("onnxruntime_genai")
    with shell(tmp_path, shell_program) as opened:
        assert run_examples(text, opened, lambda printed, written: printed == written) == text


@pytest.mark.parametrize("page", ["tutorial.md", "editors.md", "boards.md"])
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


@pytest.mark.parametrize(  # index.md leads to pages that only the site has; its tests follow them
    "page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md") if path.name != "index.md")
)
def test_every_link_between_pages_leads_somewhere(page: str) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`", "", (DOCS / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for link, anchor in re.findall(r"\]\(([^)#:]*?)(?:#([^)]*))?\)", text):
        target = (DOCS / page).parent / link if link else DOCS / page
        assert target.exists(), link
        assert not anchor or target.suffix != ".md" or anchor in anchors(target), (link, anchor)


def anchors(page: Path) -> set[str]:
    """The places of a page that links may lead to: its headings, and what it names by hand."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        *re.findall(r'<a id="([^"]+)">', text),
        *(re.sub(r"[^\w -]", "", one.lower()).replace(" ", "-") for one in headings),
    }


def test_links_to_the_page_that_once_had_every_key_still_lead_to_the_key() -> None:
    assert anchors(DOCS / "manifest.md") >= set(OLD_ANCHORS.split())
    linked = re.findall(r"\]\((reference/[^)#]+)", (DOCS / "manifest.md").read_text(encoding="utf-8"))
    assert {f"reference/{path.name}" for path in DOCS.glob("reference/*.md")} == set(linked)


OLD_ANCHORS = """
    the-first-five-minutes at-the-top changing-values-from-the-command-line several-manifests environment-variables
    a-provider-chain a-model sessions results-behind-a-provider threads-and-cache golden-checks rows what-is-looked-at
    session-options-and-run-options memory an-adapter a-pipeline operators-of-onnx operations text-to-image a-job
    batches errors limits input when-a-job-may-run who-is-told inputs-that-recur urls prepare-steps postprocess-steps
    output the-types-of-carried-columns parts-that-are-carried-away another-deployment-for-the-same-output
    other-commands
"""
"""The headings of docs/manifest.md before it was split."""


PAGES = [*sorted(DOCS.rglob("*.md")), *(REPOSITORY / name for name in ("README.md", "README.zh-CN.md"))]


def test_every_picture_is_shown_and_made_by_the_script() -> None:
    shown = {
        (page.parent / image).resolve()
        for page in PAGES
        for image in re.findall(r"!\[[^\]]+\]\((?!\.\./\.\./actions)([^)]+)\)", page.read_text(encoding="utf-8"))
    }
    assert shown == set((DOCS / "pictures").iterdir())
    taken = {
        *(f"{name}.svg" for name in take_pictures.SCREENS),
        *(f"{name}.webp" for name in (*take_pictures.PAGES, *take_pictures.DRAWN)),
    }
    assert {path.name for path in shown} == taken
    assert sum(path.stat().st_size for path in shown) < 700_000


YAML = [
    pytest.param(body, id=f"{page.name}:{number}")
    for page in PAGES
    for number, (kind, _, body) in enumerate(snippets(page.read_text(encoding="utf-8")))
    if kind == "yaml" and page.name != "ci.md"  # whose blocks are for GitHub and pre-commit
]


@pytest.mark.parametrize("text", YAML)
def test_yaml_of_a_page_is_a_manifest_or_a_part_of_one(text: str) -> None:
    text = re.sub(r"[0-9a-f]{4}…", "a" * 64, text)  # a digest that is cut
    if re.match(r"(\s*#.*\n)*\s*- ", text):
        text = in_block(text)
    document, found = parse_document(text.encode(), "page")
    assert document is not None
    assert not [one for one in (*found, *check_document(document)) if one.rule != "missing-key"]


def in_block(text: str) -> str:
    """Steps of a pipeline as the pipeline that has them."""
    steps = "".join(f"      {line}\n" for line in text.splitlines())
    return f"pipelines:\n  p:\n    outputs: {{y: $y}}\n    steps:\n{steps}"


def test_yaml_of_the_page_about_ci_names_what_is_there() -> None:
    text = (DOCS / "ci.md").read_text(encoding="utf-8")
    workflow, hooks = (body for kind, _, body in snippets(text) if kind == "yaml")
    jobs = parsed(workflow)["jobs"]
    ((step, *_),) = ([one for one in job["steps"] if "OWNER" in str(one.get("uses"))] for job in jobs.values())
    assert set(step["with"]) <= set(parsed((REPOSITORY / "action.yml").read_text(encoding="utf-8"))["inputs"])
    known = parsed((REPOSITORY / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    asked = [hook["id"] for repository in parsed(hooks)["repos"] for hook in repository["hooks"]]
    assert asked
    assert set(asked) <= {hook["id"] for hook in known}


def parsed(text: str) -> Any:
    document, _ = parse_document(text.encode(), "page")
    assert document is not None
    return document.data


def commands_of_the_gallery() -> list[str]:
    """The commands of its page, which have a test of their own."""
    text = (REPOSITORY / "deployments/gallery/README.md").read_text(encoding="utf-8")
    (body,) = (body for kind, _, body in snippets(text) if kind == "sh")
    return body.splitlines()


@pytest.mark.process
def test_a_model_of_your_own_runs_as_the_readme_says(
    tmp_path: Path, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    shutil.copy(REPOSITORY / "deployments/models/digits.onnx", tmp_path / "mine.onnx")
    (tmp_path / "scans").mkdir()
    for number in range(8):
        shutil.copy(REPOSITORY / f"deployments/digits/{number:03}.png", tmp_path / "scans")
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    gallery, body = (body for kind, _, body in snippets(readme) if kind == "sh")
    activate, *lines = gallery.splitlines()
    assert activate == ". .venv/bin/activate"
    assert [line for line in lines if " try " not in line] == commands_of_the_gallery()
    commands = body.replace("MODEL", "mine").replace("PICTURES", "scans").splitlines()
    with shell(tmp_path, shell_program) as opened:
        for command in commands:
            opened.run(f"{command} 2>> log && echo well >> done", lambda _: True)
    assert (tmp_path / "done").read_text() == "well\n" * 3, (tmp_path / "log").read_text()
    assert list((tmp_path / "outbox/mine").glob("part-*"))


def test_what_is_to_be_filled_in_before_a_release_is_named() -> None:
    files = (
        "pyproject.toml",
        "ortdeploy/cli/command_line/arguments.py",
        *(f"docs/{page.name}" for page in DOCS.glob("*.md")),
        "README.md",
        "action.yml",
    )
    left = {file for file in files if "OWNER/" in (REPOSITORY / file).read_text(encoding="utf-8")}
    releasing = (REPOSITORY / "RELEASING.md").read_text(encoding="utf-8")
    assert {file for file in files if f"`{file}`" in releasing} >= left


def test_keys_and_steps_for_those_who_come_from_elsewhere_exist() -> None:
    known = manual()
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
