"""Runs `ortdeploy apply` with a plan that no manifest gives, as if no rule had objected.

A plan file would not do: what differs from the manifest is refused. Call: python -m support.past_the_rules PLAN ARGUMENT…
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from conftest import Result

from ortdeploy.cli import plans
from ortdeploy.cli.main import main
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.plan.steps import Plan
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.workflow import plan_manifests


def plan_document(folder: Path) -> Any:
    """Return the plan of the folder's m.yaml as JSON has it, to be changed."""
    planned = plan_manifests([str(folder / "m.yaml")], LoadOptions(), state_dir=None)
    assert planned.plans, planned.diagnostics
    return encode(planned.plans[0])


def apply_document(document: Any, folder: Path, *arguments: str) -> Result:
    """Carry a changed plan out in a process of its own, as `ortdeploy apply` would."""
    (folder / "changed.json").write_text(json.dumps(document))
    tests = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-m", "support.past_the_rules", "changed.json", "apply", "m.yaml", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])},
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


if __name__ == "__main__":
    changed = decode(Plan, json.loads(Path(sys.argv[1]).read_text()))
    setattr(plans, "plan_manifests", lambda *_, **__: Planned(plans=(changed,), diagnostics=()))  # noqa: B010  mypy knows no export
    sys.exit(main(sys.argv[2:]))
