"""What it catches: labels or ctc_greedy with nothing to take their names or letters from, or with several sources.

Why: there is no default, and of two sources nothing says which one is meant.

Example: postprocess: [{argmax: scores, as: digit}, {labels: digit, as: name}]

How to fix: name one: a file (from: labels.txt) or a model that has them in its metadata (model: detector). ctc_greedy
also takes them as they are (alphabet: abc).
"""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ortdeploy.manifest.pipelines import walk
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="unsourced-names", summary="Names or letters come from nothing, or from several sources")

_SOURCES = {"labels": ("from", "model"), "ctc_greedy": ("alphabet", "from", "model")}


def check(spec: "Spec") -> Iterator[Finding]:
    for name, options, at in _steps(spec):
        written = [source for source in _SOURCES.get(name, ()) if source in options]
        if name in _SOURCES and len(written) != 1:
            have = f"has {' and '.join(written)}" if written else "has none of them"
            detail = f"{name} takes one of {', '.join(_SOURCES[name])}, and {have}."
            yield Finding(at=at, detail=detail)


def _steps(spec: "Spec") -> Iterator[tuple[str, Mapping[str, Any], "Path"]]:
    """Yield what pipelines and jobs do, with its settings."""
    for pipeline in spec.pipelines:
        yield from ((step.name, step.options, step.at) for step in walk(pipeline.steps) if step.kind == "do")
    for job in spec.jobs:
        yield from ((step.name, step.options, step.at) for step in job.postprocess)
