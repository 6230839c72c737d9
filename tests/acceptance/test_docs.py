"""What is written agrees with what is there."""

import json
import re
import shlex
import shutil
import tomllib
from itertools import combinations
from pathlib import Path

import pytest
from conftest import REPOSITORY, Cli
from support.pages import manual
from support.render_readme import run
from support.sizes import closure

from ortdeploy.cli.command_line.arguments import COMMANDS
from ortdeploy.manifest.document import parse_document
from ortdeploy.providers.catalogue import PROVIDERS
from ortdeploy.schemas import schema_text

README = (REPOSITORY / "README.md").read_text(encoding="utf-8")
PACKAGE = REPOSITORY / "ortdeploy"


EVENT = re.compile(
    r"""(["'])((?:run|job|attempt|bundle|ledger|engine|caches|check|checks|digests|session|adapter|part|parts|row|rows|batch|threads|block|lock|on_end|output|plan|shard|manifest|manifests|profile|status|python|file|files|store|traces|watch|worker)"""
    r"""\.[a-z]+(?:_[a-z]+)?)\1"""
)


def logged_events() -> set[str]:
    """Every literal that is logged, or looks like an event's name in a table of them."""
    found = {name for path in PACKAGE.rglob("*.py") for _, name in EVENT.findall(path.read_text(encoding="utf-8"))}
    return found - set(json.loads(schema_text("deployment"))["$defs"]["sessionConfig"]["properties"])


def test_every_event_is_documented_and_every_documented_event_is_logged() -> None:
    documented = re.findall(
        r"^\| `([a-z._]+)` \|", (REPOSITORY / "docs/events.md").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert set(documented) == logged_events()


def test_every_key_step_and_choice_of_a_manifest_is_documented() -> None:
    text = manual() + (REPOSITORY / "docs/variants.md").read_text(encoding="utf-8")
    schema = json.loads(schema_text("deployment"))
    documented = {
        name: part
        for name, part in {"": schema, **schema["$defs"]}.items()
        if name not in {"sessionConfig", "runConfig"}
    }
    for name, part in documented.items():
        for key, value in part.get("properties", {}).items():
            assert f"`{key}`" in text or f"{key}:" in text, (name, key)
            assert all(str(choice) in text for choice in value.get("enum", [])), (name, key)


def test_the_readme_has_its_parts_in_order() -> None:
    headings = re.findall(r"^## (.+)$", README, re.MULTILINE)
    ordered = [
        "Two commands",
        "Photos in, boxes out",
        "Runs on",
        "A manifest",
        "A refusal",
        "Every board you own",
        "What a run leaves",
    ]
    assert headings[: len(ordered) + 1] == [*ordered, "How it compares"]
    assert "```" not in README.partition("```bash\n")[0]
    assert README.index("pip install") < README.index("```")


def test_the_readme_fits_on_two_screens() -> None:
    assert len(README.splitlines()) < MOST_LINES


MOST_LINES = 260
"""Of the README: two screens as GitHub shows it, with what its commands print."""


def test_the_readme_counts_the_providers() -> None:
    assert f"options of all {len(PROVIDERS)} execution providers" in README


def test_the_readme_names_every_extra() -> None:
    with (REPOSITORY / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"]) - {"dev", "test"}
    rows = re.findall(r"^\| (`.+?) \|", README.partition("| Extra |")[2].partition("\n\n")[0], re.MULTILINE)
    assert {extra for row in rows for extra in re.findall(r"`([a-z0-9]+)`", row)} == extras


def test_the_readmes_manifest_is_the_example() -> None:
    (manifest,) = re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert manifest == (REPOSITORY / "deployments/digits.yaml").read_text(encoding="utf-8")


def test_ci_runs_the_readmes_two_commands() -> None:
    commands = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    assert len(commands) == 2
    assert "ortdeploy apply deployments/digits.yaml" in commands[0]
    assert "pytest" in commands[1]
    assert all(len(command.strip().splitlines()) == 1 for command in commands)


def test_ci_runs_tests_that_are_there_and_those_that_the_test_extra_leaves_out() -> None:
    script = (REPOSITORY / ".ci/run").read_text(encoding="utf-8")
    named = set(re.findall(r"\btests/[\w/.]+", script))
    assert {one for one in named if not (REPOSITORY / one).exists()} == set()
    front = {"site", "notebook", "action", "language_server"}
    assert {f"tests/acceptance/test_{name}.py" for name in front} <= named


def console_blocks(text: str) -> list[tuple[str, str]]:
    """Commands of ```console blocks with what they print."""
    found: list[tuple[str, str]] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            found.append((command, output))
    return found


def test_every_command_of_the_readme_prints_what_it_says(tmp_path: Path) -> None:
    ignore = shutil.ignore_patterns("outbox", ".ortdeploy")
    shutil.copytree(REPOSITORY / "deployments", tmp_path / "deployments", ignore=ignore)
    run("ortdeploy apply -q deployments/digits.yaml", tmp_path)
    blocks = console_blocks(README)
    assert len(blocks) >= 5
    for command, output in blocks:
        assert run(command, tmp_path) == output, command


def test_every_ortdeploy_command_in_the_docs_exists() -> None:
    texts = [README, *(path.read_text(encoding="utf-8") for path in (REPOSITORY / "docs").rglob("*.md"))]
    words = {word for text in texts for word in re.findall(r"(?:`|\$ |bin/)ortdeploy ([a-z]+)", text)}
    assert words <= set(COMMANDS)
    assert all(any(f"ortdeploy {command}" in text for text in texts) for command in COMMANDS)


def test_pre_commit_runs_validate_on_manifests(cli: Cli) -> None:
    document, problems = parse_document((REPOSITORY / ".pre-commit-hooks.yaml").read_bytes(), "hooks")
    assert not problems
    assert document is not None
    (hook,) = document.data
    program, *arguments = shlex.split(hook["entry"])
    assert program == "ortdeploy"
    assert re.search(hook["files"], "deployments/digits.yaml")
    assert cli(*arguments, REPOSITORY / "deployments/digits.yaml").code == 0


def test_the_base_install_is_small() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = [re.split(r"[<>=]", requirement)[0] for requirement in project["dependencies"]]
    assert names == ["jsonschema", "msgspec", "numpy", "onnx", "onnxruntime", "pyyaml", "rich", "structlog", "tenacity"]


def test_the_readme_counts_the_packages() -> None:
    with_ortdeploy, runtime = len(closure("ortdeploy")), len(closure("onnxruntime"))
    assert f"{with_ortdeploy} packages with what they need" in README
    assert f"| pip: {with_ortdeploy} packages" in README
    assert f"ONNX Runtime alone has {runtime} packages" in README
    assert f"onnxruntime alone: {runtime}," in README
    chinese = (REPOSITORY / "README.zh-CN.md").read_text(encoding="utf-8")
    assert chinese.count(f"{with_ortdeploy} 个软件包") == 2
    assert f"{runtime} 个软件包" in chinese


def test_every_package_init_is_empty() -> None:
    assert all(path.stat().st_size == 0 for path in PACKAGE.rglob("__init__.py"))


def test_every_module_says_what_lives_in_it() -> None:
    modules = [path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py"]
    assert all(re.match(r'"""\S', path.read_text(encoding="utf-8")) for path in modules)


@pytest.mark.parametrize("name", ["LICENSE", "CHANGELOG.md", "CONTRIBUTING.md"])
def test_the_repository_has_its_papers(name: str) -> None:
    assert (REPOSITORY / name).stat().st_size > 0


def test_the_changelog_tells_each_news_once() -> None:
    text = (REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8")
    unreleased = text.partition("## Unreleased")[2].partition("\n## ")[0]
    items = re.findall(r"^- (.+(?:\n  .+)*)", unreleased, re.MULTILINE)
    words = [(item, set(re.findall(r"[a-z_]{6,}", item.lower()))) for item in items]
    told = [(item, one) for item, one in words if len(one) >= FEWEST_WORDS]
    assert not [
        (first, second)
        for (first, some), (second, others) in combinations(told, 2)
        if len(some & others) > MOST_SHARED * min(len(some), len(others))
    ]


FEWEST_WORDS = 5
"""Long words of an item of the changelog from which they tell what it is about."""

MOST_SHARED = 0.65
"""The share of its long words that an item may have in common with another one."""


RESOURCES = {
    "../manifest": "",
    "models": "model",
    "adapters": "adapter",
    "pipelines": "pipeline",
    "jobs": "job",
    "input": "input",
    "batch": "batch",
    "output": "output",
    "errors": "errors",
    "limits": "limits",
    "memory": "memory",
}
"""The definition in the schema that the tables of a page describe; empty: the manifest itself."""


@pytest.mark.parametrize("page", RESOURCES)
def test_the_tables_of_a_resource_have_the_keys_and_defaults_of_the_schema(page: str) -> None:
    schema = json.loads(schema_text("deployment"))
    part = schema["$defs"][RESOURCES[page]] if RESOURCES[page] else schema
    if "properties" not in part:
        (part,) = (one for one in part["anyOf"] if "properties" in one)
    pages = [page, "text-to-image", "generation"] if page == "pipelines" else [page]
    texts = ((REPOSITORY / f"docs/reference/{one}.md").read_text(encoding="utf-8") for one in pages)
    rows = [row.split(" | ") for text in texts for row in re.findall(r"^\| (`.+) \|$", text, re.MULTILINE)]
    described = {key: row for row in rows for key in re.findall(r"`([a-z_0-9]+)`", row[0])}
    assert set(part["properties"]) <= set(described)
    for key, value in part["properties"].items():
        if "default" in value:
            assert described[key][2].strip("`") in {str(value["default"]), json.dumps(value["default"])}, key
        if key in part.get("required", ()):
            assert described[key][2] == "required", key


def test_every_page_of_the_reference_has_an_example() -> None:
    for page in (REPOSITORY / "docs/reference").glob("*.md"):
        assert "```yaml\n" in page.read_text(encoding="utf-8"), page
