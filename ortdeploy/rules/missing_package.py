"""What it catches: a format, step or model that needs a Python package which is not installed.

Why: the base install is small, because devices have little room. A package that only some deployments need
comes with an extra.

Example: input: {path: inbox/*.png} without Pillow; a model with operators of onnxruntime-extensions without that
package.

How to fix: install the extra that the message names.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Certainty
from ortdeploy.facts.host import EXTENSION_DOMAINS, EXTENSIONS, GENAI, OPTIMUM
from ortdeploy.manifest.pipelines import DIFFUSION, GENERATE, walk
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.shell import pip_install
from ortdeploy.sinks.recordings import FLAC, SOUNDFILE
from ortdeploy.transforms.packages import package_of_step
from ortdeploy.transforms.sampling import PILLOW, package_of

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.problems import Package

RULE = Rule(id="missing-package", summary="A package is not installed", certainty=Certainty.MACHINE)

_SHOWN = 3


def check(deployment: "Deployment") -> Iterator[Finding]:
    yield from _of_operations(deployment)
    yield from _of_presets(deployment)
    yield from _of_models(deployment)
    for job in deployment.jobs:
        if job.output.missing_package:
            needs = _needs(job.output.missing_package)
            detail = f'Job "{job.spec.name}" writes {job.spec.output.format} files, which needs {needs}'
            yield Finding(at=(*job.spec.output.at, "format"), detail=detail, job=job.spec.name)
        if job.input.missing_package:
            needs = _needs(job.input.missing_package)
            detail = f'Job "{job.spec.name}" reads {job.input.format} files, which needs {needs}'
            yield Finding(at=job.spec.input.source_at, detail=detail, job=job.spec.name)
            continue
        if job.spec.output.images and "PIL" not in deployment.facts.runtime.packages:
            detail = f'Job "{job.spec.name}" writes images, which needs {_needs(PILLOW)}'
            yield Finding(at=(*job.spec.output.at, "images"), detail=detail, job=job.spec.name)
        flacs = [name for name, one in job.spec.output.recordings.items() if one.format == FLAC]
        if flacs and SOUNDFILE.module not in deployment.facts.runtime.packages:
            detail = f'Job "{job.spec.name}" writes FLAC, which needs {_needs(SOUNDFILE)}'
            yield Finding(at=(*job.spec.output.at, "recordings", flacs[0]), detail=detail, job=job.spec.name)
        for name, steps in job.spec.prepare.items():
            for step in steps:
                package = package_of_step(step.name, step.options)
                if package is not None and package.module not in deployment.facts.runtime.packages:
                    detail = f'{step.name} of input "{name}" needs {_needs(package)}'
                    yield Finding(at=step.at, detail=detail, job=job.spec.name)


def _of_operations(deployment: "Deployment") -> Iterator[Finding]:
    """Yield the steps of pipelines whose operation needs a package."""
    steps = (step for pipeline in deployment.spec.pipelines for step in walk(pipeline.steps) if step.kind == "do")
    for step in steps:
        package = OPERATIONS[step.name].package
        if package == PILLOW:
            package = package_of(step.options)
        elif step.name == "crop" and "size" in step.options:
            package = PILLOW
        if package is not None and package.module not in deployment.facts.runtime.packages:
            yield Finding(at=(*step.at, "do"), detail=f"{step.name} needs {_needs(package)}")


def _of_models(deployment: "Deployment") -> Iterator[Finding]:
    """Yield the models whose operators come with a package."""
    for model in deployment.models:
        if model.facts.uses_extensions and EXTENSIONS.module not in deployment.facts.runtime.packages:
            shown = sorted(
                {f"{one.domain}.{one.operator}" for one in model.facts.nodes if one.domain in EXTENSION_DOMAINS}
            )
            detail = f'Model "{model.spec.name}" has {", ".join(shown[:_SHOWN])}, which needs {_needs(EXTENSIONS)}'
            yield Finding(at=(*model.spec.at, "path"), detail=detail, model=model.spec.name)


def _of_presets(deployment: "Deployment") -> Iterator[Finding]:
    """Yield the pipelines that another package runs."""
    packages = {DIFFUSION: (OPTIMUM, " It wants an environment of its own."), GENERATE: (GENAI, "")}
    for pipeline in deployment.spec.pipelines:
        package, more = packages.get(pipeline.preset.kind if pipeline.preset else "", (None, ""))
        if package is not None and package.module not in deployment.facts.runtime.packages:
            detail = f'"{pipeline.name}" needs {_needs(package)}{more}'
            yield Finding(at=(*pipeline.at, "preset"), detail=detail)


def _needs(package: "Package") -> str:
    return f"{package.name}. Install it: {pip_install(f'ortdeploy[{package.extra}]')}."
