"""What it catches: a session, run or provider option that has no effect together with the others, or in this chain.

Why: ONNX Runtime accepts it silently and does what it would do anyway. For example, threads between nodes exist in
parallel execution mode only. The schemas say which option needs which, and where that is written: ortdeploy schema.

Example:

    session: {inter_op_num_threads: 4}

How to fix: add what the option needs, as the message says, or remove it.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.manifest.relations import IGNORED, find_relations
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="ignored-option", summary="Option has no effect", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        for at, detail in find_relations(spec, model, IGNORED):
            yield Finding(at=at, detail=detail, key=True, model=model.name)
