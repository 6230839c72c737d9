"""`ortdeploy explain [RULE|PROVIDER|STEP]`: print a rule's page, a provider's options, a step, or all names."""

import argparse
import sys
import textwrap

from ortdeploy.cli.commands.shared import terminal_width
from ortdeploy.cli.exit_codes import EXIT_OK
from ortdeploy.diagnostics import UsageError, nearest
from ortdeploy.manifest.pages import PAGES
from ortdeploy.providers.catalogue import (
    PROVIDERS,
    find_provider,
    provider_spellings,
    providers_of,
    render_page,
    short_name,
)
from ortdeploy.providers.options import render_options
from ortdeploy.providers.removed import find_gone, render_gone
from ortdeploy.rules.catalogue import RULES, Area, load_rule, rules_of
from ortdeploy.rules.pages import page_of
from ortdeploy.views.text import wrapped


def run(arguments: argparse.Namespace) -> int:
    """Print the page of a rule, provider or step; without a name, print all names."""
    if arguments.name is None:
        sys.stdout.write(_broken(_index()))
        return EXIT_OK
    name = arguments.name
    page = _list_of(name) or _provider_page(name) or page_of(name) or _step_page(name)
    sys.stdout.write(f"{_broken(page)}\n")
    return EXIT_OK


def _broken(page: str) -> str:
    """Break the lines of a page that are wider than the terminal."""
    width = terminal_width(sys.stdout)
    return page if width is None else "\n\n".join(_refilled(text, width) for text in page.split("\n\n"))


def _refilled(text: str, width: int) -> str:
    """Return a paragraph filled anew; of indented lines and of lists, what goes on stands two columns further in."""
    lines = text.split("\n")
    if not any(line.startswith((" ", "-")) for line in lines):
        return text if _fits(text, width) else wrapped(" ".join(lines), width, indent="").rstrip("\n")
    return "\n".join(line if _fits(line, width) else _with_indent(line, width) for line in lines)


def _fits(text: str, width: int) -> bool:
    return all(len(line) <= width for line in text.split("\n"))


def _with_indent(line: str, width: int) -> str:
    indent = " " * (len(line) - len(line.lstrip()))
    return wrapped(line.strip(), width, first=indent, indent=f"{indent}  ").rstrip("\n")


def _step_page(name: str) -> str:
    """Return the page of a step. Raises UsageError with the nearest name of all if there is none."""
    from ortdeploy.views.steps import step_names, step_page  # noqa: PLC0415  steps import numpy, and rules do not

    page = step_page(name)
    if page is None:
        names = (*RULES, *PAGES, *provider_spellings(), *step_names())
        meant = providers_of(name)
        if meant is not None:
            raise UsageError(f'"{name}" is no execution provider. For it, write {meant}')
        found = nearest(name, _LISTS) or nearest(name, names)
        advice = "ortdeploy explain lists all" if found is None else f'Did you mean "{found}"?'
        raise UsageError(f'there is no rule, provider or step "{name}". {advice}')
    return page


def _index() -> str:
    """Return all rules by area with their summaries, the providers and the steps."""
    from ortdeploy.operations.catalogue import OPERATIONS  # noqa: PLC0415  steps import numpy, and rules do not
    from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE  # noqa: PLC0415

    areas = {
        "the text of manifests and saved plans": {name: summary for name, (summary, _) in PAGES.items()},
        **{str(area): {rule: load_rule(rule).RULE.summary for rule in rules_of(area)} for area in Area},
    }
    width = max(len(rule) for rules in areas.values() for rule in rules)
    lines = ["ortdeploy explain NAME prints the page of one of these.", ""]
    for area, rules in areas.items():
        lines += [
            f"{area[0].upper()}{area[1:]}",
            *(f"  {rule:{width}}  {summary}" for rule, summary in rules.items()),
            "",
        ]
    lists = {
        "Execution providers": [short_name(one.name) for one in PROVIDERS],
        "Steps of prepare": PREPARE,
        "Steps of postprocess": POSTPROCESS,
        "Operations of pipelines, beside those steps": [
            one for one in OPERATIONS if one not in {*PREPARE, *POSTPROCESS}
        ],
        "Operators of ONNX, as steps": ["by their names, such as TopK"],
    }
    for title, names in lists.items():
        lines += [title, textwrap.fill(", ".join(names), initial_indent="  ", subsequent_indent="  "), ""]
    return "\n".join(lines)


_LISTS = {"rules": (), "providers": ("Execution providers",), "steps": ("Steps of ", "Operat")}
"""Parts of the index that have a name, by the beginnings of their titles; the others are lists of rules."""


def _list_of(name: str) -> str | None:
    """Return a part of the index; None if a name is that of no list."""
    if name not in _LISTS:
        return None
    others = tuple(title for titles in _LISTS.values() for title in titles)
    parts = [part for part in _index().rstrip().split("\n\n")[1:] if part.startswith(_LISTS[name] or ())]
    return "\n\n".join(parts or (part for part in _index().rstrip().split("\n\n")[1:] if not part.startswith(others)))


def _provider_page(name: str) -> str | None:
    provider, gone = find_provider(name), find_gone(name)
    if provider is not None:
        return f"{render_page(provider)}\n\n{render_options(provider)}"
    return None if gone is None else render_gone(gone)
