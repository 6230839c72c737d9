"""Builds the spec of a document that the schema has accepted.

Nothing is interpreted here: no file is looked at, no default depends on anything but the text.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec.structs import replace

from ortdeploy.facts.data import ArrivalPolicy, Dialect
from ortdeploy.files.object_store import mirror_of
from ortdeploy.files.urls import is_url
from ortdeploy.manifest.document import Document, Path
from ortdeploy.manifest.memory import arena_config, read_memory
from ortdeploy.manifest.pipelines import GENERATE, component_models, read_pipeline
from ortdeploy.manifest.spec import (
    ALL_COLUMNS,
    AdapterSpec,
    BatchSpec,
    CheckSpec,
    InputSpec,
    JobSpec,
    LimitsSpec,
    ModelSpec,
    OnEnd,
    OutputSpec,
    ProviderSpec,
    SessionSpec,
    Spec,
    StepSpec,
    TensorSpec,
    Written,
)
from ortdeploy.plan.adapters import PlannedAdapters
from ortdeploy.plan.recording import Recording
from ortdeploy.plan.timing import Hours, JobTiming, PauseLimits
from ortdeploy.tensors.types import TensorType
from ortdeploy.units import parse_duration, parse_size

DEFAULT_ROWS_PER_PART, DEFAULT_TEXTS_PER_PART = 100_000, 100
"""A row of a model that writes may take seconds: fewer of them are lost if the process is killed."""

ROWS_ATOL = 1e-5
"""Default absolute tolerance beside a declared `row_independence: {rtol: …}`."""


def build_spec(
    document: Document,
    *,
    name: str,
    folder: str,
    roots: tuple[str, ...],
    sha256: str,
    profile: str | None,
    sets: tuple[str, ...],
    asked: str | None = None,
    overlays: tuple[str, ...] = (),
) -> Spec:
    """Build the spec of a document that the schema has accepted."""
    data = document.data
    return Spec(
        name=data.get("name", name),
        path=document.path,
        folder=folder,
        roots=roots,
        sha256=sha256,
        profile=profile,
        asked=asked,
        sets=sets,
        overlays=overlays,
        chains={key: _chain(value, ("providers", key)) for key, value in data.get("providers", {}).items()},
        models=tuple(_models(data)),
        adapters=tuple(_adapter(key, value) for key, value in data.get("adapters", {}).items()),
        jobs=tuple(
            _job(key, _with_part(value, data), data.get("limits", {})) for key, value in data.get("jobs", {}).items()
        ),
        pipelines=tuple(read_pipeline(key, value) for key, value in data.get("pipelines", {}).items()),
        shared_arena=arena_config(data["shared_arena"]) if "shared_arena" in data else None,
        document=document,
        on_end=_on_end(data["on_end"]) if "on_end" in data else None,
    )


def _on_end(data: Mapping[str, Any]) -> OnEnd:
    command = tuple(data["command"]) if "command" in data else None
    when = tuple(data.get("when", _BAD_ENDINGS))
    return OnEnd(command=command, url=data.get("url"), timeout=parse_duration(data.get("timeout", "30s")), when=when)


_BAD_ENDINGS = ("refused", "failed", "paused")


def _chain(entries: list[Any], at: Path) -> tuple[ProviderSpec, ...]:
    return tuple(_provider(entry, (*at, index)) for index, entry in enumerate(entries))


def _provider(entry: Any, at: Path) -> ProviderSpec:
    if isinstance(entry, str):
        return ProviderSpec(name=entry, options={}, at=at)
    device = entry.get("device")
    return ProviderSpec(
        name=entry["provider"],
        options=entry.get("options", {}),
        at=at,
        device=int(device) if isinstance(device, str) and device.isdecimal() else device,
        library=entry.get("library"),
    )


def _models(data: Mapping[str, Any]) -> Iterator[ModelSpec]:
    """Yield the models that are declared, and the components of presets."""
    for name, model in data.get("models", {}).items():
        yield _model(name, model, ("models", name), ("models", name))
    for name, pipeline in data.get("pipelines", {}).items():
        for component, model, at, providers_at in component_models(name, pipeline):
            yield _model(component, model, at, providers_at)


def no_model(name: str, at: Path) -> ModelSpec:
    """Return what stands for the models of a pipeline that has none: its op steps run on the CPU provider."""
    return _model(name, {"path": ""}, at, at)


def _model(name: str, data: Mapping[str, Any], at: Path, providers_at: Path) -> ModelSpec:
    memory = read_memory(data.get("memory", {}))
    return ModelSpec(
        name=name,
        path=data["path"],
        sha256=data.get("sha256"),
        external_data=data.get("external_data", {}),
        sessions=tuple(_sessions(name, data, providers_at)),
        has_providers_and_sessions="providers" in data and "sessions" in data,
        use=data.get("use", "first"),
        on_unavailable=data.get("on_unavailable", "fail"),
        cpu_fallback=_cpu_fallback(data.get("cpu_fallback", "warn")),
        probe=_probe(data.get("probe", {})),
        session=memory.session_options(data.get("session", {})),
        run=memory.run_options(data.get("run", {})),
        memory=memory,
        cache=data.get("cache", False),
        inputs=_tensors(data.get("inputs", {}), (*at, "inputs")),
        outputs=_tensors(data.get("outputs", {}), (*at, "outputs")),
        gate=data.get("gate", False),
        checks=_checks(data, at),
        at=at,
        auto_threads=data.get("threads") == "auto",
        free_threads=not _fixes_threads(data),
        unchecked=data.get("checks") == [],
        checks_rows=data.get("row_independence") is not False,
        row_tolerance=_row_tolerance(data.get("row_independence")),
        generates=data.get("generates", False),
        together=data.get("together", False),
    )


_FIXING = frozenset({
    "intra_op_num_threads", "inter_op_num_threads", "execution_mode", "use_per_session_threads",
    "use_deterministic_compute", "enable_profiling", "optimized_model_filepath",
})  # fmt: skip
"""Session options that belong to one session, and so to one way to use threads."""

_FIXING_CONFIG = frozenset({"session.intra_op_thread_affinities", "session.intra_op.allow_spinning"})


def _fixes_threads(data: Mapping[str, Any]) -> bool:
    """Return whether a model's own words decide its sessions or their threads, or want little memory."""
    session = data.get("session", {})
    written = _FIXING.intersection(session) or _FIXING_CONFIG.intersection(session.get("config", {}))
    return bool(written) or "sessions" in data or "threads" in data or data.get("memory") == "lean"


def _check(entry: Any, at: Path) -> CheckSpec:
    data: Mapping[str, Any] = {"path": entry} if isinstance(entry, str) else entry
    tolerance = data.get("rtol"), data.get("atol")
    outputs = {
        name: (own.get("rtol", tolerance[0]), own.get("atol", tolerance[1]))
        for name, own in data.get("outputs", {}).items()
    }
    return CheckSpec(path=data["path"], tolerance=tolerance, outputs=outputs, at=at)


def _sessions(model: str, data: Mapping[str, Any], at: Path) -> Iterator[SessionSpec]:
    """Yield the sessions of a model; one on the CPU provider when it says nothing."""
    for index, session in enumerate(data.get("sessions", ())):
        here: Path = (*at, "sessions", index)
        made = _session(session["name"], session["providers"], here, (*here, "providers"))
        yield replace(made, count=session.get("count", 1), callers=session.get("callers", 1))
    if "sessions" not in data and "providers" in data:
        yield _session(model, data["providers"], at, (*at, "providers"))
    elif "sessions" not in data:
        cpu = ProviderSpec(name="CPU", options={}, at=at)
        yield SessionSpec(name=model, chain_name=None, chain=(cpu,), at=at)


def _session(name: str, providers: Any, at: Path, chain_at: Path) -> SessionSpec:
    if isinstance(providers, str):
        return SessionSpec(name=name, chain_name=providers, chain=(), at=at)
    return SessionSpec(name=name, chain_name=None, chain=_chain(providers, chain_at), at=at)


def _probe(value: Any) -> Written | None:
    return None if value is False else (value.get("rtol"), value.get("atol"))


def _row_tolerance(value: Any) -> tuple[float, float] | None:
    """Return the declared tolerance; None if the manifest declares none."""
    return (float(value["rtol"]), float(value.get("atol", ROWS_ATOL))) if isinstance(value, dict) else None


def _cpu_fallback(value: Any) -> str | int:
    """Return forbid, warn, allow, a number of nodes, or a share with its percent sign."""
    limit: str | int = value["max_nodes"] if isinstance(value, dict) else value
    return limit


def _tensors(data: Mapping[str, Any], at: Path) -> tuple[TensorSpec, ...]:
    return tuple(_tensor(name, value, (*at, name)) for name, value in data.items())


def _tensor(name: str, data: Mapping[str, Any], at: Path) -> TensorSpec:
    shape = tuple(data["shape"]) if "shape" in data else None
    limits = data.get("range")
    tensor = TensorType(data.get("dtype"), shape, data.get("layout"))
    return TensorSpec(
        name=name,
        tensor=tensor,
        limits=(limits[0], limits[1]) if limits else None,
        at=at,
        row_axis=data.get("row_axis"),
    )


def _checks(data: Mapping[str, Any], at: Path) -> tuple[CheckSpec, ...]:
    return tuple(_check(entry, (*at, "checks", index)) for index, entry in enumerate(data.get("checks", ())))


def _adapter(name: str, data: Mapping[str, Any]) -> AdapterSpec:
    at: Path = ("adapters", name)
    return AdapterSpec(
        name=name,
        path=data["path"],
        model=data["model"],
        sha256=data.get("sha256"),
        model_version=data.get("model_version"),
        adapter_version=data.get("adapter_version"),
        device=data.get("device"),
        checks=_checks(data, at),
        at=at,
    )


def _with_part(job: Mapping[str, Any], data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a job with the rows of a part, if it runs a pipeline that writes texts and does not say them."""
    pipeline = data.get("pipelines", {}).get(job.get("pipeline", ""), {})
    if pipeline.get("preset") != GENERATE or "output" not in job:
        return job
    return {**job, "output": {"rows_per_part": DEFAULT_TEXTS_PER_PART, **job["output"]}}


def _job(name: str, data: Mapping[str, Any], limits: Mapping[str, Any]) -> JobSpec:
    at: Path = ("jobs", name)
    batch, errors = data.get("batch", {}), data.get("errors", {})
    report = data.get("report", ())
    return JobSpec(
        name=name,
        model=data.get("pipeline") or data["model"],
        pipeline=data.get("pipeline"),
        has_pipeline_and_model="pipeline" in data and "model" in data,
        adapters=_adapter_choice(data.get("adapter")),
        input=_input(data["input"], (*at, "input")),
        prepare={key: _steps(steps, (*at, "prepare", key)) for key, steps in data.get("prepare", {}).items()},
        batch=BatchSpec(size=batch.get("size"), last=batch.get("last", "short")),
        postprocess=_steps(data.get("postprocess", []), (*at, "postprocess")),
        output=_output(data["output"], (*at, "output")),
        max_failed=errors.get("max_failed", 0),
        max_consecutive=errors.get("max_consecutive"),
        retries=errors.get("retries", 0),
        attempts=errors.get("attempts"),
        progress_timeout=parse_duration(errors["progress_timeout"]) if "progress_timeout" in errors else None,
        run_timeout=parse_duration(errors["run_timeout"]) if "run_timeout" in errors else None,
        on_nan=errors.get("on_nan"),
        limits=_limits(limits, data.get("limits", {}), at),
        reports=(report,) if isinstance(report, str) else tuple(report),
        at=at,
        timing=_timing(data),
        expect=data.get("expect", {}),
    )


def _timing(data: Mapping[str, Any]) -> JobTiming:
    hours, pause = data.get("hours"), data.get("pause")
    return JobTiming(
        hours=_hours(hours) if hours else None,
        until=parse_duration(data["until"]) if "until" in data else None,
        pause=_pause(pause.get("above", {}), pause.get("below", {})) if pause else None,
    )


def _hours(data: Mapping[str, str]) -> Hours:
    return Hours(begin=_minutes(data["from"]), end=_minutes(data["to"]), zone=data.get("zone"))


def _minutes(text: str) -> int:
    hour, _, minute = text.partition(":")
    return int(hour) * 60 + int(minute)


def _pause(above: Mapping[str, str], below: Mapping[str, Any]) -> PauseLimits:
    return PauseLimits(
        temperature=float(above["temperature"].rstrip("C ")) if "temperature" in above else None,
        battery=float(below["battery"].rstrip("% ")) if "battery" in below else None,
        free_disk=parse_size(below["free_disk"]) if "free_disk" in below else None,
    )


def _adapter_choice(data: Any) -> PlannedAdapters:
    """Read a name, a list of them, or a choice by a column; nothing and none are the base model."""
    if isinstance(data, dict):
        mapping, otherwise = data.get("map", {}), data.get("otherwise", "fail")
        named = dict.fromkeys((*mapping.values(), *(() if otherwise in {"none", "fail"} else (otherwise,))))
        return PlannedAdapters(names=tuple(named), column=data["column"], mapping=mapping, otherwise=otherwise)
    names = data if isinstance(data, list) else [data] if data else []
    always = tuple(name for name in names if name != "none")
    return PlannedAdapters(names=tuple(dict.fromkeys(always)), always=always)


OF_ANY_FORMAT = frozenset({
    "path", "job", "format", "dtype", "shape", "delimiter", "lines_per_record", "empty", "columns", "on_empty",
    "on_change", "on_remove", "stable_for", "values", "missing", "key",
})  # fmt: skip
"""The keys of an input that are read here; the module of its format reads the others."""


def _input(data: Mapping[str, Any], at: Path) -> InputSpec:
    paths = data.get("path", ())
    columns = {
        key: (value,) if isinstance(value, str) else tuple(value) for key, value in data.get("columns", {}).items()
    }
    return InputSpec(
        paths=(paths,) if isinstance(paths, str) else tuple(paths),
        missing=_fillers(data.get("missing", {})),
        format=data.get("format"),
        row_type=TensorType(data["dtype"], tuple(data["shape"])) if "dtype" in data else None,
        settings={key: value for key, value in data.items() if key not in OF_ANY_FORMAT},
        dialect=_dialect(data),
        columns=columns,
        key=tuple(data.get("key", ())),
        at=at,
        values=data.get("values", {}),
        arrivals=_arrivals(data),
        jobs=_names(data.get("job", ())),
    )


def _dialect(data: Mapping[str, Any]) -> Dialect | None:
    """Read how tables are written; None if nothing is said of that."""
    said = {key: data[key] for key in ("delimiter", "lines_per_record") if key in data}
    said |= {"empty": tuple(data["empty"])} if "empty" in data else {}
    return Dialect(**said) if said else None


def _arrivals(data: Mapping[str, Any]) -> ArrivalPolicy:
    return ArrivalPolicy(
        on_empty=data.get("on_empty", "fail"),
        on_change=data.get("on_change", "refuse"),
        on_remove=data.get("on_remove", "keep"),
        stable_for=parse_duration(data.get("stable_for", 0)),
    )


def _fillers(data: Any) -> Mapping[str, Any]:
    """Read what empty values stand for: by name or pattern, or one value for all columns."""
    return data if isinstance(data, dict) else {ALL_COLUMNS: data}


def _limits(of_deployment: Mapping[str, Any], own: Mapping[str, Any], at: Path) -> LimitsSpec:
    """Read limits, those of the deployment where the job has none of its own."""
    data = {**of_deployment, **own}
    memory, disk = (parse_size(data[key]) if key in data else None for key in ("memory", "disk"))
    places = {key: (*at, "limits", key) if key in own else ("limits", key) for key in data}
    return LimitsSpec(memory=memory, threads=data.get("threads"), disk=disk, at=places)


def _output(data: Mapping[str, Any], at: Path) -> OutputSpec:
    url = data["path"] if is_url(data["path"]) else None
    return OutputSpec(
        path=data["path"] if url is None else mirror_of(url),
        url=url,
        format=data.get("format", "jsonl"),
        columns=tuple(data.get("columns", ())),
        rows_per_part=data.get("rows_per_part", DEFAULT_ROWS_PER_PART),
        images=tuple(data.get("images", ())),
        recordings={
            name: Recording(rate=one["rate"], format=one.get("format", "wav"))
            for name, one in data.get("recordings", {}).items()
        },
        explode=_names(data.get("explode", ())),
        removable=data.get("removable", False),
        on_upgrade=data.get("on_upgrade", "refuse"),
        keep=parse_duration(data["keep"]) if "keep" in data else None,
        types=data.get("types", {}),
        at=at,
    )


def _names(value: str | list[str] | tuple[str, ...]) -> tuple[str, ...]:
    """Read a name, or a list of them."""
    return (value,) if isinstance(value, str) else tuple(value)


_STEP_OPTIONS = frozenset({
    "as", "at", "from", "k", "metadata", "method", "model", "of", "side", "value", "value_as", "values_as",
})  # fmt: skip


def _steps(data: list[Any], at: Path) -> tuple[StepSpec, ...]:
    """Build steps; what names a step is its one key that is not an option of some step."""
    return tuple(StepSpec(name=_step_name(step), options=step, at=(*at, index)) for index, step in enumerate(data))


def _step_name(step: Mapping[str, Any]) -> str:
    return "op" if "op" in step else next(key for key in step if key not in _STEP_OPTIONS)
