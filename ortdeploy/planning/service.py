"""Finds out what a systemd service of some manifests needs on its machine; the unit denies it everything else.

It follows from the manifests' text alone, so that units can be written on another machine than the device.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from msgspec import Struct

from ortdeploy.files.gate import Use
from ortdeploy.files.names import is_folder
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.named_paths import named_paths, path_from_manifest
from ortdeploy.manifest.spec import Spec
from ortdeploy.providers.catalogue import CPU, find_provider, full_name

_SHORTEST_WATCHDOG = 300
_FACTOR = 3
"""Times the longest timeout of a job: the watchdog must not end what the job would end by itself."""


class Needs(Struct, frozen=True, kw_only=True):
    """What manifests need: device nodes as systemd names them (None for any), and what they read and write.

    `network`: a URL is read or written, or a provider asks a server. `compiles`: a provider that compiles needs memory
    that is writable and executable. `watchdog` is in seconds.
    """

    name: str
    devices: tuple[str, ...] | None
    network: bool
    compiles: bool
    folders: tuple[str, ...]
    writable: tuple[str, ...]
    watchdog: int


def needs_of(specs: Sequence[Spec], state_dir: str | None, metrics: str | None = None) -> Needs:
    """Return what the manifests of one service need, with the folder of its metrics."""
    providers = {full_name(one.name) for spec in specs for chain in spec.written_chains() for one in chain}
    known = [find_provider(name) for name in sorted(providers)]
    nodes = [None if one is None else one.devices for one in known]
    named = [one for spec in specs for one in named_paths(spec)]
    asks_server = any(one is not None and not one.claims_nodes for one in known)
    return Needs(
        name=specs[0].name,
        devices=None if None in nodes else tuple(sorted({node for some in nodes for node in some or ()})),
        network=asks_server or any(is_url(one.path) for one in named),
        compiles=bool(providers - {CPU}),
        folders=tuple(sorted({spec.folder for spec in specs} | set(_read_folders(specs)))),
        writable=tuple(sorted({_existing(folder) for folder in _written(specs, state_dir, metrics)})),
        watchdog=_watchdog(specs),
    )


def _read_folders(specs: Sequence[Spec]) -> Iterator[str]:
    for spec in specs:
        for one in named_paths(spec):
            if one.use is not Use.WRITE and not is_url(one.path):
                yield str(path_from_manifest(spec, one.path).parent)


def _written(specs: Sequence[Spec], state_dir: str | None, metrics: str | None) -> Iterator[Path]:
    """Yield the folders in which something is made: of states and metrics, and those above outputs.

    Old outputs are renamed.
    """
    if metrics is not None:
        yield Path(metrics)
    for spec in specs:
        yield Path(state_dir) if state_dir else Path(spec.folder)
        yield from (path_from_manifest(spec, job.output.path).parent for job in spec.jobs)


def _existing(folder: Path) -> str:
    """Return a folder, or the nearest existing one above it, in which it is made."""
    full = Path(os.path.abspath(folder))  # noqa: PTH100  keeps links
    return str(next((one for one in (full, *full.parents) if is_folder(one)), full))


def _watchdog(specs: Sequence[Spec]) -> int:
    timeouts = (
        seconds
        for spec in specs
        for job in spec.jobs
        for seconds in (job.run_timeout, job.progress_timeout)
        if seconds is not None
    )
    return max(_SHORTEST_WATCHDOG, *(round(_FACTOR * seconds) for seconds in timeouts), 0)
