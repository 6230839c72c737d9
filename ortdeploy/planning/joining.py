"""Joins the spec of a manifest with facts of this machine and of the files that it names."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, OrtdeployError, Span
from ortdeploy.files.gate import outside
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import stage_diagnostic
from ortdeploy.manifest.named_paths import option_path, pinned_files
from ortdeploy.manifest.op_steps import ONNX
from ortdeploy.manifest.spec import Spec
from ortdeploy.planning.probing.scope import ALL, Scope
from ortdeploy.planning.state_folder import state_folder
from ortdeploy.providers.catalogue import find_provider, full_name
from ortdeploy.providers.option_files import needed_libraries

if TYPE_CHECKING:
    from ortdeploy.deployment.op_names import KnownOperators
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.facts import Facts
    from ortdeploy.facts.host import HostFacts


def look_at_files(spec: Spec, state_dir: str | None) -> "tuple[Spec, Facts] | tuple[Diagnostic, ...]":
    """Return a manifest with paths for its URLs, and the facts of all files that it names, or what is wrong.

    Inputs and outputs are not looked at.
    """
    from ortdeploy.planning.probing.fetched_files import with_fetched  # noqa: PLC0415
    from ortdeploy.planning.probing.probe import probe  # noqa: PLC0415
    from ortdeploy.planning.remembered.graph_cache import remembered_in  # noqa: PLC0415

    state = usable_state(spec, state_dir)
    if not isinstance(state, Path):
        return state
    with remembered_in(state):
        here = with_fetched(spec, state)
        unseen = {job.name for job in spec.jobs}
        host = probe_host([])  # a library that the manifest names need not be loaded here
        return here, probe(here, state, host, Scope(elsewhere=True, unseen=unseen))


def probe_host(specs: Sequence[Spec]) -> "HostFacts":
    """Return the facts of this machine, with the plugin packages that manifests ask for."""
    from ortdeploy.facts.host import HostFacts  # noqa: PLC0415
    from ortdeploy.runtime.machine import probe_machine  # noqa: PLC0415
    from ortdeploy.runtime.probe import probe_runtime  # noqa: PLC0415  validate must not import onnxruntime

    wanted: dict[str, str | None] = {}
    strays: dict[str, str] = {}
    of_options: dict[str, set[str]] = {}
    for spec in specs:
        for entry in (entry for chain in spec.written_chains() for entry in chain):
            name = full_name(entry.name)
            library = option_path(spec, entry.library) if entry.library else None
            if library and outside(library, (spec.folder, *spec.roots)):
                strays[name] = f"Its library {entry.library} is a link out of the manifest's folder tree."
            else:
                wanted[name] = library or wanted.get(name)
                needed = needed_libraries(find_provider(entry.name), entry.options)
                of_options.setdefault(name, set()).update(file for _, file in needed)
    facts = probe_runtime({name: library for name, library in wanted.items() if name not in strays}, of_options)
    runtime = replace(facts, plugin_problems={**facts.plugin_problems, **strays})
    return HostFacts(runtime=runtime, machine=probe_machine())


def join_facts(spec: Spec, host: "HostFacts", state: Path, scope: Scope = ALL) -> "Deployment":
    """Join a spec with facts, whose data is looked at as `scope` says."""
    from ortdeploy.deployment.resolve import resolve  # noqa: PLC0415  brings numpy, which validate does not need
    from ortdeploy.planning.probing.fetched_files import with_fetched  # noqa: PLC0415
    from ortdeploy.planning.probing.probe import probe  # noqa: PLC0415
    from ortdeploy.planning.remembered.graph_cache import remembering_placement  # noqa: PLC0415

    spec = with_fetched(spec, state)
    facts = probe(spec, state, host, scope)
    return resolve(spec, facts, _operators(spec), remembering_placement(host))


def _operators(spec: Spec) -> "KnownOperators":
    """Return the operators for op steps: those of ONNX, and of other domains if a manifest names one."""
    if not any(spec.op_steps()):
        from ortdeploy.deployment.op_names import NO_OPERATORS  # noqa: PLC0415  only for planning

        return NO_OPERATORS
    from ortdeploy.facts.host import EXTENSION_DOMAINS  # noqa: PLC0415
    from ortdeploy.graph.operators import Operators  # noqa: PLC0415  brings onnx
    from ortdeploy.runtime.operators import extension_operators, other_operators  # noqa: PLC0415  brings onnxruntime

    domains = {op.domain for op in spec.op_steps()}
    others = other_operators() if domains != {ONNX} else {}
    return Operators({**others, **(extension_operators() if domains.intersection(EXTENSION_DOMAINS) else {})})


def usable_state(spec: Spec, state_dir: str | None) -> Path | tuple[Diagnostic, ...]:
    """Return the state folder with all fetched files, or why the ledger or these files cannot be kept there."""
    try:
        state = state_folder(spec.folder, state_dir, spec.roots)
    except OrtdeployError as error:
        return (stage_diagnostic("state-outside-tree", f"{error}.", Span(path=spec.path, line=1, column=1)),)
    if not any(is_url(file.path) for file in pinned_files(spec)):
        return state
    from ortdeploy.planning.probing.fetched_files import fetch_files  # noqa: PLC0415  only for files by URL

    unfetched = tuple(
        stage_diagnostic("unfetched-file", why, spec.document.locate(file.at)) for file, why in fetch_files(spec, state)
    )
    return unfetched or state
