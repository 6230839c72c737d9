"""Gathers the facts that planning one manifest needs: runtime, models, adapters, labels, inputs, outputs."""

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from msgspec.structs import replace

from ortdeploy.adapters.file import read_adapter
from ortdeploy.deployment.declared_shapes import with_overrides
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import ConstantArray, DeclaredInput, FileFacts, HashedFile, InputFacts, OutputFacts
from ortdeploy.facts.facts import Facts
from ortdeploy.facts.host import HostFacts
from ortdeploy.facts.models import AdapterFacts, DiffusionFacts, ModelFacts
from ortdeploy.facts.problems import Problem, changed_while_read, unreadable
from ortdeploy.files.decoding import decoding
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.files.digests import signature
from ortdeploy.files.gate import Use, link_out, outside
from ortdeploy.files.golden_sets import why_nothing_compares
from ortdeploy.files.memory_budget import LINE_OF_VALUES, check_room
from ortdeploy.files.names import is_file, is_folder, relative
from ortdeploy.files.opening import read_text, read_whole
from ortdeploy.files.text_lines import lines_of
from ortdeploy.graph.row_followers import with_row_followers
from ortdeploy.manifest.named_paths import named_paths, path_from_manifest
from ortdeploy.manifest.option_paths import (
    WRITTEN,
    OptionPath,
    files_to_open,
    find_option_paths,
    operation_paths,
    paths_in_document,
)
from ortdeploy.manifest.pipelines import GENERATE, PresetSpec
from ortdeploy.manifest.schema_check import check_option_document
from ortdeploy.manifest.spec import JobSpec, ModelSpec, Spec
from ortdeploy.planning.probing.data_places import (
    Before,
    DataPlaces,
    input_elsewhere,
    input_unseen,
    load_previous,
    look_at_input,
    look_at_output,
    output_elsewhere,
    shared_with,
    unwritable,
)
from ortdeploy.planning.probing.scope import Scope
from ortdeploy.planning.remembered.graph_cache import infer_shapes, read_model
from ortdeploy.providers.options import EXTERNAL_DATA_FOLDER
from ortdeploy.transforms.packages import package_of_step
from ortdeploy.units import allowed_count


def read_preset(
    spec: Spec, preset: PresetSpec, models: Mapping[str, ModelFacts], adapters: Mapping[str, AdapterFacts]
) -> DiffusionFacts:
    """Read a preset's folder; an exception of a library becomes its problem."""
    from ortdeploy.presets.generation import read_generation  # noqa: PLC0415  only for presets
    from ortdeploy.presets.stable_diffusion import read_diffusion  # noqa: PLC0415  as above

    latents = None if preset.latents is None else spec.places.get(preset.latents, preset.latents)
    place = replace(preset, folder=spec.places.get(preset.folder, preset.folder), latents=latents)
    try:
        with decoding(preset.folder, "a preset's folder"):
            if preset.kind == GENERATE:
                return read_generation(Path(spec.folder), place, models)
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
    declared = {one.name: one.tensor.shape for one in model.inputs if one.tensor.shape is not None}
    return read_model(path, model.path, digests.digest, load_format, data_folder, declared)


def probe(spec: Spec, state_dir: Path, host: HostFacts, scope: Scope) -> Facts:
    """Look at every file that the manifest names and at every place that it writes to."""
    roots = (spec.folder, *spec.roots)
    inputs, outputs = _probe_data(spec, state_dir, host.runtime.packages, scope)
    digests = DigestCache(state_dir)
    models = _probe_models(spec, roots, digests)
    adapters = {
        adapter.name: probe_adapter(path_from_manifest(spec, adapter.path), adapter.path, roots, digests)
        for adapter in spec.adapters
    }
    opened = {one.name: with_overrides(models[one.name], one.session) for one in spec.models}
    presets = {
        pipeline.name: read_preset(spec, pipeline.preset, opened, adapters)
        for pipeline in spec.pipelines
        if pipeline.preset is not None
    }
    return Facts(
        runtime=host.runtime,
        machine=host.machine,
        models=models | dict(_with_files_beside(spec, models, presets)),
        adapters=adapters,
        inputs=inputs,
        outputs=outputs,
        labels={path: _probe_labels(path_from_manifest(spec, path), path, roots) for path in _label_paths(spec)},
        path_problems=_probe_option_paths(spec, roots, elsewhere=scope.elsewhere),
        gate_problems=_probe_gates(spec),
        links_out=dict(_find_links_out(spec, roots)),
        resources={one.path: _probe_resource(spec, one, roots, digests) for one in operation_paths(spec)},
        option_files=_probe_option_files(spec, roots, digests),
        diffusion=presets,
    )


def _with_files_beside(
    spec: Spec, models: Mapping[str, ModelFacts], presets: Mapping[str, DiffusionFacts]
) -> Iterator[tuple[str, ModelFacts]]:
    """Yield the models that are opened with all that lies in their folder: a config and a tokenizer, say."""
    for pipeline in spec.pipelines:
        if pipeline.preset is not None and pipeline.preset.kind == GENERATE:
            for name in pipeline.models:
                yield name, replace(models[name], files=(*models[name].files, *presets[pipeline.name].files))


_MANY = 1_000_000_000
"""Rows of a job that is large enough for any share of them to be one row."""


def _sets_aside(spec: Spec, job: JobSpec) -> bool:
    """Return whether a file that cannot be read may fail by itself: rows that take a state cannot run later."""
    pipeline = spec.pipeline(job.pipeline)
    may_fail = allowed_count(job.max_failed, _MANY) > 0
    return may_fail and not job.input.jobs and not (pipeline is not None and pipeline.state)


def _probe_data(
    spec: Spec, state_dir: Path, packages: frozenset[str], scope: Scope
) -> tuple[dict[str, InputFacts], dict[str, OutputFacts]]:
    """Look at the inputs and the outputs of all jobs, with what earlier runs recorded."""
    places = {job.name: data_places(spec, job, scope.planned.get(job.name)) for job in spec.jobs}
    before = {name: Before() if scope.elsewhere else load_previous(one, state_dir) for name, one in places.items()}
    known = {name: Before() if name in scope.stale else one for name, one in before.items()}
    inputs = {
        job.name: input_unseen(
            places[job.name], packages, "With --device, data is looked at only for --out and --bound."
        )
        if job.name in scope.unseen
        else _probe_input(spec, job, places[job.name], state_dir, packages, known, scope=scope)
        for job in spec.jobs
    }
    outputs = {
        name: output_elsewhere(one, packages)
        if scope.elsewhere
        else _probe_output(
            name,
            places,
            look_at_output(one, packages, before[name], state_dir, stale=name in scope.stale, new_run=scope.new_run),
        )
        for name, one in places.items()
    }
    return inputs, outputs


def _probe_models(spec: Spec, roots: tuple[str, ...], digests: DigestCache) -> dict[str, ModelFacts]:
    """Read all models; of those that are run row by row, find out which values follow the rows."""
    models = {model.name: probe_model(spec, model, roots, digests) for model in spec.models}
    return models | {
        one.name: with_row_followers(models[one.name], one.inputs, infer_shapes) for one in _run_by_rows(spec)
    }


def _label_paths(spec: Spec) -> set[str]:
    of_labels = [step.options for job in spec.jobs for step in job.postprocess if step.name == "labels"]
    return {options["from"] for options in of_labels if "from" in options}


def data_places(spec: Spec, job: JobSpec, planned: frozenset[str] | None = None) -> DataPlaces:
    """Return what a job reads and writes; `planned`: the input files of a saved plan."""
    return DataPlaces(
        job=job.name,
        input=DeclaredInput(
            folder=spec.folder,
            patterns=job.input.paths,
            roots=spec.roots,
            format=job.input.format,
            row_type=job.input.row_type,
            settings=job.input.settings,
            dialect=job.input.dialect,
            arrivals=job.input.arrivals,
            memory_limit=job.limits.memory,
            only=planned,
            sets_aside=_sets_aside(spec, job),
            carried=job.input.key,
        ),
        output=str(path_from_manifest(spec, job.output.path)),
        shown=job.output.shown,
        url=job.output.url,
        output_format=job.output.format,
        removable=job.output.removable,
    )


def _run_by_rows(spec: Spec) -> list[ModelSpec]:
    """Return the models that a job or a step of a pipeline runs row by row."""
    of_presets = {name for one in spec.pipelines if one.preset is not None for name in one.models}
    used = {model.name: model for job in spec.jobs for model in spec.models_of(job)}
    return [model for name, model in used.items() if name not in of_presets]


def _stray(path: Path, shown: str, roots: tuple[str, ...]) -> Problem | None:
    if outside(str(path), roots):
        detail = f"{shown} is a link out of the manifest's folder tree. Allow its root with --allow-root."
        return Problem(kind="outside", detail=detail)
    return None


def _probe_option_paths(spec: Spec, roots: tuple[str, ...], *, elsewhere: bool) -> dict[tuple[str, str], Problem]:
    """Probe every file and folder that an option names, and the content of those of operations.

    What only a package reads is not read for a machine `elsewhere`: this one may lack it.
    """
    problems = {}
    for option in find_option_paths(spec):
        path = path_from_manifest(spec, option.path)
        problem = _stray(path, option.path, roots) or _option_path_problem(path, option)
        problem = problem or (None if elsewhere and option.kind == "tokenizer" else _content_problem(path, option))
        problem = problem or (_probe_labels(path, option.path, roots).problem if option.kind == "lines" else None)
        if problem is not None:
            problems[option.kind, option.path] = problem
    return problems


def _find_links_out(spec: Spec, roots: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield each folder that the manifest names for reading in which a link leads out of the tree, and the link.

    The files of image folders are looked at when a row names them.
    """
    pictures = {one.preset.image_folder for one in spec.pipelines if one.preset is not None}
    for named in named_paths(spec):
        is_here, is_data = named.use in {Use.LOCAL, Use.FETCH}, named.use is Use.READ and named.path in pictures
        folder = path_from_manifest(spec, named.path) if is_here or is_data else None
        if folder is None or not is_folder(folder):
            continue
        link = str(folder) if outside(str(folder), roots) else None if is_data else link_out(folder, roots)
        if link is not None:
            yield named.path, relative(link, spec.folder)


def _probe_gates(spec: Spec) -> dict[str, Problem]:
    """Look for golden data in the folders that must pass before a job runs."""
    gated = {model.name for model in spec.models if model.gate}
    named = (one for model, one in spec.checks() if model in gated)
    found = ((one.path, why_nothing_compares(path_from_manifest(spec, one.path), one.path)) for one in named)
    return {path: Problem(kind="golden", detail=reason) for path, reason in found if reason}


def _option_path_problem(path: Path, option: OptionPath) -> Problem | None:
    """Return why an option's path cannot be read, or cannot be made, by its kind."""
    if option.kind == "new-folder" and is_folder(path):
        return unwritable(path, option.path, ())
    if option.kind in WRITTEN:
        if is_folder(path.parent):
            return unwritable(path.parent, option.path, ())
        detail = f"{option.path} cannot be written: there is no folder {path.parent}. Make it."
        return Problem(kind="missing", detail=detail)
    kind = "folder" if option.kind in {"folder", "vocabulary"} else "file"
    if is_folder(path) if kind == "folder" else is_file(path):
        return None
    detail = f"There is no {kind} {option.path}. Paths are relative to the manifest."
    return Problem(kind="missing", detail=detail)


_READERS = {
    "letters": "letters",
    "table": "look_up",
    "tokenizer": "tokenize",
    "vectors": "neighbours",
    "vocabulary": "tokenize_clip",
}
"""The operations whose module reads a kind of file."""


def _content_problem(path: Path, option: OptionPath) -> Problem | None:
    """Return why a file or folder of an operation has the wrong content, if planning can find that out."""
    try:
        with decoding(option.path, option.kind):
            if option.kind == "array":
                _arrays(path, option.path)
            elif option.kind in _READERS:
                operation = importlib.import_module(f"ortdeploy.operations.{_READERS[option.kind]}")  # for these only
                package = getattr(operation, "PACKAGE", None)
                if package is None or importlib.util.find_spec(package.module):
                    operation.read(str(path))
            elif option.kind == "document":
                named, text = str(option.at[-1]), read_text(path)
                wrong = check_option_document(option.provider, named, text)
                wrong = wrong or paths_in_document(option.provider, named, text)
                if wrong:
                    return Problem(kind="content", detail=f"{option.path} cannot be used: {' '.join(wrong)}")
    except OrtdeployError as error:
        return Problem(kind="content", detail=f"{error}.")
    return None


def _probe_output(name: str, places: Mapping[str, DataPlaces], facts: OutputFacts) -> OutputFacts:
    """Return the facts of an output, with the problem that another job writes into the same folder."""
    return facts if facts.problem is not None else replace(facts, problem=shared_with(name, places))


def _probe_input(
    spec: Spec,
    job: JobSpec,
    places: DataPlaces,
    state_dir: Path,
    packages: frozenset[str],
    before_jobs: Mapping[str, Before],
    *,
    scope: Scope,
) -> InputFacts:
    before = before_jobs[job.name]
    upstream = next((one for one in spec.jobs if one.name == job.input.job), None)
    if upstream is None and scope.elsewhere:
        steps = (step for of_input in job.prepare.values() for step in of_input)
        of_steps = [one for step in steps if (one := package_of_step(step.name, step.options)) is not None]
        return input_elsewhere(places, packages, state_dir, of_steps, counting=scope.counting)
    if upstream is None:
        return look_at_input(places, packages, before, state_dir, counting=scope.counting)
    from ortdeploy.planning.probing.upstream_files import probe_upstream  # noqa: PLC0415  only for jobs that read another one's rows

    found = probe_upstream(spec, job, upstream, before_jobs[upstream.name].record, before.inputs, state_dir)
    return replace(found, first_row=before.first_row)


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
        arrays = _arrays(path, option.path) if option.kind == "array" else {}
        return FileFacts(path=str(path), sha256=_tree_digest(path, files), files=files, arrays=arrays)
    except OSError as error:
        return FileFacts(path=str(path), problem=unreadable(option.path, error))
    except OrtdeployError as error:
        return FileFacts(path=str(path), problem=Problem(kind="content", detail=f"{error}."))


def probe_constant(spec: Spec, path: str, roots: tuple[str, ...], digests: DigestCache) -> FileFacts:
    """Return the digest of a file of constants, and its arrays."""
    return _probe_resource(spec, OptionPath(at=(), path=path, kind="array"), roots, digests)


def _arrays(path: Path, shown: str) -> Mapping[str, ConstantArray]:
    """Return the arrays of a file of constants. Raises OSError, OrtdeployError."""
    from ortdeploy.planning.probing.constant_arrays import read_arrays  # noqa: PLC0415  numpy, only for constants from files

    return read_arrays(path, shown)


def _probe_option_files(spec: Spec, roots: tuple[str, ...], digests: DigestCache) -> dict[str, FileFacts]:
    """Look at the files that are opened with sessions; problems with them are reported at the option."""
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
        content = read_whole(path)
        lines = lines_of(content.decode("utf-8-sig"))
    except OrtdeployError as error:
        return FileFacts(path=str(path), problem=Problem(kind="too-large", detail=f"{error}."))
    except OSError as error:
        return FileFacts(path=str(path), problem=unreadable(shown, error))
    except UnicodeDecodeError:
        return FileFacts(path=str(path), problem=Problem(kind="not-utf8", detail=f"{shown} is not UTF-8 text."))
    if not lines:
        return FileFacts(path=str(path), problem=Problem(kind="empty", detail=f"{shown} holds no lines."))
    return FileFacts(path=str(path), sha256=hashlib.sha256(content).hexdigest(), lines=lines)
