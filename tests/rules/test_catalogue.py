"""The lists that must agree: rule files, the catalogue, ids, pages."""

from pathlib import Path

import pytest

from ortdeploy.manifest.pages import PAGES
from ortdeploy.rules import catalogue, output_named_as_file
from ortdeploy.rules.catalogue import RULES, SPEC_RULES, Area, load_rule, rules_of
from ortdeploy.rules.pages import page_of, remedy_of
from ortdeploy.rules.protocol import Finding, Rule, RuleCrashError, check_rules
from ortdeploy.sinks.catalogue import SINKS

FOLDER = Path(catalogue.__file__).parent


def test_every_rule_file_is_in_the_catalogue() -> None:
    files = {path.stem for path in FOLDER.glob("*.py")} - {"__init__", "catalogue", "pages", "protocol"}
    assert files == {rule.replace("-", "_") for rule in RULES}


def test_the_catalogue_is_sorted() -> None:
    assert list(RULES) == sorted(RULES)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_is_named_like_its_file_and_looks_at_the_noun_of_its_table(rule: str) -> None:
    module = load_rule(rule)
    assert module.RULE.id == rule
    noun = "Spec" if rule in SPEC_RULES else "Deployment"
    assert f'"{noun}") -> Iterator[Finding]' in Path(str(getattr(module, "__file__"))).read_text(encoding="utf-8")  # noqa: B009  a module's file


@pytest.mark.parametrize("rule", RULES)
def test_every_page_has_its_four_parts(rule: str) -> None:
    page = page_of(rule)
    assert page is not None
    places = [page.find(part) for part in ("What it catches:", "Why:", "Example:", "How to fix:")]
    assert -1 not in places
    assert places == sorted(places)
    assert page.endswith(f"How to fix: {remedy_of(rule)}")
    assert remedy_of(rule)


def test_a_rule_knows_all_output_formats() -> None:
    assert set(SINKS) == output_named_as_file.FORMATS


@pytest.mark.parametrize("area", Area)
def test_every_area_has_rules(area: Area) -> None:
    assert rules_of(area)


def test_rules_and_stage_pages_do_not_share_names() -> None:
    assert not set(RULES) & set(PAGES)


def test_a_rule_that_crashes_is_named() -> None:
    class Broken:
        RULE = Rule(id="broken", summary="Broken")

        @staticmethod
        def check(_noun: object) -> "list[Finding]":
            raise ZeroDivisionError

    with pytest.raises(RuleCrashError, match="rule broken"):
        check_rules([Broken], None, None)  # type: ignore[list-item, arg-type]  # a rule made wrong on purpose
