"""Lists what a plan without steps, or a status, rests on, so that neither is made again while none of it has changed.

Some plans have no such list: those with providers other than the CPU's where the system does not show all devices and
drivers in folders, or where one of them cannot be used; with URLs; with presets, whose folders have parts of their own;
with inputs that wait until their files are settled, which only takes time; with inputs that are gone, which the next
run must note; and with jobs that pause by sensors.
"""

import glob
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ortdeploy.files.listing import has_magic, in_full
from ortdeploy.files.names import TOLD, is_folder
from ortdeploy.files.urls import is_url
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.open_plans import FOLDER as PARTS
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.ledger.records import output_key
from ortdeploy.manifest.named_paths import path_from_manifest
from ortdeploy.manifest.option_paths import find_option_paths
from ortdeploy.manifest.when import read_variants, takes_a_session
from ortdeploy.planning.devices.kept_choices import PATTERN as CHOICES
from ortdeploy.planning.refused_applies import PATTERN
from ortdeploy.providers.catalogue import CPU, full_name

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.host import RuntimeFacts
    from ortdeploy.manifest.spec import Spec

_ANSWERED_ELSEWHERE = frozenset({"AzureExecutionProvider"})
"""Providers that ask a server."""

_READ = frozenset({"array", "document", "file", "folder", "letters", "table", "tokenizer", "vectors", "vocabulary"})
"""Kinds of paths in options that are read and not written."""


def rests_on(deployments: "Sequence[Deployment]", paths: Sequence[str], state_dir: Path) -> Mapping[str, Any] | None:
    """Return what plans for `paths` rest on beside code and machine; None if there is no such list.

    `files` are compared by their states, `trees` with everything in them; `journals` must hold nothing that SQLite
    would play back, `writable` must be writable, `patterns` name files or folders that are all compared, and
    `state_dir` must hold the same links. With `devices`, those of this machine are compared, and their drivers.
    """
    beside = rests_on_beside_data(deployments, paths, state_dir)
    if beside is None:
        return None
    text = text_rests_on([each.spec for each in deployments], paths, state_dir)
    files = [os.path.abspath(one) for each in deployments for one in _data_files(each, state_dir)]  # noqa: PTH100  keeps links
    return {
        **beside,
        "files": sorted({*beside["files"], *text["files"], *files}),
        "journals": text["journals"],
        "writable": sorted({str(_there(folder)) for each in deployments for folder in _outputs(each)}),
        "patterns": [*text["patterns"], *(one for each in deployments for one in _patterns(each))],
    }


def rests_on_beside_data(
    deployments: "Sequence[Deployment]", paths: Sequence[str], state_dir: Path
) -> Mapping[str, Any] | None:
    """Return what plans for `paths` rest on beside code, machine, inputs and outputs; None if there is no such list."""
    if not deployments or not all(map(_is_told, deployments)):
        return None
    specs = [each.spec for each in deployments]
    return {
        "files": sorted({*_named(specs), *(os.path.abspath(one) for each in deployments for one in _read(each))}),  # noqa: PTH100
        "trees": sorted({str(one) for each in deployments for one in _trees(each)}),
        "journals": [],
        "writable": [],
        "patterns": [*_manifests(paths), _choices(state_dir)],
        "state_dir": os.path.abspath(state_dir),  # noqa: PTH100
        "devices": _needs_devices(deployments),
    }


def text_rests_on(specs: "Sequence[Spec]", paths: Sequence[str], state_dir: Path) -> Mapping[str, Any]:
    """Return what the manifests of `paths` rest on, and what the ledger says of their jobs."""
    ledger = os.path.abspath(state_dir / FILE)  # noqa: PTH100  keeps links
    return {
        "files": sorted({ledger, *_named(specs)}),
        "trees": [],
        "journals": [f"{ledger}-journal", f"{ledger}-wal"],
        "writable": [],
        "patterns": [
            *_manifests(paths),
            os.path.join(os.path.abspath(state_dir), TOLD, PATTERN),  # noqa: PTH100, PTH118
            _choices(state_dir),
            *(os.path.join(folder, PARTS, "*") for folder in escaped_outputs(specs)),  # noqa: PTH118
        ],
        "state_dir": os.path.abspath(state_dir),  # noqa: PTH100
        "devices": False,
    }


def _named(specs: "Sequence[Spec]") -> set[str]:
    """Return the manifests and their overlays."""
    return {os.path.abspath(path) for spec in specs for path in (spec.path, *spec.overlays)}  # noqa: PTH100


def escaped_outputs(specs: "Sequence[Spec]") -> list[str]:
    """Return the outputs, because workers may begin to share a plan there, which the ledger does not know."""
    return [glob.escape(str(path_from_manifest(spec, job.output.path))) for spec in specs for job in spec.jobs]


def _accelerators(deployment: "Deployment") -> set[str]:
    """Return the providers of all chains but the CPU's."""
    chosen = {one.name for model in deployment.models for each in model.sessions for one in each.chain}
    written = {full_name(one.name) for chain in deployment.spec.written_chains() for one in chain}
    return (chosen | written) - {CPU}


def _choices(state_dir: Path) -> str:
    """Return the pattern of the notes with the profiles that the last applies have chosen."""
    return os.path.join(os.path.abspath(state_dir), TOLD, CHOICES)  # noqa: PTH100, PTH118


def _needs_devices(deployments: "Sequence[Deployment]") -> bool:
    return any(_accelerators(each) or _asks_for_devices(each) for each in deployments)


def _asks_for_devices(deployment: "Deployment") -> bool:
    """Return whether a `when` of the manifest, of whichever profile, asks what opens."""
    variants = None if deployment.spec.asked else read_variants(deployment.spec.document)
    return variants is not None and any(map(takes_a_session, variants.terms()))


def _are_comparable(providers: set[str], runtime: "RuntimeFacts") -> bool:
    """Return whether all that providers depend on shows in files, devices and drivers, and can be used now."""
    if not providers:
        return True
    unusable = {*runtime.plugin_problems, *runtime.missing_libraries, *_ANSWERED_ELSEWHERE}
    return sys.platform == "linux" and "onnxruntime" in sys.modules and providers.isdisjoint(unusable)


def _is_told(deployment: "Deployment") -> bool:
    spec = deployment.spec
    named = [path for job in spec.jobs for path in (*job.input.paths, job.output.url or job.output.path)]
    return (
        _are_comparable(_accelerators(deployment), deployment.facts.runtime)
        and (sys.platform == "linux" or not _asks_for_devices(deployment))
        and all(pipeline.preset is None for pipeline in spec.pipelines)
        and not any(map(is_url, named))
        and all(option.kind in _READ for option in find_option_paths(spec))
        and all(job.timing.pause is None for job in spec.jobs)
        and not any(has_magic(os.path.dirname(path)) for path in _patterns(deployment))  # noqa: PTH120  only planning looks into each folder
        and not any(one.unsettled or one.gone for one in deployment.facts.inputs.values())
    )


def _data_files(deployment: "Deployment", state_dir: Path) -> Iterator[str | Path]:
    """Yield the outputs' folders with their parts."""
    with read_ledger(state_dir) as ledger:
        for folder in _outputs(deployment):
            yield from (folder, _there(folder))
            record = ledger.output(output_key(folder, state_dir)) if ledger else None
            parts = record.parts if record else ()
            yield from (folder / str(file.file) for part in parts for file in part.files)


def _read(deployment: "Deployment") -> Iterator[str | Path]:
    """Yield the files of models, adapters and steps."""
    spec, facts = deployment.spec, deployment.facts
    yield from (path_from_manifest(spec, model.path) for model in spec.models)
    yield from (file.path for model in facts.models.values() for file in model.files)
    yield from (path_from_manifest(spec, adapter.path) for adapter in spec.adapters)
    yield from (file.path for file in facts.labels.values())
    yield from (file.path for one in facts.resources.values() for file in one.files)


def _outputs(deployment: "Deployment") -> Iterator[Path]:
    yield from (path_from_manifest(deployment.spec, job.output.path) for job in deployment.spec.jobs)


def _there(folder: Path) -> Path:
    """Return a folder, or the nearest existing one above it, in which it would be made."""
    while not os.path.lexists(folder) and folder != folder.parent:
        folder = folder.parent
    return folder


def _trees(deployment: "Deployment") -> Iterator[Path]:
    """Yield the paths of options, the folders of golden checks, and those of providers' libraries."""
    spec = deployment.spec
    if _accelerators(deployment):
        yield Path(str(sys.modules["onnxruntime"].__file__)).with_name("capi")
        for library in {device.library for device in deployment.facts.runtime.devices}:
            yield from _of_library(Path(library), Path(spec.folder))
    yield from (path_from_manifest(spec, option.path) for option in find_option_paths(spec))
    yield from (path_from_manifest(spec, check.path) for _, check in spec.checks())


def _of_library(library: Path, deployment: Path) -> Iterator[Path]:
    """Yield the folder of a provider's library; if the deployment itself is in there, only the libraries."""
    if deployment.is_relative_to(library.parent):
        yield from library.parent.glob("*.so*")
    else:
        yield library.parent


def _manifests(paths: Sequence[str]) -> Iterator[str]:
    """Yield patterns for the manifests in the folders among `paths`."""
    for path in filter(is_folder, paths):
        inside = glob.escape(os.path.abspath(path))  # noqa: PTH100  keeps links
        yield from (f"{inside}{os.sep}{start}*{end}" for start in ("", ".") for end in (".yaml", ".yml"))


def _patterns(deployment: "Deployment") -> Iterator[str]:
    """Yield the patterns of inputs as they are expanded."""
    folder = deployment.spec.folder
    for job in deployment.spec.jobs:
        yield from (in_full(folder, pattern) for pattern in job.input.paths)
