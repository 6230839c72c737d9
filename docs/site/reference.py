"""The pages of the site that are made from the program: rules, providers, steps, commands, exit codes and schemas."""

import io
import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import contracts

from ortdeploy.cli.command_line.arguments import COMMANDS, EXIT_CODES, build_parser
from ortdeploy.manifest.pages import PAGES
from ortdeploy.providers.catalogue import PROVIDERS, render_page, short_name
from ortdeploy.providers.options import render_options
from ortdeploy.rules.catalogue import Area, load_rule, rules_of
from ortdeploy.rules.pages import page_of
from ortdeploy.schemas import load_schema, schema_names, schema_text

_PARTS = ("What it catches", "Why", "Example", "How to fix")
_TEXT_AREA = "the text of manifests and saved plans"
_COLUMNS = "100"  # of the help texts
_CASES = Path(__file__).parent.parent.parent / "tests/rules/cases"
_MOST_LINES = 30  # of a case that a page shows
_PAGES_OF_KEYS = {
    **{key: key for key in ("models", "adapters", "pipelines", "jobs", "input", "prepare", "batch", "postprocess")},
    **{key: key for key in ("output", "errors", "limits", "memory", "threads", "checks", "hours")},
    "providers": "provider-chains",
    "cache": "threads",
    "row_independence": "rows",
    "shared_arena": "memory",
    "until": "hours",
    "pause": "hours",
    "on_end": "on-end",
    "profiles": "overrides",
}
"""The page of the reference that describes a key, by the key."""


def pages() -> Iterator[tuple[str, str]]:
    """Yield the path of each page in the site, and its Markdown or JSON."""
    yield "reference/rules/index.md", _rules()
    for rule in _all_rules():
        yield f"reference/rules/{rule}.md", _rule(rule)
    yield "reference/providers/index.md", _providers()
    for provider in PROVIDERS:
        name = short_name(provider.name)
        body = f"{render_page(provider)}\n\n{render_options(provider, with_sources=False)}"
        yield f"reference/providers/{name}.md", f"# {name}\n\n{_fenced(body)}"
    yield "contracts.md", contracts.render()
    yield "reference/commands.md", _commands()
    yield "reference/exit-codes.md", _exit_codes()
    yield (
        "reference/keys.md",
        _keys("deployment", "Keys of a manifest", "what editors show of each key."),
    )
    yield "reference/report.md", _keys("report", "The report", "`_run.json` in the folder of an output.")
    yield "reference/device.md", _keys("device", "A device file", "what `ortdeploy device` writes.")
    yield "reference/json.md", _keys("diagnostics", "JSON of validate, plan and apply", "what `--format json` prints.")
    yield "reference/schemas.md", _schemas()
    for name in schema_names():
        yield f"schemas/{name}.schema.json", schema_text(name)


def _all_rules() -> list[str]:
    return [*PAGES, *(rule for area in Area for rule in rules_of(area))]


def _rules() -> str:
    areas: dict[str, list[tuple[str, str]]] = {_TEXT_AREA: [(name, summary) for name, (summary, _) in PAGES.items()]}
    for area in Area:
        areas[str(area)] = [(rule, load_rule(rule).RULE.summary) for rule in rules_of(area)]
    lines = [
        "# Rules",
        "",
        "What is refused or warned of, by area. `ortdeploy explain RULE` prints the same pages.",
        "",
    ]
    for title, rules in areas.items():
        lines += [f"## {title[0].upper()}{title[1:]}", "", "| Rule | What |", "| --- | --- |"]
        lines += [f"| [{rule}]({rule}.md) | {_escaped(summary)} |" for rule, summary in rules]
        lines.append("")
    return "\n".join(lines)


def _rule(rule: str) -> str:
    page = page_of(rule)
    if page is None:
        raise AssertionError(f"{rule} has no page")
    head, _, text = page.partition("\n\n")
    lines = [f"# {rule}", "", f"**{_escaped(head.partition(': ')[2])}**", ""]
    return "\n".join([*lines, *_paragraphs(text), *_cases(rule)])


def _cases(rule: str) -> Iterator[str]:
    """Yield a manifest that a rule flags, one that it does not flag, and the page of the key: cases of its tests.

    Cases that suppose facts are not shown, because the text does not tell why one of them is flagged.
    """
    flagged = min((_CASES / rule).glob("flagged*.yaml"), key=lambda path: len(path.stem), default=None)
    if flagged is None:
        return
    clean = min(flagged.parent.glob("clean*.yaml"), key=lambda path: len(path.stem))
    found, instead = (path.read_text(encoding="utf-8") for path in (flagged, clean))
    if not any(text.startswith("# facts:") for text in (found, instead)) and len(found.splitlines()) <= _MOST_LINES:
        yield f"## A manifest that is flagged\n\n```yaml\n{re.sub(r'# expect: .*', '# flagged', found)}```\n"
        yield f"## Use instead\n\n```yaml\n{instead}```\n"
    page = _page_of_key(found)
    yield f"The key: [{page}](../{page}.md).\n"


def _page_of_key(case: str) -> str:
    """Return the page that describes the key of the first flagged line."""
    lines = case.splitlines()
    at = next(number for number, line in enumerate(lines) if "# expect:" in line)
    keys, depth = [], len(lines[at])
    for line in reversed(lines[: at + 1]):
        indent, key = re.match(r"(\s*(?:- )?)\{?(\w*)", line).groups()  # type: ignore[union-attr]
        if key and len(indent) < depth:
            keys.append(key)
            depth = len(indent)
    pages = [_PAGES_OF_KEYS[key] for key in keys if key in _PAGES_OF_KEYS]
    return pages[0] if pages else "jobs"


def _paragraphs(text: str) -> Iterator[str]:
    """Turn the parts of a page into Markdown: examples and what is indented is shown as it is written."""
    for paragraph in re.split(r"\n\n+", text):
        label = next((part for part in _PARTS if paragraph.startswith(f"{part}:")), None)
        body = paragraph if label is None else paragraph.removeprefix(f"{label}:")
        if label is not None:
            yield f"## {label}\n"
        if not body:
            continue  # what follows is a paragraph of its own
        if label == "Example" or body.startswith("    "):
            yield _fenced(textwrap.dedent(body.removeprefix(" ") if label else body).strip("\n"))
        else:
            yield f"{_begun(_escaped(body.strip()))}\n"


def _begun(text: str) -> str:
    """Begin with a capital what stood behind a colon, unless it begins with a key."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].rstrip(",").isalpha() else text


def _providers() -> str:
    lines = [
        "# Execution providers",
        "",
        "`ortdeploy explain PROVIDER` prints the same pages, with the source of each option.",
        "",
    ]
    lines += [f"- [{short_name(one.name)}]({short_name(one.name)}.md)" for one in PROVIDERS]
    return "\n".join([*lines, ""])


def _commands() -> str:
    lines = ["# Commands", ""]
    with patch.dict(os.environ, {"COLUMNS": _COLUMNS, "NO_COLOR": "1"}):
        for command in COMMANDS:
            lines += [f"## {command}", "", _fenced(_help(command))]
    return "\n".join(lines)


def _help(command: str) -> str:
    shown = io.StringIO()
    with redirect_stdout(shown), suppress(SystemExit):
        build_parser(only=command).parse_args([command, "--help"])
    return shown.getvalue().rstrip()


def _exit_codes() -> str:
    lines = [
        "# Exit codes",
        "",
        "| Code | Meaning |",
        "| --- | --- |",
        *(f"| {code} | {text} |" for code, text in EXIT_CODES),
    ]
    several = "If jobs end differently, the code is the first of 3, 130 and 143, 4, 1, 5, 0 that one of them has."
    return "\n".join([*lines, "", several, ""])


def _keys(name: str, title: str, about: str) -> str:
    schema = load_schema(name)
    lines = [f"# {title}", "", f"From [{name}.schema.json](../schemas/{name}.schema.json): {about}", ""]
    lines += _table("At the top", schema, schema)
    for key, part in schema.get("$defs", {}).items():
        if part.get("properties"):
            lines += _table(part.get("title", key), part, schema)
    return "\n".join(lines)


def _table(title: str, part: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    required = set(part.get("required", ()))
    rows = []
    for key, value in part["properties"].items():
        known = {**_referred(schema, value), **value} if isinstance(value, dict) else {}
        about = str(known.get("description") or known.get("title") or "")
        rows.append(f"| `{key}`{' (needed)' if key in required else ''} | {_kind(known)} | {_cell(about)} |")
    return [f"## {title}", "", "| Key | Value | Meaning |", "| --- | --- | --- |", *rows, ""]


def _referred(schema: Mapping[str, Any], value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return title and description of what a value refers to in the same schema."""
    name = str(value.get("$ref", "")).removeprefix("#/$defs/")
    found = schema.get("$defs", {}).get(name, {})
    return {key: found[key] for key in ("title", "description") if key in found}


def _kind(value: Mapping[str, Any]) -> str:
    """Say in few words what a value may be."""
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return ", ".join(f"`{_cell(str(one))}`" for one in value["enum"])
    if "$ref" in value:
        return _cell(str(value["$ref"]).rpartition("/")[2].removesuffix(".schema.json"))
    kinds = value.get("type", "")
    words = [*kinds] if isinstance(kinds, list) else [str(kinds)]
    words += [_kind(choice) for choice in value.get("anyOf", value.get("oneOf", ()))]
    found = ", ".join(dict.fromkeys(word for word in words if word))
    default = f"; default `{_cell(json.dumps(value['default']))}`" if "default" in value else ""
    return f"{found}{default}"


def _schemas() -> str:
    lines = [
        "# JSON Schemas",
        "",
        "`ortdeploy schema NAME` prints one as a single file, for an editor without a network.",
        "",
    ]
    lines += [f"- [{name}](../schemas/{name}.schema.json)" for name in schema_names()]
    return "\n".join([*lines, ""])


def _fenced(text: str) -> str:
    return f"```text\n{text}\n```\n"


def _cell(text: str) -> str:
    return _escaped(text.replace("\n", " ")).replace("|", "\\|")


def _escaped(text: str) -> str:
    """Escape what Markdown would take for markup, but not inside of backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([\\*_<\[\]{}#])", r"\\\1", part) for part in parts)
