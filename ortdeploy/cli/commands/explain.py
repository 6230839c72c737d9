"""`ortdeploy explain [RULE|PROVIDER]`: print a rule's page, a provider's options, or all names."""

import argparse
import sys
import textwrap

from ortdeploy.cli.exit_codes import EXIT_OK
from ortdeploy.diagnostics import UsageError, did_you_mean
from ortdeploy.manifest.pages import PAGES
from ortdeploy.providers.catalogue import (
    PROVIDERS,
    find_provider,
    provider_spellings,
    render_page,
    short_name,
)
from ortdeploy.providers.gone import find_gone, render_gone
from ortdeploy.providers.options import render_options
from ortdeploy.rules.catalogue import RULES, Area, load_rule, rules_of
from ortdeploy.rules.pages import page_of


def run(arguments: argparse.Namespace) -> int:
    """Print the page of a rule or provider; without a name, print all names."""
    if arguments.name is None:
        sys.stdout.write(_index())
        return EXIT_OK
    page = _provider_page(arguments.name) or page_of(arguments.name)
    if page is None:
        known = (*RULES, *PAGES, *provider_spellings())
        raise UsageError(f'there is no rule or provider "{arguments.name}". {did_you_mean(arguments.name, known)}')
    sys.stdout.write(f"{page}\n")
    return EXIT_OK


def _index() -> str:
    """Return all rules by area with their summaries, and the providers."""
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
    names = textwrap.fill(
        ", ".join(short_name(one.name) for one in PROVIDERS), initial_indent="  ", subsequent_indent="  "
    )
    return "\n".join([*lines, "Execution providers", names, ""])


def _provider_page(name: str) -> str | None:
    provider, gone = find_provider(name), find_gone(name)
    if provider is not None:
        return f"{render_page(provider)}\n\n{render_options(provider)}"
    return None if gone is None else render_gone(gone)
