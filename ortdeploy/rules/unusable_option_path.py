"""What it catches: an option that names a file or folder which does not exist, or which cannot be created there; a
library of another operating system.

Why: ONNX Runtime refuses the session with a bare number ("SystemError : 2"), or it runs and writes nothing: a profile
into a missing folder is silently lost. Providers look for their config files when the session is created.

Example:

    session: {enable_profiling: true, profile_file_prefix: profiles/run}    # there is no folder profiles

How to fix: provide the file, or create the folder. Paths are relative to the manifest.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.manifest.option_paths import find_option_paths
from ortdeploy.providers.catalogue import find_provider
from ortdeploy.providers.options import option_facts
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment

RULE = Rule(id="unusable-option-path", summary="Option names a file that cannot be used")

_SYSTEMS = {".dll": "Windows", ".so": "Linux", ".dylib": "Darwin"}


def check(deployment: "Deployment") -> Iterator[Finding]:
    for option in find_option_paths(deployment.spec):
        problem = deployment.facts.path_problems.get((option.kind, option.path))
        if problem is not None:
            yield Finding(at=option.at, detail=problem.detail)
    machine = deployment.facts.machine
    for entry, name in deployment.spec.written_options():
        is_library = option_facts(find_provider(entry.name), name).get("x-path") == "library"
        system = next((own for end, own in _SYSTEMS.items() if str(entry.options[name]).endswith(end)), None)
        if is_library and machine is not None and system not in {None, machine.system}:
            detail = f"{entry.options[name]} is a library of {system}, and this is {machine.system}."
            yield Finding(at=(*entry.at, "options", name), detail=detail)
