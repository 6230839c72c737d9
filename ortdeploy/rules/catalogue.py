"""The rules: those that need only the text, and those that need facts. Alphabetical; one line for each.

A rule is named like its module. Modules are imported when their rules are wanted, so that `validate` starts fast.
"""

import importlib
from collections.abc import Sequence
from typing import cast

from ortdeploy.rules.protocol import RuleModule

SPEC_RULES: tuple[str, ...] = (
    "adapter-for-another-model",
    "adapter-placement",
    "concurrent-runs",
    "contradictory-memory",
    "contradictory-option",
    "crowded-device",
    "deprecated-provider-option",
    "dropped-by-adapter",
    "gate-without-checks",
    "idle-provider",
    "ignored-option",
    "incompatible-providers",
    "late-compiler",
    "output-inside-input",
    "path-outside-tree",
    "pipeline-wiring",
    "providers-and-sessions",
    "refused-url",
    "removed-provider-option",
    "repeated-column",
    "repeated-provider",
    "shared-output-path",
    "spinning-sessions",
    "threads-over-limit",
    "undefined-adapter",
    "undefined-model",
    "undefined-pipeline",
    "undefined-provider-chain",
    "unknown-component",
    "unknown-provider",
    "unreachable-provider",
    "unusable-auto-threads",
    "unusable-hours",
    "unused-declaration",
)

DEPLOYMENT_RULES: tuple[str, ...] = (
    "adapter-mismatch",
    "compiled-elsewhere",
    "digest-mismatch",
    "dynamic-shape",
    "element-type-mismatch",
    "finished-output",
    "fixed-batch-mismatch",
    "ignored-provider-option",
    "inapplicable-step",
    "incompatible-devices",
    "input-shape-mismatch",
    "input-type-mismatch",
    "layout-mismatch",
    "missing-column",
    "missing-library",
    "missing-locale",
    "missing-package",
    "mixed-provider-routes",
    "old-runtime",
    "optimized-elsewhere",
    "output-without-rows",
    "overlapping-adapters",
    "overridable-initializer",
    "pipeline-mismatch",
    "predicted-cpu-nodes",
    "random-operator",
    "sample-rate-mismatch",
    "saturating-int8",
    "scale-of-the-batch",
    "several-npy-columns",
    "several-runtimes",
    "shape-mismatch",
    "shape-option-mismatch",
    "short-last-batch",
    "skipped-provider",
    "too-many-threads",
    "too-new-model",
    "unavailable-provider",
    "unchecked-sample-rate",
    "unknown-device",
    "unknown-dimension",
    "unknown-output-column",
    "unknown-rank",
    "unknown-tensor",
    "unmatched-input",
    "unreadable-adapter",
    "unreadable-input",
    "unreadable-labels",
    "unreadable-model",
    "unreadable-sensor",
    "unsupported-tensor",
    "unusable-affinity",
    "unusable-explode",
    "unusable-filler",
    "unusable-gate",
    "unusable-image-column",
    "unusable-operator",
    "unusable-option-path",
    "unusable-preset",
    "unusable-row-axis",
    "unusable-value",
    "unwritable-output",
)

OPENING_RULES = ("refused-model", "refused-operator", "unsupported-operator")
"""Rules over a deployment whose models were opened without their weights; that happens to those of which no other rule
has found an error."""

PREFLIGHT_RULES = (
    "empty-input",
    "failing-rows",
    "not-finite-rows",
    "over-disk-limit",
    "over-memory-limit",
    "unusable-batch",
    "unusable-rows",
)
"""Rules over a deployment whose jobs were tried without running: their batches by shape inference, their first rows by
their own loaders. That happens where no other rule has found an error."""

RULES = (*SPEC_RULES, *DEPLOYMENT_RULES, *OPENING_RULES, *PREFLIGHT_RULES)


def load_rule(rule: str) -> RuleModule:
    """Return the module of a rule of this catalogue."""
    return cast("RuleModule", importlib.import_module(f"ortdeploy.rules.{rule.replace('-', '_')}"))


def load_rules(rules: Sequence[str]) -> tuple[RuleModule, ...]:
    """Return the modules of several rules."""
    return tuple(load_rule(rule) for rule in rules)
