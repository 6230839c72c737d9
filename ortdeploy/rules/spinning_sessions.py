"""What it catches: several sessions that run at once, whose threads spin while they wait.

Why: between two nodes and between two runs, ONNX Runtime's threads spin instead of sleeping. The threads of one session
then take the cores that another one needs: in a measurement, an idle pool used five times the processor time that it
needs.

Example:

    sessions: [{name: cpu, providers: [CPU], count: 2}]
    session: {intra_op_num_threads: 2}

How to fix: session: {config: {session.intra_op.allow_spinning: false}}, or one thread for each session.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.deployment.threads import SPINNING
from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="spinning-sessions", summary="Threads of several sessions spin", severity=Severity.WARNING)


def check(spec: "Spec") -> Iterator[Finding]:
    for model in spec.models:
        threads = model.session.get("intra_op_num_threads", 0)
        spins = str(model.session.get("config", {}).get(SPINNING, "1")) not in {"0", "False"}
        if model.sessions_at_once > 1 and threads != 1 and spins:
            detail = (
                f'Model "{model.name}" runs {model.sessions_at_once} sessions at once, and their threads spin while '
                f"they wait. Add session: {{config: {{{SPINNING}: false}}}}."
            )
            yield Finding(at=model.at, detail=detail, key=True, model=model.name)
