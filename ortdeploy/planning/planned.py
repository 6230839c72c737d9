"""What planning comes to."""

from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.plan.steps import Plan
from ortdeploy.records import record

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.manifest.spec import Spec
    from ortdeploy.planning.last_run import Changes


@record
class Planned:
    """Plans for the manifests that nothing speaks against, and everything that does.

    `deployments` are what the plans were made of. `changes` are of jobs whose last run was made from something else.
    `stand_ins` are plans of manifests as they last ran well, for they are refused now.
    `specs` are of all manifests whose text is right, those that are refused for another reason too. Of plans that are
    remembered there are none; `documents` are then the manifests by their paths, without secrets.
    """

    plans: tuple[Plan, ...]
    diagnostics: tuple[Diagnostic, ...]
    deployments: "tuple[Deployment, ...]" = ()
    changes: "tuple[Changes, ...]" = ()
    stand_ins: tuple[Plan, ...] = ()
    specs: "tuple[Spec, ...]" = ()
    documents: Mapping[str, Any] = field(default_factory=dict)
