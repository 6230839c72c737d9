"""Every block of code in a page is executed or checked by a test that is named here; the others have a reason."""

import ast
import re
import shlex
import shutil
from functools import cache
from pathlib import Path

import pytest
from conftest import REPOSITORY
from PIL import Image
from support import family_models as families
from support.gallery import deployed
from support.pages import EXAMPLES, shell, snippets

from ortdeploy.cli.command_line.arguments import build_parser
from ortdeploy.results.shares import Shares, SlowPart, WorkerShare
from ortdeploy.views.text import render_shares

OWN = "tests/acceptance/test_snippets.py::"
FLAGS = f"{OWN}test_commands_have_flags_that_exist"
PAGES = "tests/acceptance/test_pages.py::"
BUNDLES = "tests/acceptance/test_bundles.py::"
EXAMPLE = f"{PAGES}test_the_example_of_a_how_to_page_prints_what_it_says"
WHOLE_PAGE = f"{PAGES}test_every_command_of_a_page_prints_what_it_says"
TRANSLATION = f"{PAGES}test_a_translation_has_the_snippets_of_the_original"
INSTALLS = f"{PAGES}test_what_a_page_does_not_run_installs_something"
DEMO = "tests/acceptance/test_fleet_demo.py::"
FLEET = "tests/acceptance/test_fleet.py::"
YAML = f"{PAGES}test_yaml_of_a_page_is_a_manifest_or_a_part_of_one"
TWO_COMMANDS = "tests/acceptance/test_docs.py::test_ci_runs_the_readmes_two_commands"
EDITORS = "tests/acceptance/test_language_server.py::"

REFERENCE = sorted((REPOSITORY / "docs/reference").glob("*.md"))
"""The pages of the manifest's resources, each with an example."""

HOW_TO = ("from-a-script", "gpu", "inbox", "monitoring", "two-boards")
"""The pages of tasks that show parts of a manifest."""

TESTS = {
    ("README.md", "bash"): TWO_COMMANDS,
    ("README.md", "console"): "tests/acceptance/test_docs.py::test_every_command_of_the_readme_prints_what_it_says",
    ("README.md", "sh"): f"{PAGES}test_a_model_of_your_own_runs_as_the_readme_says",
    ("README.md", "text"): f"{DEMO}test_the_readme_shows_lines_of_the_page",
    ("README.md", "yaml"): "tests/acceptance/test_docs.py::test_the_readmes_manifest_is_the_example",
    ("README.zh-CN.md", "*"): TRANSLATION,
    ("deployments/gallery/README.md", "sh"): f"{OWN}test_a_model_of_the_gallery_runs_as_its_page_says",
    ("docs/architecture.md", "mermaid"): "tests/test_architecture.py::test_the_picture_shows_the_layers",
    ("docs/boards.md", "bash"): INSTALLS,
    ("docs/bundles.md", "console"): EXAMPLE,
    ("docs/bundles.md", "sh"): FLAGS,
    ("docs/bundles.md", "text"): f"{BUNDLES}test_the_policy_of_the_page_is_one",
    ("docs/captions.md", "yaml"): YAML,
    ("docs/ci.md", "yaml"): f"{PAGES}test_yaml_of_the_page_about_ci_names_what_is_there",
    ("docs/editors.md", "console"): WHOLE_PAGE,
    ("docs/editors.md", "bash"): INSTALLS,
    ("docs/editors.md", "json"): f"{PAGES}test_what_editors_are_told_fits_what_is_printed",
    ("docs/editors.md", "lua"): f"{EDITORS}test_neovim_shows_what_the_server_and_validate_find",
    ("docs/editors.md", "yaml"): YAML,
    **{(f"docs/{page}", "console"): EXAMPLE for page in EXAMPLES},
    ("docs/how-to/from-a-script.md", "python"): EXAMPLE,
    **{(f"docs/how-to/{name}.md", "yaml"): YAML for name in HOW_TO},
    ("docs/fleet.md", "console"): f"{FLEET}test_the_commands_of_the_page_work",
    ("docs/fleet.md", "json"): f"{FLEET}test_the_document_of_the_page_is_one",
    ("docs/fleet.md", "sh"): FLAGS,
    ("docs/fleet.md", "text"): "tests/acceptance/test_pull_signed.py::test_a_signed_commit_is_pulled_and_applied",
    ("docs/fleet-demo.md", "sh"): f"{DEMO}test_the_demo_keeps_its_promises_and_prints_what_the_page_shows",
    ("docs/fleet-demo.md", "text"): f"{DEMO}test_the_demo_keeps_its_promises_and_prints_what_the_page_shows",
    ("docs/expect.md", "yaml"): YAML,
    ("docs/plans.md", "sh"): f"{OWN}test_an_open_plan_runs_as_the_page_says",
    ("docs/python.md", "pycon"): "tests/test_api.py::test_the_examples_of_the_page_run",
    ("docs/ray.md", "sh"): FLAGS,
    ("docs/shards.md", "sh"): f"{OWN}test_shards_of_a_plan_run_as_the_page_says",
    ("docs/shards.md", "text"): f"{OWN}test_the_progress_of_shards_looks_as_the_page_says",
    ("docs/manifest.md", "yaml"): YAML,
    **{(f"docs/reference/{page.name}", "yaml"): YAML for page in REFERENCE},
    ("docs/reference/limits.md", "text"): "tests/reports/test_memory_told.py::test_the_page_shows_what_is_told",
    ("docs/detection.md", "yaml"): YAML,
    ("docs/results-of-jobs.md", "yaml"): YAML,
    ("docs/sound.md", "yaml"): YAML,
    ("docs/text.md", "yaml"): YAML,
    ("docs/transcripts.md", "yaml"): YAML,
    ("docs/tutorial.md", "*"): WHOLE_PAGE,
    ("docs/tutorial.zh-CN.md", "*"): TRANSLATION,
    ("docs/upstream.md", "yaml"): YAML,
    ("docs/your-model.md", "console"): f"{OWN}test_the_first_five_minutes_run_as_the_page_says",
    ("docs/video.md", "yaml"): YAML,
    ("docs/windows.md", "yaml"): YAML,
    (
        "docs/variants.md",
        "console",
    ): "tests/acceptance/test_device_table.py::test_the_page_about_variants_shows_what_is_there",
    ("docs/variants.md", "yaml"): YAML,
}
"""The test of each kind of block, by page; `*` stands for all kinds."""

REASONS = {("CONTRIBUTING.md", "console"): "its second line is the whole suite; .ci/run runs both lines"}
"""Blocks that no test runs."""

_FENCE = re.compile(r"^[ >]*(?:```|~~~)(.*)$", re.MULTILINE)


def blocks() -> set[tuple[str, str]]:
    """Page and kind of every block; the kind of one without a tag is empty."""
    folders = ("benchmarks", "deployments", "docs")
    pages = [*REPOSITORY.glob("*.md"), *(page for one in folders for page in (REPOSITORY / one).rglob("*.md"))]
    found = set()
    for page in pages:
        fences = _FENCE.findall(page.read_text(encoding="utf-8"))[::2]
        found |= {(page.relative_to(REPOSITORY).as_posix(), fence.partition(" ")[0]) for fence in fences}
    return found


def test_every_block_of_every_page_is_run_or_checked_or_has_a_reason() -> None:
    known = {*TESTS, *REASONS}
    assert {one for one in blocks() if one not in known and (one[0], "*") not in known} == set()
    pages = {page for page, _ in blocks()}
    assert {one for one in known if one not in blocks() and not (one[1] == "*" and one[0] in pages)} == set()


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((REPOSITORY / file).read_text(encoding="utf-8"))
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))


@pytest.mark.parametrize("test", sorted(set(TESTS.values())))
def test_the_test_of_a_block_is_there(test: str) -> None:
    file, _, name = test.partition("::")
    assert name in names_in(file)


def commands(page: str, kind: str, number: int = 0) -> list[str]:
    """The commands of a page's block, without comments and prompts."""
    text = (REPOSITORY / page).read_text(encoding="utf-8")
    body = [body for found, _, body in snippets(text) if found == kind][number]
    return [re.sub(r"\s+# .*", "", line.removeprefix("$ ")) for line in body.splitlines()]


def run_all(lines: list[str], folder: Path, program: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run commands in a shell; each of them must end well."""
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    with shell(folder, program) as opened:
        for line in lines:
            said = opened.run(f"{line} && echo well", lambda _: True)
            assert said.endswith("well\n"), f"{line}\n{said}"


def digits(folder: Path, name: str) -> None:
    """Copy the example of the README under another name."""
    for one in ("digits", "models"):
        shutil.copytree(REPOSITORY / "deployments" / one, folder / one)
    shutil.copy(REPOSITORY / "deployments/digits.yaml", folder / name)


@pytest.mark.process
def test_shards_of_a_plan_run_as_the_page_says(
    tmp_path: Path, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits(tmp_path, "nightly.yaml")
    run_all(
        commands("docs/shards.md", "sh"), tmp_path, shell_program, monkeypatch
    )  # all rows are one part, that of shard 0
    assert list((tmp_path / "outbox/digits").glob("part-*"))


@pytest.mark.process
def test_an_open_plan_runs_as_the_page_says(
    tmp_path: Path, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digits(tmp_path, "pump.yaml")
    run_all(["ortdeploy device -o device.yaml", *commands("docs/plans.md", "sh")], tmp_path, shell_program, monkeypatch)
    assert list((tmp_path / "outbox/digits").glob("part-*"))


@pytest.mark.process
def test_the_first_five_minutes_run_as_the_page_says(
    tmp_path: Path, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    families.yolo(tmp_path / "detector.onnx")
    (tmp_path / "photos").mkdir()
    Image.new("RGB", (640, 480)).save(tmp_path / "photos/one.png")
    run_all(commands("docs/your-model.md", "console"), tmp_path, shell_program, monkeypatch)
    assert list((tmp_path / "outbox/detector").glob("part-*"))


@pytest.mark.process
def test_a_model_of_the_gallery_runs_as_its_page_says(
    tmp_path: Path, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install, *lines = commands("deployments/gallery/README.md", "sh")
    assert install == "pip install rapidocr"
    deployed("ocr", tmp_path / "tried")  # skips where the package is missing
    copied = shutil.ignore_patterns("inbox", "outbox", ".ortdeploy", "*.onnx")
    shutil.copytree(REPOSITORY / "deployments/gallery", tmp_path / "deployments/gallery", ignore=copied)
    Image.new("RGB", (320, 240), "white").save(tmp_path / "page.png")
    run_all(lines, tmp_path, shell_program, monkeypatch)
    assert list((tmp_path / "deployments/gallery/outbox/ocr").glob("part-*"))


@pytest.mark.parametrize("page", ["docs/bundles.md", "docs/fleet.md", "docs/ray.md"])
def test_commands_have_flags_that_exist(page: str) -> None:
    blocks = [body for kind, _, body in snippets((REPOSITORY / page).read_text(encoding="utf-8")) if kind == "sh"]
    lines = [line for body in blocks for line in body.splitlines() if line.startswith("ortdeploy ")]
    assert len(lines) > 1
    for _, command, *words in (shlex.split(line, comments=True) for line in lines):
        build_parser(command).parse_args([command, *words])  # exits if there is no such flag


def test_the_progress_of_shards_looks_as_the_page_says() -> None:
    shares = Shares(
        parts=16,
        decided=9,
        rows=2304,
        all_rows=4096,
        failed=3,
        workers=(
            WorkerShare(name="node-1 0/4", parts=4, rows=1024, failed=0, seconds=32.4),
            WorkerShare(name="node-1 1/4", parts=4, rows=1024, failed=0, seconds=32.2),
            WorkerShare(name="node-2 3/4", parts=1, rows=256, failed=3, seconds=41.2),
        ),
        slow=(
            SlowPart(part=2, start=512, end=767, seconds=41.2, worker="node-2 3/4"),
            SlowPart(part=3, start=768, end=1023, seconds=93.0, worker=None),
        ),
        left=((3, 3), (7, 7), (11, 15)),
        median=8.1,
    )
    assert list(render_shares("read", shares)) == commands("docs/shards.md", "text")
