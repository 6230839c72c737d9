"""What it catches: a job that names an adapter which the manifest does not declare.

Why: the base model would run instead, and nothing in its output would show that.

Example:

    jobs: {read: {model: digits, adapter: freench, …}}

How to fix: declare the adapter under adapters:, or correct the name.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="undefined-adapter", summary="Adapter is not declared")


def check(spec: "Spec") -> Iterator[Finding]:
    known = [adapter.name for adapter in spec.adapters]
    for use in spec.adapter_uses():
        for name in (name for name in use.names if name not in known):
            detail = f'{use.who} names the adapter "{name}", which is not under adapters:. {did_you_mean(name, known)}'
            yield Finding(at=use.at, detail=detail, job=use.job, model=use.model)
