"""What it catches: inter_op_num_threads in sequential execution mode.

Why: ONNX Runtime makes the pool between nodes only in parallel mode. In sequential mode, its default, the number is
accepted and has no effect.

Example:

    session: {inter_op_num_threads: 4}

How to fix: add execution_mode: parallel, or remove inter_op_num_threads.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="ignored-session-option", summary="Session option has no effect", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        sequential = model.session.get("execution_mode", "sequential") == "sequential"
        if sequential and model.session.get("inter_op_num_threads", 0) > 0:
            detail = (
                f'Model "{model.name}" sets inter_op_num_threads, but nodes run one after another. '
                "Add execution_mode: parallel, or remove inter_op_num_threads."
            )
            at = (*model.at, "session", "inter_op_num_threads")
            yield Finding(at=at, detail=detail, key=True, model=model.name)
