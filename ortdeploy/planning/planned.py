"""The result of planning."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from ortdeploy.diagnostics import Diagnostic
from ortdeploy.plan.steps import Plan

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.manifest.spec import Spec
    from ortdeploy.planning.last_run import Changes


class Planned(Struct, frozen=True, kw_only=True):
    """Plans for the manifests without errors, and all diagnostics.

    `deployments` are those of the plans. `changes` belong to jobs whose last run had another origin. `stand_ins` are
    plans of manifests as they last ran well, because they are refused now. `specs` are those of all manifests whose
    text is right, even if they are refused for another reason. Remembered plans have none; `documents` are then the
    manifests by their paths, without secrets.
    """

    plans: tuple[Plan, ...]
    diagnostics: tuple[Diagnostic, ...]
    deployments: "tuple[Deployment, ...]" = ()
    changes: "tuple[Changes, ...]" = ()
    stand_ins: tuple[Plan, ...] = ()
    specs: "tuple[Spec, ...]" = ()
    documents: Mapping[str, Any] = field(default_factory=dict)
