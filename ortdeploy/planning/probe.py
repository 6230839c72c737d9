"""Gathers the facts that planning one manifest needs: runtime, models, adapters, labels, inputs, outputs."""

import hashlib
import importlib.util
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from ortdeploy.adapters.file import read_adapter
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import FileFacts, HashedFile, InputFacts, KnownFile, OutputFacts
from ortdeploy.facts.facts import Facts
from ortdeploy.facts.host import HostFacts, RuntimeFacts
from ortdeploy.facts.models import EXTERNAL_DATA_FOLDER, AdapterFacts, DiffusionFacts, ModelFacts
from ortdeploy.facts.problems import Package, Problem, changed_while_read, unreadable
from ortdeploy.files.decoding import decoding
from ortdeploy.files.digests import signature
from ortdeploy.files.disk import free_bytes
from ortdeploy.files.gate import Use, decides, link_out, outside
from ortdeploy.files.golden_sets import why_nothing_compares
from ortdeploy.files.known_digests import DigestCache
from ortdeploy.files.names import is_file, is_folder, is_there, name_aside
from ortdeploy.files.room import LINE_OF_VALUES, check_room
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.graph.row_followers import with_row_followers
from ortdeploy.ledger.check import find_contradiction
from ortdeploy.ledger.damage import damaged
from ortdeploy.ledger.merges import has_hidden_files
from ortdeploy.ledger.open_parts import FOLDER as SHARD_FOLDER
from ortdeploy.ledger.open_parts import open_plans
from ortdeploy.ledger.opening import named_ledger, read_ledger
from ortdeploy.ledger.output_lock import is_live
from ortdeploy.ledger.put_aside import put_aside_before
from ortdeploy.ledger.records import Merge, OutputRecord, Part, output_key
from ortdeploy.ledger.written import find_damage
from ortdeploy.manifest.named_paths import named_paths, path_from_manifest
from ortdeploy.manifest.option_paths import (
    OptionPath,
    files_to_open,
    find_option_paths,
    operation_paths,
    paths_in_document,
)
from ortdeploy.manifest.pipelines import PresetSpec
from ortdeploy.manifest.schema_check import check_option_document
from ortdeploy.manifest.spec import JobSpec, ModelSpec, Spec
from ortdeploy.planning.known_graphs import infer_shapes, read_model
from ortdeploy.records import record
from ortdeploy.sinks.catalogue import SINKS
from ortdeploy.sources.arrivals import rows_before
from ortdeploy.sources.catalogue import probe_input

if TYPE_CHECKING:
    from ortdeploy.files.shared_place import SharedPlace


def read_preset(
    spec: Spec, preset: PresetSpec, models: Mapping[str, ModelFacts], adapters: Mapping[str, AdapterFacts]
) -> DiffusionFacts:
    """Read a preset's folder; an exception of a library becomes its problem."""
    from ortdeploy.presets.stable_diffusion import read_diffusion  # noqa: PLC0415  only who has presets

    latents = None if preset.latents is None else spec.places.get(preset.latents, preset.latents)
    place = replace(preset, folder=spec.places.get(preset.folder, preset.folder), latents=latents)
    try:
        with decoding(preset.folder, "a preset's folder"):
            return read_diffusion(Path(spec.folder), place, models, adapters)
    except OrtdeployError as error:
        return DiffusionFacts(problem=Problem(kind="preset", detail=f"{error}."))


def probe_model(spec: Spec, model: ModelSpec, roots: tuple[str, ...], digests: DigestCache) -> ModelFacts:
    """Read a model file, unless it is a link out of the tree."""
    path = path_from_manifest(spec, model.path)
    problem = _stray(path, model.path, roots)
    if problem is not None:
        return ModelFacts(path=str(path), problem=problem)
    config = model.session.get("config", {})
    load_format, elsewhere = config.get("session.load_model_format"), config.get(EXTERNAL_DATA_FOLDER)
    data_folder = None if elsewhere is None else path_from_manifest(spec, elsewhere)
    return read_model(path, model.path, digests.digest, load_format, data_folder)


@record
class _Before:
    """The ledger's record of a job's output, of its last part's layout, and of the input files that went into it."""

    record: OutputRecord | None = None
    inputs: Sequence[KnownFile] = ()
    merges: tuple[Merge, ...] = ()
    layout: Mapping[str, Any] | None = None


def probe(spec: Spec, state_dir: Path, host: HostFacts, stale: Collection[str] = (), *, counted: bool = False) -> Facts:
    """Look at every file that the manifest names and at every place that it writes to.

    The outputs of `stale` jobs are replaced, so the inputs recorded for them do not count. Rows that only reading tells
    are `counted` if the plan is to fix parts.
    """
    roots = (spec.folder, *spec.roots)
    before = {job.name: _look_back(_output_folder(spec, job), state_dir, job) for job in spec.jobs}
    digests = DigestCache(state_dir)
    models = {model.name: probe_model(spec, model, roots, digests) for model in spec.models}
    models |= {one.name: with_row_followers(models[one.name], one.inputs, infer_shapes) for one in _run_by_rows(spec)}
    adapters = {
        adapter.name: probe_adapter(path_from_manifest(spec, adapter.path), adapter.path, roots, digests)
        for adapter in spec.adapters
    }
    of_labels = [step.options for job in spec.jobs for step in job.postprocess if step.name == "labels"]
    label_paths = {options["from"] for options in of_labels if "from" in options}
    return Facts(
        runtime=host.runtime,
        machine=host.machine,
        models=models,
        adapters=adapters,
        inputs={
            job.name: _probe_input(
                spec,
                job,
                state_dir,
                host.runtime,
                {name: _Before() if name in stale else one for name, one in before.items()},
                counted=counted,
            )
            for job in spec.jobs
        },
        outputs={
            job.name: replace(
                _stale(_output_folder(spec, job), before[job.name])
                if job.name in stale
                else _probe_output(spec, job, state_dir, before[job.name], roots),
                missing_package=_missing_package(job, host.runtime),
                free_bytes=free_bytes(_output_folder(spec, job)),
            )
            for job in spec.jobs
        },
        labels={path: _probe_labels(path_from_manifest(spec, path), path, roots) for path in label_paths},
        path_problems=_probe_option_paths(spec, roots),
        gate_problems=_probe_gates(spec),
        links_out=dict(_find_links_out(spec, roots)),
        resources={one.path: _probe_resource(spec, one, roots, digests) for one in operation_paths(spec)},
        option_files=_probe_option_files(spec, roots, digests),
        diffusion={
            pipeline.name: read_preset(spec, pipeline.preset, models, adapters)
            for pipeline in spec.pipelines
            if pipeline.preset is not None
        },
    )


def _run_by_rows(spec: Spec) -> list[ModelSpec]:
    """Return the models that a job or a step of a pipeline runs row by row."""
    of_presets = {name for one in spec.pipelines if one.preset is not None for name in one.models}
    used = {model.name: model for job in spec.jobs for model in spec.models_of(job)}
    return [model for name, model in used.items() if name not in of_presets]


def _missing_package(job: JobSpec, runtime: RuntimeFacts) -> Package | None:
    package = SINKS[job.output.format].PACKAGE
    return package if package and package.module not in runtime.packages else None


def _look_back(folder: Path, state_dir: Path, job: JobSpec) -> _Before:
    """Return what the ledger knows of an output folder; nothing if it starts over.

    That is so if the user took away what is not removable, and if an earlier run was killed as it put the output aside.
    Which rows files have that are through is told only where these may run again.
    """
    with read_ledger(state_dir) as ledger:
        if ledger is None:
            return _Before()
        key = output_key(folder, state_dir)
        record = ledger.output(key)
        if not (job.output.removable or is_there(folder)) and (record is None or not _may_be_elsewhere(job)):
            return _Before()
        if record is not None and put_aside_before(ledger, folder, record) is not None:
            return _Before()
        last = record.parts[-1].deployment if record and record.parts else None
        maker = ledger.made_by(last)
        layout = maker.layout if maker else None
        inputs = ledger.inputs(key, spans=job.input.arrivals.on_change == "rerun")
        return _Before(record=record, inputs=inputs, merges=ledger.merges(key), layout=layout)


def _may_be_elsewhere(job: JobSpec) -> bool:
    """Return whether shards have made an output on its store; if that cannot be told, `_shards` says why."""
    try:
        return _decided_on(job) is not None
    except OrtdeployError:
        return True


def _decided_on(job: JobSpec) -> "SharedPlace | None":
    """Return the store of an output on which shards have decided; None if they have not. Raises OrtdeployError."""
    if job.output.url is None or not decides(job.output.url):
        return None
    from ortdeploy.files.shared_store import SharedStore  # noqa: PLC0415  only who has an object store

    place = SharedStore(job.output.url)
    return place if any(place.names(SHARD_FOLDER)) else None


def _stale(folder: Path, before: _Before) -> OutputFacts:
    if before.record is None:
        return OutputFacts(state="stale")
    aside = unquote(name_aside(folder, before.record.started).name).rpartition("/")[2]  # a mirror's name is a URL
    return OutputFacts(state="stale", run=before.record.run, aside=aside)


def _stray(path: Path, shown: str, roots: tuple[str, ...]) -> Problem | None:
    if os.path.lexists(path) and outside(str(path), roots):
        detail = f"{shown} is a link out of the manifest's folder tree. Allow its root with --allow-root."
        return Problem(kind="outside", detail=detail)
    return None


def _probe_option_paths(spec: Spec, roots: tuple[str, ...]) -> dict[tuple[str, str], Problem]:
    """Probe every file and folder that an option names, and the content of those of operations."""
    problems = {}
    for option in find_option_paths(spec):
        path = path_from_manifest(spec, option.path)
        problem = _stray(path, option.path, roots) or _option_path_problem(path, option)
        problem = problem or _content_problem(path, option)
        problem = problem or (_probe_labels(path, option.path, roots).problem if option.kind == "lines" else None)
        if problem is not None:
            problems[option.kind, option.path] = problem
    return problems


def _find_links_out(spec: Spec, roots: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each folder that the manifest names for reading in which a link leads out of the tree, and the link."""
    for named in named_paths(spec):
        is_here = named.use in {Use.LOCAL, Use.FETCH}
        folder = path_from_manifest(spec, named.path) if is_here else None
        link = link_out(folder, roots) if folder is not None and is_folder(folder) else None
        if link is not None:
            yield named.path, os.path.relpath(link, spec.folder)


def _probe_gates(spec: Spec) -> dict[str, Problem]:
    """Look for golden data in the folders that must pass before a job runs."""
    gated = {model.name for model in spec.models if model.gate}
    named = [one for model in spec.models if model.gate for one in model.checks]
    named += [one for adapter in spec.adapters if adapter.model in gated for one in adapter.checks]
    found = ((one.path, why_nothing_compares(path_from_manifest(spec, one.path), one.path)) for one in named)
    return {path: Problem(kind="golden", detail=reason) for path, reason in found if reason}


def _option_path_problem(path: Path, option: OptionPath) -> Problem | None:
    """Say why an option's path cannot be read, or cannot be made, by its kind."""
    if option.kind == "new-folder" and is_folder(path):
        return _unwritable(path, option.path, ())
    if option.kind in {"new-file", "new-folder"}:
        if is_folder(path.parent):
            return _unwritable(path.parent, option.path, ())
        detail = f"{option.path} cannot be written: there is no folder {path.parent}. Make it."
        return Problem(kind="missing", detail=detail)
    kind = "folder" if option.kind in {"folder", "vocabulary"} else "file"
    if is_folder(path) if kind == "folder" else is_file(path):
        return None
    detail = f"There is no {kind} {option.path}. Paths are relative to the manifest."
    return Problem(kind="missing", detail=detail)


def _content_problem(path: Path, option: OptionPath) -> Problem | None:
    """Return why a file or folder of an operation does not hold what it must, if that can be told here."""
    try:
        with decoding(option.path, option.kind):
            if option.kind == "vocabulary":
                from ortdeploy.operations.tokenize_clip import ClipTokenizer  # noqa: PLC0415  only who names one

                ClipTokenizer(path)
            elif option.kind == "tokenizer":
                from ortdeploy.operations import tokenize  # noqa: PLC0415  only who names one

                if importlib.util.find_spec(tokenize.PACKAGE.module):
                    tokenize.read(str(path))
            elif option.kind == "document":
                named, text = str(option.at[-1]), path.read_text(encoding="utf-8")
                wrong = check_option_document(option.provider, named, text)
                wrong = wrong or paths_in_document(option.provider, named, text)
                if wrong:
                    return Problem(kind="content", detail=f"{option.path} cannot be used: {' '.join(wrong)}")
    except OrtdeployError as error:
        return Problem(kind="content", detail=f"{error}.")
    return None


def _probe_input(
    spec: Spec,
    job: JobSpec,
    state_dir: Path,
    runtime: RuntimeFacts,
    before_jobs: Mapping[str, _Before],
    *,
    counted: bool,
) -> InputFacts:
    before = before_jobs[job.name]
    first_row = before.record.first_row if before.record else 0
    upstream = next((one for one in spec.jobs if one.name == job.input.job), None)
    if upstream is not None:
        from ortdeploy.planning.upstream_files import probe_upstream  # noqa: PLC0415  only who reads another job's rows

        found = probe_upstream(spec, job, upstream, before_jobs[upstream.name].record, before.inputs, state_dir)
        return replace(found, first_row=first_row)
    facts = probe_input(
        spec.folder,
        job.input.paths,
        job.input.format,
        spec.roots,
        runtime.packages,
        known=before.inputs,
        row_type=job.input.row_type,
        memory_limit=job.limits.memory,
        rate=job.input.rate,
        exif=job.input.exif,
        policy=job.input.arrivals,
        state_dir=state_dir,
        counted=counted,
    )
    return replace(facts, first_row=first_row, rows_before=rows_before(facts.states, before.inputs, first_row))


def probe_adapter(path: Path, shown: str, roots: tuple[str, ...], digests: DigestCache) -> AdapterFacts:
    """Read an adapter's header and its digest, unless it is a link out of the tree."""
    problem = _stray(path, shown, roots)
    if problem is not None:
        return AdapterFacts(path=str(path), problem=problem)
    try:
        before = path.stat()
        facts = read_adapter(path, shown)
        if facts.problem is not None:
            return facts
        digest, now = digests.digest(path), path.stat()
        problem = None if signature(now) == signature(before) else changed_while_read(shown)
        return replace(facts, sha256=digest, size=now.st_size, problem=problem)
    except OSError as error:
        return AdapterFacts(path=str(path), problem=unreadable(shown, error))


def _probe_resource(spec: Spec, option: OptionPath, roots: tuple[str, ...], digests: DigestCache) -> FileFacts:
    """Return the digest of a file that an operation reads, or of all files of a folder."""
    path = path_from_manifest(spec, option.path)
    if option.kind == "lines":
        return _probe_labels(path, option.path, roots)
    problem = _stray(path, option.path, roots) or _option_path_problem(path, option)
    if problem is not None:
        return FileFacts(path=str(path), problem=problem)
    try:
        files = _tree(path, digests)
        return FileFacts(path=str(path), sha256=_tree_digest(path, files), files=files)
    except OSError as error:
        return FileFacts(path=str(path), problem=unreadable(option.path, error))


def _probe_option_files(spec: Spec, roots: tuple[str, ...], digests: DigestCache) -> dict[str, FileFacts]:
    """Look at the files that are opened with sessions; what cannot be read of them is told where the option is."""
    found: dict[str, FileFacts] = {}
    for model in spec.models:
        for name in files_to_open(model, map(spec.chain_of, model.sessions)):
            path = path_from_manifest(spec, name)
            if name not in found and _stray(path, name, roots) is None:
                with suppress(OSError):
                    files = _tree(path, digests)
                    found[name] = FileFacts(path=str(path), sha256=_tree_digest(path, files), files=files)
    return found


def _tree(path: Path, digests: DigestCache) -> tuple[HashedFile, ...]:
    """Return a file, or the files of a folder. Raises OSError."""
    found = [path] if is_file(path) else [one for one in sorted(path.iterdir()) if one.is_file()]
    return tuple(
        HashedFile(name=one.name, path=str(one), sha256=digests.digest(one), size=one.stat().st_size) for one in found
    )


def _tree_digest(path: Path, files: Sequence[HashedFile]) -> str:
    """Return the digest of a file, or of the names and digests of a folder's files."""
    if is_file(path):
        return files[0].sha256
    return hashlib.sha256("\n".join(f"{one.sha256}  {one.name}" for one in files).encode()).hexdigest()


def _probe_labels(path: Path, shown: str, roots: tuple[str, ...]) -> FileFacts:
    problem = _stray(path, shown, roots)
    if problem is not None:
        return FileFacts(path=str(path), problem=problem)
    try:
        check_room(LINE_OF_VALUES * path.stat().st_size, shown, None)
        content = path.read_bytes()
        lines = _lines(content.decode("utf-8-sig"))
    except OrtdeployError as error:
        return FileFacts(path=str(path), problem=Problem(kind="too-large", detail=f"{error}."))
    except OSError as error:
        return FileFacts(path=str(path), problem=unreadable(shown, error))
    except UnicodeDecodeError:
        return FileFacts(path=str(path), problem=Problem(kind="not-utf8", detail=f"{shown} is not UTF-8 text."))
    if not lines:
        return FileFacts(path=str(path), problem=Problem(kind="empty", detail=f"{shown} holds no lines."))
    return FileFacts(path=str(path), sha256=hashlib.sha256(content).hexdigest(), lines=lines)


def _lines(text: str) -> tuple[str, ...]:
    """Return the lines of a text: a sign such as U+2028 is a letter of an alphabet and ends none."""
    return tuple(line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")) if text else ()


def _probe_output(spec: Spec, job: JobSpec, state_dir: Path, before: _Before, roots: tuple[str, ...]) -> OutputFacts:
    folder = _output_folder(spec, job)
    shown = job.output.shown
    problem = _unwritable(folder, shown, roots) or (None if job.output.url else _entangled(folder, shown, state_dir))
    read_only = problem if problem is not None and problem.kind == "read-only" else None
    if problem is not read_only:
        return OutputFacts(problem=problem)
    try:
        shards = _shards(folder, job, before)
    except OrtdeployError as error:
        return OutputFacts(problem=Problem(kind="unreachable", detail=f"{error}."))
    found = _look_at_output(folder, job, state_dir, before, shards)
    may_write = read_only is None and shards != "open" and found.state == "finished" and not found.problem
    left_over = may_write and _is_left_over(folder, state_dir, before)
    return replace(found, read_only=read_only, shards=shards, left_over=left_over)


def _is_left_over(folder: Path, state_dir: Path, before: _Before) -> bool:
    """Return whether a compact or retry that is not live has left something to complete."""
    if before.record is None or is_live(state_dir, before.record.output):
        return False
    try:
        return bool(before.record.replacements or before.merges) or has_hidden_files(folder)
    except OSError:
        return False


def _shards(folder: Path, job: JobSpec, before: _Before) -> str | None:
    """Return whether processes share the parts of an output: `open` while a plan is not finished, else `closed`.

    A store is asked only if the ledger knows parts that are not here, as of what one machine has made. Raises
    OrtdeployError.
    """
    place: SharedPlace | None = SharedFolder(folder)
    if job.output.url is not None:
        place = None if before.record is None or is_there(folder) else _decided_on(job)
    if place is None:
        return None
    try:
        return "open" if open_plans(place) else "closed" if any(place.names(SHARD_FOLDER)) else None
    except OSError:
        return None


def _look_at_output(folder: Path, job: JobSpec, state_dir: Path, before: _Before, shards: str | None) -> OutputFacts:
    """Look at what there is of an output that can be one."""
    if before.record is None and not is_there(folder):
        return OutputFacts()
    if before.record is None and not any(folder.iterdir()):
        return OutputFacts(state="empty")
    if before.record is None:  # a run that began meanwhile stands in the ledger before it writes a file
        before = _look_back(folder, state_dir, job)
    if before.record is None:
        return OutputFacts(state="foreign", ledger=_named_ledger(folder))
    is_elsewhere = job.output.url is not None and shards is not None
    return _own_output(folder, job, before, DigestCache(state_dir), is_elsewhere=is_elsewhere)


def _own_output(
    folder: Path, job: JobSpec, before: _Before, digests: DigestCache, *, is_elsewhere: bool
) -> OutputFacts:
    """Return the facts of an output that the ledger knows; files that are `elsewhere` only `finish` looks at."""
    record, shown, removable = before.record, job.output.shown, job.output.removable
    if record is None:
        raise AssertionError("the ledger knows this output")
    damage = _damage(folder, shown, record, before.merges, digests, removable=removable or is_elsewhere)
    parts = _parts_to_come(folder, record)
    makers = [(part.deployment, part.start) for part in parts]
    made = tuple(one for place, one in enumerate(makers) if not place or makers[place - 1][0] != one[0])
    return OutputFacts(
        state="finished" if record.status == "done" else "part",
        run=record.run,
        identity=record.identity,
        rows=record.forgotten.rows + sum(part.rows for part in parts),
        made=made,
        layout=before.layout,
        problem=damage,
    )


def _parts_to_come(folder: Path, record: OutputRecord) -> tuple[Part, ...]:
    """Return the committed parts, and the one that the next run commits first, for it is whole."""
    begun = record.begun
    if begun is None or begun.name is None or begun.part.file is None:
        return record.parts
    is_whole = any(is_file(folder / name) for name in (begun.part.file, begun.name))
    return (*record.parts, begun.part) if is_whole else record.parts


def _named_ledger(folder: Path) -> str | None:
    """Return the ledger that an output names, and whether it is there."""
    name = named_ledger(folder)
    if name is None:
        return None
    return name if is_file(folder / name) else f"{name}, which is not there"


def _output_folder(spec: Spec, job: JobSpec) -> Path:
    return path_from_manifest(spec, job.output.path)


def _unwritable(folder: Path, shown: str, roots: tuple[str, ...]) -> Problem | None:
    existing = folder
    while not os.path.lexists(existing):
        existing = existing.parent
    if not is_folder(existing):
        detail = f"{shown} cannot be a folder: {existing} is a file. Choose another place."
        return Problem(kind="not-a-folder", detail=detail)
    if roots and outside(str(existing), roots):
        return Problem(kind="outside", detail=f"{shown} leads through a link out of the manifest's folder tree.")
    if not os.access(existing, os.W_OK | os.X_OK):
        detail = f"{existing} cannot be written by this user, or its file system is read-only. Choose another place."
        return Problem(kind="read-only", detail=detail)
    try:
        folder.lstat()
    except FileNotFoundError:
        return None
    except OSError as error:  # a name that is too long, say
        return Problem(kind="not-a-folder", detail=f"{shown} cannot be a folder: {error.strerror}.")
    return None


def _entangled(folder: Path, shown: str, state_dir: Path) -> Problem | None:
    """Refuse an output that contains the state directory or lies in it, because a new run renames old outputs."""
    output, state = (Path(os.path.realpath(one)) for one in (folder, state_dir))  # resolve() stumbles over loops
    if output == state or output in state.parents:
        where = "holds"
    elif state in output.parents:
        where = "lies in"
    else:
        return None
    detail = f"{shown} {where} the state directory {state_dir}, where ortdeploy keeps its ledger. Choose another place."
    return Problem(kind="state", detail=detail)


def _damage(
    folder: Path,
    shown: str,
    record: OutputRecord,
    merges: Sequence[Merge],
    digests: DigestCache,
    *,
    removable: bool,
) -> Problem | None:
    """Check the ledger against itself, and its committed parts against the files."""
    contradiction = find_contradiction(record, merges)
    if contradiction is not None:
        return Problem(kind="damaged", detail=f"Of {shown}, {damaged(contradiction)}.")
    what = find_damage(
        folder, record.parts, merges, digests.digest, replacements=record.replacements, removable=removable
    )
    if what is None:
        return None
    otherwise = (
        "Or carry it away: its rows stay committed."
        if removable
        else f"Or move the whole folder {shown} elsewhere, where its other parts are kept, and the job runs from its "
        "first row. Where parts are carried away on purpose, write output: {removable: true}."
    )
    detail = f"{shown}/{what}. Bring it back from a copy. {otherwise}"
    return Problem(kind="damaged", detail=detail)
