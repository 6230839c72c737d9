"""The rules: one line for each, with the stage of planning in which it looks and the area that it is about.

A rule has the name of its module. A module is imported when its rule is needed, so that `validate` starts fast.
"""

import importlib
from collections.abc import Mapping, Sequence
from enum import StrEnum, auto
from functools import cache
from typing import cast

from ortdeploy.rules.protocol import RuleModule


class Stage(StrEnum):
    """When a rule looks: at the text alone, at facts, at models that were opened, at what preflight has found."""

    TEXT = auto()
    FACTS = auto()
    OPENING = auto()
    PREFLIGHT = auto()


class Area(StrEnum):
    """What rules are about, for readers who look for one without knowing its name; in the order of a manifest."""

    NAMES = "names and places"
    PROVIDERS = "providers and their options"
    MACHINE = "this machine and what is installed"
    TIMING = "when a job runs"
    RESOURCES = "threads and memory"
    MODELS = "models"
    ADAPTERS = "adapters"
    INPUT = "input and how it is prepared"
    BATCHES = "batches"
    PIPELINES = "pipelines"
    OUTPUT = "output"


_TABLE: Mapping[str, tuple[Stage, Area]] = {
    "adapter-for-another-model": (Stage.TEXT, Area.ADAPTERS),
    "adapter-mismatch": (Stage.FACTS, Area.ADAPTERS),
    "adapter-placement": (Stage.TEXT, Area.ADAPTERS),
    "clashing-columns": (Stage.FACTS, Area.OUTPUT),
    "compiled-elsewhere": (Stage.FACTS, Area.MODELS),
    "concurrent-runs": (Stage.TEXT, Area.RESOURCES),
    "contradictory-genai-config": (Stage.FACTS, Area.PIPELINES),
    "contradictory-input": (Stage.TEXT, Area.INPUT),
    "contradictory-memory": (Stage.TEXT, Area.RESOURCES),
    "contradictory-option": (Stage.TEXT, Area.PROVIDERS),
    "contradictory-when": (Stage.TEXT, Area.NAMES),
    "crowded-device": (Stage.FACTS, Area.RESOURCES),
    "deprecated-provider-option": (Stage.TEXT, Area.PROVIDERS),
    "digest-mismatch": (Stage.FACTS, Area.MODELS),
    "dropped-by-adapter": (Stage.TEXT, Area.ADAPTERS),
    "dropped-transparency": (Stage.PREFLIGHT, Area.INPUT),
    "dynamic-shape": (Stage.FACTS, Area.MODELS),
    "element-type-mismatch": (Stage.FACTS, Area.MODELS),
    "empty-input": (Stage.PREFLIGHT, Area.INPUT),
    "failing-rows": (Stage.PREFLIGHT, Area.INPUT),
    "finished-output": (Stage.FACTS, Area.OUTPUT),
    "fixed-batch-mismatch": (Stage.FACTS, Area.BATCHES),
    "gate-without-checks": (Stage.TEXT, Area.MODELS),
    "idle-provider": (Stage.TEXT, Area.PROVIDERS),
    "ignored-option": (Stage.TEXT, Area.PROVIDERS),
    "ignored-provider-option": (Stage.FACTS, Area.PROVIDERS),
    "implied-when": (Stage.TEXT, Area.NAMES),
    "inapplicable-step": (Stage.FACTS, Area.INPUT),
    "incompatible-compiled-model": (Stage.OPENING, Area.MODELS),
    "incompatible-devices": (Stage.FACTS, Area.PROVIDERS),
    "incompatible-providers": (Stage.TEXT, Area.PROVIDERS),
    "input-shape-mismatch": (Stage.FACTS, Area.INPUT),
    "input-type-mismatch": (Stage.FACTS, Area.INPUT),
    "key-of-another-preset": (Stage.TEXT, Area.PIPELINES),
    "label-count-mismatch": (Stage.FACTS, Area.OUTPUT),
    "late-compiler": (Stage.TEXT, Area.PROVIDERS),
    "layout-mismatch": (Stage.FACTS, Area.MODELS),
    "limit-below-weights": (Stage.FACTS, Area.RESOURCES),
    "link-out-of-tree": (Stage.FACTS, Area.NAMES),
    "mean-of-another-scale": (Stage.FACTS, Area.INPUT),
    "misnamed-operator": (Stage.TEXT, Area.PIPELINES),
    "missing-adapter": (Stage.FACTS, Area.ADAPTERS),
    "missing-column": (Stage.FACTS, Area.INPUT),
    "missing-library": (Stage.FACTS, Area.PROVIDERS),
    "missing-locale": (Stage.FACTS, Area.MACHINE),
    "missing-package": (Stage.FACTS, Area.MACHINE),
    "mixed-provider-routes": (Stage.FACTS, Area.PROVIDERS),
    "moved-input": (Stage.FACTS, Area.INPUT),
    "narrowed-numbers": (Stage.PREFLIGHT, Area.INPUT),
    "not-finite-rows": (Stage.PREFLIGHT, Area.INPUT),
    "old-runtime": (Stage.FACTS, Area.MACHINE),
    "optimized-elsewhere": (Stage.FACTS, Area.MODELS),
    "outdated-compiled-model": (Stage.OPENING, Area.MODELS),
    "output-inside-input": (Stage.TEXT, Area.NAMES),
    "output-named-as-file": (Stage.TEXT, Area.OUTPUT),
    "output-without-rows": (Stage.FACTS, Area.OUTPUT),
    "over-disk-limit": (Stage.PREFLIGHT, Area.RESOURCES),
    "over-gpu-memory": (Stage.FACTS, Area.RESOURCES),
    "over-memory-limit": (Stage.PREFLIGHT, Area.RESOURCES),
    "overlapping-adapters": (Stage.FACTS, Area.ADAPTERS),
    "overridable-initializer": (Stage.FACTS, Area.PROVIDERS),
    "overruled-shape": (Stage.FACTS, Area.MODELS),
    "oversized-tensor": (Stage.PREFLIGHT, Area.BATCHES),
    "path-outside-tree": (Stage.TEXT, Area.NAMES),
    "pipeline-mismatch": (Stage.FACTS, Area.PIPELINES),
    "pipeline-wiring": (Stage.TEXT, Area.PIPELINES),
    "predicted-cpu-nodes": (Stage.FACTS, Area.PROVIDERS),
    "providers-and-sessions": (Stage.TEXT, Area.NAMES),
    "random-operator": (Stage.FACTS, Area.MODELS),
    "refused-model": (Stage.OPENING, Area.MODELS),
    "refused-operator": (Stage.OPENING, Area.PIPELINES),
    "refused-url": (Stage.TEXT, Area.NAMES),
    "removed-provider-option": (Stage.TEXT, Area.PROVIDERS),
    "repeated-column": (Stage.TEXT, Area.NAMES),
    "repeated-provider": (Stage.TEXT, Area.PROVIDERS),
    "rounded-memory": (Stage.TEXT, Area.NAMES),
    "sample-rate-mismatch": (Stage.FACTS, Area.INPUT),
    "saturating-int8": (Stage.FACTS, Area.MACHINE),
    "scale-of-the-batch": (Stage.FACTS, Area.MODELS),
    "several-npy-columns": (Stage.FACTS, Area.OUTPUT),
    "several-runtimes": (Stage.FACTS, Area.MACHINE),
    "shape-mismatch": (Stage.FACTS, Area.MODELS),
    "shape-option-mismatch": (Stage.FACTS, Area.PROVIDERS),
    "shared-engine-cache": (Stage.FACTS, Area.PROVIDERS),
    "shared-output-path": (Stage.TEXT, Area.NAMES),
    "short-last-batch": (Stage.FACTS, Area.BATCHES),
    "skipped-provider": (Stage.FACTS, Area.PROVIDERS),
    "spinning-sessions": (Stage.TEXT, Area.RESOURCES),
    "threads-over-limit": (Stage.TEXT, Area.RESOURCES),
    "too-many-threads": (Stage.FACTS, Area.RESOURCES),
    "too-new-model": (Stage.FACTS, Area.MODELS),
    "unavailable-provider": (Stage.FACTS, Area.PROVIDERS),
    "unchecked-option": (Stage.TEXT, Area.PROVIDERS),
    "unchecked-sample-rate": (Stage.FACTS, Area.INPUT),
    "undefined-adapter": (Stage.TEXT, Area.NAMES),
    "undefined-model": (Stage.TEXT, Area.NAMES),
    "undefined-pipeline": (Stage.TEXT, Area.NAMES),
    "undefined-provider-chain": (Stage.TEXT, Area.NAMES),
    "unfinished-shards": (Stage.FACTS, Area.OUTPUT),
    "unknown-component": (Stage.TEXT, Area.NAMES),
    "unknown-device": (Stage.FACTS, Area.PROVIDERS),
    "unknown-dimension": (Stage.FACTS, Area.MODELS),
    "unknown-output-column": (Stage.FACTS, Area.OUTPUT),
    "unknown-provider": (Stage.TEXT, Area.PROVIDERS),
    "unknown-rank": (Stage.FACTS, Area.MODELS),
    "unknown-tensor": (Stage.FACTS, Area.INPUT),
    "unmatched-input": (Stage.FACTS, Area.INPUT),
    "unpinned-url": (Stage.TEXT, Area.NAMES),
    "unreachable-provider": (Stage.TEXT, Area.PROVIDERS),
    "unreached-timeout": (Stage.TEXT, Area.TIMING),
    "unreadable-adapter": (Stage.FACTS, Area.ADAPTERS),
    "unreadable-input": (Stage.FACTS, Area.INPUT),
    "unreadable-labels": (Stage.FACTS, Area.OUTPUT),
    "unreadable-model": (Stage.FACTS, Area.MODELS),
    "unreadable-sensor": (Stage.FACTS, Area.TIMING),
    "unseekable-input": (Stage.FACTS, Area.INPUT),
    "unsourced-names": (Stage.TEXT, Area.OUTPUT),
    "unsupported-by-genai": (Stage.TEXT, Area.PIPELINES),
    "unsupported-operator": (Stage.OPENING, Area.MODELS),
    "unsupported-tensor": (Stage.FACTS, Area.OUTPUT),
    "unusable-affinity": (Stage.FACTS, Area.RESOURCES),
    "unusable-auto-threads": (Stage.TEXT, Area.RESOURCES),
    "unusable-batch": (Stage.PREFLIGHT, Area.BATCHES),
    "unusable-expect": (Stage.FACTS, Area.OUTPUT),
    "unusable-explode": (Stage.FACTS, Area.OUTPUT),
    "unusable-filler": (Stage.FACTS, Area.INPUT),
    "unusable-gate": (Stage.FACTS, Area.MODELS),
    "unusable-hours": (Stage.TEXT, Area.TIMING),
    "unusable-image-column": (Stage.FACTS, Area.OUTPUT),
    "unusable-job-input": (Stage.TEXT, Area.INPUT),
    "unusable-keep": (Stage.TEXT, Area.OUTPUT),
    "unusable-operator": (Stage.FACTS, Area.PIPELINES),
    "unusable-option-path": (Stage.FACTS, Area.PROVIDERS),
    "unusable-preset": (Stage.FACTS, Area.PIPELINES),
    "unusable-recording": (Stage.FACTS, Area.OUTPUT),
    "unusable-removable": (Stage.FACTS, Area.OUTPUT),
    "unusable-rerun": (Stage.FACTS, Area.INPUT),
    "unusable-row-axis": (Stage.FACTS, Area.MODELS),
    "unusable-rows": (Stage.PREFLIGHT, Area.INPUT),
    "unusable-types": (Stage.FACTS, Area.OUTPUT),
    "unusable-value": (Stage.FACTS, Area.INPUT),
    "unused-declaration": (Stage.TEXT, Area.NAMES),
    "unwritable-output": (Stage.FACTS, Area.OUTPUT),
    "windowless-rows": (Stage.PREFLIGHT, Area.PIPELINES),
}

RULES: tuple[str, ...] = tuple(_TABLE)


def _of(stage: Stage) -> tuple[str, ...]:
    return tuple(rule for rule, (own, _) in _TABLE.items() if own is stage)


SPEC_RULES, DEPLOYMENT_RULES, OPENING_RULES, PREFLIGHT_RULES = map(_of, Stage)
"""By stage. A later stage comes only if no rule before it has found an error, for a model or at all."""


def rules_of(area: Area) -> tuple[str, ...]:
    """Return the rules of an area."""
    return tuple(rule for rule, (_, own) in _TABLE.items() if own is area)


@cache
def load_rule(rule: str) -> RuleModule:
    """Return the module of a rule of this catalogue."""
    return cast("RuleModule", importlib.import_module(f"ortdeploy.rules.{rule.replace('-', '_')}"))


def load_rules(rules: Sequence[str]) -> tuple[RuleModule, ...]:
    """Return the modules of several rules."""
    return tuple(load_rule(rule) for rule in rules)
