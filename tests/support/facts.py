"""Facts written down by hand: a machine, models and data that need not exist."""

import re
from collections.abc import Mapping
from typing import Any

from msgspec.structs import replace

from ortdeploy.deployment.resolve import resolve
from ortdeploy.deployment.resolved import Deployment
from ortdeploy.facts.data import FileFacts, FileState, InputFacts, OutputFacts
from ortdeploy.facts.facts import Facts
from ortdeploy.facts.host import DeviceFacts, MachineFacts, RuntimeFacts
from ortdeploy.facts.kernel_text import parse_kernels
from ortdeploy.facts.memory import MeasuredMemory, MemoryForecast, MemoryPart, Way
from ortdeploy.facts.models import (
    AdapterFacts,
    DiffusionFacts,
    ModelFacts,
    NodeFacts,
    ParameterFacts,
    ValueFacts,
    WeightFacts,
)
from ortdeploy.facts.preflight import (
    CompiledModel,
    FirstRows,
    LargestValue,
    Opening,
    Preflight,
    RefusedBatch,
    RefusedOperators,
    RefusedRow,
)
from ortdeploy.facts.problems import Package, Problem
from ortdeploy.graph.operators import Operators
from ortdeploy.manifest.spec import Spec
from ortdeploy.runtime.operators import other_operators
from ortdeploy.tensors.types import Dimension, TensorType

DEFAULT_MODEL: dict[str, Any] = {
    "inputs": {"image": "float32[batch,1,8,8]"},
    "outputs": {"scores": "float32[batch,10]"},
}
BASE_MODEL: dict[str, Any] = {
    "inputs": {"image": "float32[batch,1,8,8]", "lora_A": "float32[8,2]=[8,2]"},
    "outputs": {"scores": "float32[batch,10]"},
}
DEFAULT_INPUT: dict[str, Any] = {"format": "npy", "columns": {"array": "float32[rows,1,8,8]"}, "rows": 100}


def tensor(text: str) -> TensorType:
    """`float32[batch,1,?]`, `?[...]` for an unknown rank, an optional `@NHWC`."""
    match = re.fullmatch(r"(\?|\w+)\[(.*?)\](?:@(\w+))?", text)
    assert match, text
    dtype, inside, layout = match.groups()
    shape = None if inside == "..." else tuple(_dimension(part) for part in inside.split(",") if part)
    return TensorType(None if dtype == "?" else dtype, shape, layout)


def _dimension(text: str) -> Dimension:
    return int(text) if text.isdecimal() else None if text == "?" else text


def value(name: str, text: str) -> ValueFacts:
    """`sequence`, `sequence:map` and the like for other kinds; `=` marks an input with a default, and may say its shape: `=[4,0]`.

    `…` behind a tensor: each row lists as many items as it happens to have.
    """
    if "[" not in text:
        kind, _, element = text.partition(":")
        return ValueFacts(name=name, kind=kind, tensor=TensorType(), element=element or None)
    written, equals, default = text.partition("=")
    shape = tuple(tensor(f"?{default or '[]'}").shape or ()) if equals else None
    ragged = written.endswith("…")
    return ValueFacts(name=name, kind="tensor", tensor=tensor(written.rstrip("…")), default=shape, ragged=ragged)  # type: ignore[arg-type]  # sizes


def node(text: str) -> NodeFacts:
    """`ai.onnx.Erf 13 T=tensor(float) @axis=1`: operator, version, types, attributes; `+` makes it expandable."""
    operator, since, *types = (part for part in text.split() if not part.startswith("@"))
    domain, _, name = operator.rstrip("+").rpartition(".")
    bound = dict(one.split("=") for one in types)
    return NodeFacts(
        name="",
        domain=domain,
        operator=name,
        since=int(since),
        types=bound,
        expandable=operator.endswith("+"),
        attributes=dict(part[1:].split("=") for part in text.split() if part.startswith("@")),
    )


def model_facts(data: Mapping[str, Any]) -> ModelFacts:
    if "problem" in data:
        return ModelFacts(path="m.onnx", problem=Problem(kind=data["problem"], detail="It cannot be used."))
    inputs = tuple(value(name, text) for name, text in data["inputs"].items())
    symbols = {size for item in inputs for size in item.tensor.shape or () if isinstance(size, str)}
    return ModelFacts(
        path="m.onnx",
        sha256=data.get("sha256", "0" * 64),
        ir_version=data.get("ir", 8),
        opsets=data.get("opsets", {"ai.onnx": 13}),
        inputs=inputs,
        outputs=tuple(value(name, text) for name, text in data["outputs"].items()),
        symbols=frozenset(symbols),
        nodes=tuple(node(text) for text in data.get("nodes", [])),
        unranked=tuple(data.get("unranked", [])),
        compiled_by=tuple(data.get("compiled_by", [])),
        unconfirmed={name: tensor(text).shape for name, text in data.get("unconfirmed", {}).items()},
        overruled={name: tensor(text).shape for name, text in data.get("overruled", {}).items()},
        draws=tuple(data.get("draws", [])),
        metadata=data.get("metadata", {}),
        weights=WeightFacts(size=data.get("weights", 0)),
    )


def package(name: str | None) -> Package | None:
    return Package(module=name, name=name, extra="extra") if name else None


def input_facts(data: Mapping[str, Any]) -> InputFacts:
    problem = Problem(kind=data["problem"], detail="It cannot be read.") if "problem" in data else None
    return InputFacts(
        format=data.get("format", "npy"),
        digest=data.get("digest", "1" * 64),
        columns={name: tensor(text) for name, text in data.get("columns", {}).items()},
        rows=data.get("rows"),
        unseekable=data.get("unseekable"),
        changed=tuple(data.get("changed", ())),
        moved=tuple(map(tuple, data.get("moved", ()))),
        files=tuple(data.get("files", ())),
        states=tuple(FileState(path=path, size=1, mtime_ns=1) for path in data.get("files", ())),
        rates={int(rate): tuple(rows) for rate, rows in data.get("rates", {}).items()},
        missing_package=package(data.get("missing_package")),
        problem=problem,
    )


def first_rows(data: Mapping[str, Any]) -> FirstRows:
    """The numbers of rows that are refused, and of those that are not finite."""
    refused = [
        RefusedRow(row=row, source="data.csv", stage="contract", message="it does not fit")
        for row in data.get("refused", [])
    ]
    return FirstRows(
        rows=data["rows"],
        refused=tuple(refused),
        not_finite=tuple(data.get("not_finite", [])),
        transparent=tuple(data.get("transparent", [])),
        windowless=tuple(data.get("windowless", [])),
        narrowed=tuple(data.get("narrowed", [])),
        complete=data.get("complete", False),
        stopped=data.get("stopped", False),
    )


def output_facts(data: Mapping[str, Any]) -> OutputFacts:
    problem = Problem(kind=data["problem"], detail="It cannot be written.") if "problem" in data else None
    return OutputFacts(
        state=data.get("state", "absent"),
        identity=data.get("identity", {}),
        rows=data.get("rows", 0),
        layout=data.get("layout"),
        ledger=data.get("ledger"),
        shards=data.get("shards"),
        problem=problem,
        missing_package=package(data.get("missing_package")),
        free_bytes=data.get("free_bytes"),
    )


def diffusion_facts(data: Mapping[str, Any]) -> DiffusionFacts:
    """A folder that paints 8 x 8 pixels."""
    return DiffusionFacts(
        ports=data.get("ports", {}),
        inputs=(value("prompt", "string[rows]"), value("seed", "int64[rows]=[]")),
        outputs=(value("image", "uint8[rows,8,8,3]"),),
        problem=Problem(kind=data["problem"], detail="It cannot be used.") if "problem" in data else None,
    )


def memory_forecast(data: Mapping[str, Any], limit: int | None, machine: int | None) -> MemoryForecast:
    """`{activations: 100, disk: 5, fitting: 4, measured: 100}`: parts by name, in bytes, and what was measured."""
    named = {"disk", "fitting", "measured"}
    parts = tuple(MemoryPart(what=key, size=size) for key, size in data.items() if key not in named)
    measured = tuple(
        MeasuredMemory(way=Way(arena=arena), size=data["measured"], rows=1)
        for arena in (True, False)
        if "measured" in data
    )
    return MemoryForecast(
        parts=parts,
        limit=limit,
        bound=min((one for one in (limit, machine) if one), default=None),
        measured=measured,
        fitting=data.get("fitting"),
        disk=data.get("disk"),
    )


def file_facts(data: Mapping[str, Any]) -> FileFacts:
    problem = Problem(kind=data["problem"], detail="It cannot be read.") if "problem" in data else None
    lines = () if problem is not None else tuple(data.get("lines", ("a", "b")))
    return FileFacts(path="f", sha256=data.get("sha256", "2" * 64), lines=lines, problem=problem)


def adapter_facts(data: Mapping[str, Any]) -> AdapterFacts:
    """Parameters are written as `float32[4,2]`, by name."""
    problem = Problem(kind=data["problem"], detail="It cannot be read.") if "problem" in data else None
    parameters = []
    for name, text in data.get("parameters", {"lora_A": "float32[8,2]"}).items():
        kind = tensor(text)
        parameters.append(ParameterFacts(name=name, dtype=kind.dtype or "", shape=tuple(kind.shape or ())))  # type: ignore[arg-type]  # sizes
    return AdapterFacts(
        path="f",
        sha256=data.get("sha256", "2" * 64),
        adapter_version=data.get("adapter_version", 0),
        model_version=data.get("model_version", 0),
        parameters=tuple(parameters),
        problem=problem,
    )


def device(text: str) -> DeviceFacts:
    """`OpenVINOExecutionProvider 0 CPU Intel CPU`: provider, number, kind, vendor, name; then memory=, shared=."""
    provider, index, kind, vendor, name, *memories = text.split()
    named = dict(memory.split("=") for memory in memories)
    return DeviceFacts(
        provider=provider,
        index=int(index),
        kind=kind,
        vendor=vendor,
        name=name,
        library="/plugin.so",
        memory=named.get("memory"),
        host_accessible_memory=named.get("shared"),
    )


def machine(data: Mapping[str, Any]) -> MachineFacts:
    """A machine with cores and perhaps a quota."""
    return MachineFacts(
        system="Linux",
        architecture=data.get("architecture", "x86_64"),
        python="3.11",
        cores=data["cores"],
        cpu_quota=data.get("cpu_quota"),
        memory_bytes=data.get("memory_bytes"),
        gpu_memory_bytes=data.get("gpu_memory_bytes"),
        cpu_flags=tuple(data.get("cpu_flags", ())),
        sensors=frozenset(data["sensors"]) if "sensors" in data else None,
    )


def _default_model(spec: Spec, name: str) -> dict[str, Any]:
    return BASE_MODEL if any(adapter.model == name for adapter in spec.adapters) else DEFAULT_MODEL


def make_facts(spec: Spec, data: Mapping[str, Any] | None = None) -> Facts:
    """Facts for everything that a spec names; what `data` leaves out is an 8x8 digit reader over .npy rows."""
    data = data or {}
    of_labels = [step.options for job in spec.jobs for step in job.postprocess if step.name == "labels"]
    labels = {options["from"] for options in of_labels if "from" in options}
    return Facts(
        runtime=RuntimeFacts(
            version=data.get("version", "1.31.1"),
            available_providers=tuple(data.get("providers", ["AzureExecutionProvider", "CPUExecutionProvider"])),
            max_ir_version=13,
            has_default_locale=data.get("has_default_locale"),
            attributes={
                operator: {int(version): frozenset(names) for version, names in known.items()}
                for operator, known in data.get("attributes", {}).items()
            },
            max_opsets={"ai.onnx": 26, "ai.onnx.ml": 5},
            packages=frozenset(data.get("packages", ["PIL", "onnxruntime_genai"])),
            devices=tuple(device(text) for text in data.get("devices", [])),
            plugin_problems=data.get("plugin_problems", {}),
            missing_libraries={name: frozenset(files) for name, files in data.get("missing_libraries", {}).items()},
            kernels={provider: parse_kernels(lines) for provider, lines in data.get("kernels", {}).items()},
            runtime_packages=tuple(data.get("runtime_packages", ["onnxruntime"])),
        ),
        machine=machine(data["machine"]) if "machine" in data else None,
        models={
            m.name: model_facts(data.get("models", {}).get(m.name, _default_model(spec, m.name))) for m in spec.models
        },
        adapters={a.name: adapter_facts(data.get("adapters", {}).get(a.name, {})) for a in spec.adapters},
        inputs={j.name: input_facts(data.get("inputs", {}).get(j.name, DEFAULT_INPUT)) for j in spec.jobs},
        outputs={j.name: output_facts(data.get("outputs", {}).get(j.name, {})) for j in spec.jobs},
        path_problems={
            (kind, path): Problem(kind="missing", detail=f"There is no {path}. Paths are relative to the manifest.")
            for kind, path in data.get("path_problems", [])
        },
        gate_problems={
            path: Problem(kind="golden", detail=f"There is no test_data_set_N, input_0.pb or inputs.npz in {path}.")
            for path in data.get("gate_problems", [])
        },
        links_out=data.get("links_out", {}),
        diffusion={
            one.name: diffusion_facts(data.get("diffusion", {}).get(one.name, {}))
            for one in spec.pipelines
            if one.preset
        },
        labels={path: file_facts(data.get("labels", {}).get(path, {})) for path in labels},
        resources={path: file_facts(data["labels"][path]) for path in {*data.get("labels", {})} - labels},
    )


OPERATORS = Operators(other_operators())


def make_deployment(spec: Spec, data: Mapping[str, Any] | None = None) -> Deployment:
    """A spec joined with facts, and with what preflight found out."""
    return replace(resolve(spec, make_facts(spec, data), OPERATORS), preflight=_preflight(spec, data or {}))


def _preflight(spec: Spec, data: Mapping[str, Any]) -> Preflight:
    return Preflight(
        openings={name: Opening(**found) for name, found in data.get("openings", {}).items()},
        folders={name: Opening(**found) for name, found in data.get("folders", {}).items()},
        compiled={name: tuple(CompiledModel(**one) for one in some) for name, some in data.get("compiled", {}).items()},
        refused_operators={
            job: tuple(RefusedOperators(at=tuple(at), operators=operators, refusal=why) for at, operators, why in some)
            for job, some in data.get("refused_operators", {}).items()
        },
        first_rows={name: first_rows(found) for name, found in data.get("first_rows", {}).items()},
        refused_batches={
            name: RefusedBatch(rows=found["rows"], problem="it does not fit", fitting=tuple(found.get("fitting", [])))
            for name, found in data.get("refused_batches", {}).items()
        },
        largest_values={
            job: tuple(LargestValue(**one) for one in some) for job, some in data.get("largest_values", {}).items()
        },
        memory={
            job.name: memory_forecast(
                data["memory"][job.name], job.limits.memory, data.get("machine", {}).get("memory_bytes")
            )
            for job in spec.jobs
            if job.name in data.get("memory", {})
        },
    )
