"""Reads a model file into `ModelFacts`: no session, no external weights.

The graph is the truth, not `session.get_inputs()`: it tells a scalar from an unknown rank, and it can be read on a
laptop for a device that is somewhere else.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from msgspec.structs import replace

from ortdeploy.facts.data import HashedFile
from ortdeploy.facts.models import ModelFacts, ValueFacts
from ortdeploy.facts.problems import Problem, changed_while_read, unnameable, unreadable
from ortdeploy.files.content import HEAD, ORT_MODEL, POINTER, recognise
from ortdeploy.files.decoding import is_a_bug, reason_of
from ortdeploy.files.digests import file_digest, signature
from ortdeploy.files.names import is_folder
from ortdeploy.files.opening import open_regular
from ortdeploy.graph.declared_inputs import give_shapes, overruling_shapes
from ortdeploy.graph.external_data import TensorProblemError, external_files, file_beside
from ortdeploy.graph.image_layouts import image_uses
from ortdeploy.graph.index_limits import index_limits
from ortdeploy.graph.inner_graphs import inlined, without_functions
from ortdeploy.graph.nodes import drop_weights, is_sound, read_nodes
from ortdeploy.graph.ort_format import MAGIC as ORT_MAGIC
from ortdeploy.graph.ort_format import OrtFormatError, read_ort_format
from ortdeploy.graph.random_ops import random_operators
from ortdeploy.graph.skeleton import take_outline
from ortdeploy.graph.text import check_text
from ortdeploy.graph.values import weigh
from ortdeploy.graph.without_weights import load_without_weights
from ortdeploy.tensors.types import ELEMENT_NUMBERS, Shape, TensorType, shapes_agree

_ELEMENT_TYPES = {number: name for name, number in ELEMENT_NUMBERS.items()}
_KINDS = {
    "tensor_type": "tensor",
    "sequence_type": "sequence",
    "map_type": "map",
    "optional_type": "optional",
    "sparse_tensor_type": "sparse",
}
_IMAGE_RANK = 4
_NO_NAMES = {"None", "unk", "unknown"}  # written by exporters for every dimension they do not know: no one number
_MIN_IR_WITH_DEFAULTS = 4  # below it, an initializer in the inputs is a constant that ONNX Runtime refuses to be fed


def read_model(
    path: Path,
    shown: str,
    digest_of: Callable[[Path], str] = file_digest,
    load_format: str | None = None,
    data_folder: Path | None = None,
    declared: Mapping[str, Shape] = MappingProxyType({}),
) -> ModelFacts:
    """Read a model file; whatever keeps it from being used becomes the facts' problem. `shown` is its name in text.

    `load_format` is session.load_model_format of its session: ORT, or None if the suffix tells. External data lies
    in `data_folder`, by default in the model's. `declared` are the shapes of inputs in the manifest, which overrule
    sizes that the graph fixes.
    """
    taken_for_ort = load_format == "ORT" or path.suffix.lower() == ".ort"
    problem = unnameable(str(path), shown) or _look_at_file(path, shown, taken_for_ort=taken_for_ort)
    if problem is not None:
        return ModelFacts(path=str(path), problem=problem)
    try:
        before = signature(path.stat())
        model, external = _load(path, data_folder or path.parent)
        problem = _look_at_model(model, shown) or _look_at_name(path, shown, load_format)
        if problem is None:
            beside = {**external, **_compiled_binaries(path.parent, model)}
            files = tuple(
                HashedFile(name=name, path=str(one), sha256=digest_of(one), size=one.stat().st_size)
                for name, one in {path.name: path, **beside}.items()
            )
            if signature(path.stat()) == before:
                return _facts(path, model, files, declared, in_ort_format=taken_for_ort)
            problem = changed_while_read(shown)
    except Exception as error:  # protobuf, onnx and flatbuffers have no one class for what a damaged file causes
        problem = _what_is_wrong(error, shown)
        if problem is None:
            raise
    return ModelFacts(path=str(path), problem=problem)


def _what_is_wrong(error: Exception, shown: str) -> Problem | None:
    """Return what is wrong with a model file if reading it has raised an error; None if that is a bug."""
    whole = "Provide the whole file."
    match error:
        case OrtFormatError():
            detail = f"{shown} is in ORT format and is cut off or damaged ({error}). {whole}"
            return Problem(kind="not-ort", detail=detail)
        case DecodeError():
            return Problem(kind="not-onnx", detail=f"{shown} is not an ONNX model, or is cut off. {whole}")
        case TensorProblemError():
            return Problem(kind="missing-bytes", detail=f"{shown}: {error}")
        case OSError():
            return unreadable(shown, error)
    if is_a_bug(error):
        return None
    return Problem(kind="damaged-model", detail=f"{shown} is damaged: {reason_of(error)}. {whole}")


def _load(path: Path, data_folder: Path) -> tuple[onnx.ModelProto, Mapping[str, Path]]:
    """Return a model and its external files. Raises DecodeError, OrtFormatError, TensorProblemError, OSError."""
    with open_regular(path) as file:
        if file.read(8)[4:] == ORT_MAGIC:
            return read_ort_format(path), {}  # its weights are in it
    model = load_without_weights(path)
    check_text(model)
    return model, external_files(data_folder, model)


def _look_at_file(path: Path, shown: str, *, taken_for_ort: bool) -> Problem | None:
    """Refuse what cannot be a model, by name, size and first bytes."""
    if is_folder(path):
        return Problem(kind="folder", detail=f"{shown} is a folder. Name the .onnx file in it.")
    try:
        with open_regular(path) as file:
            head = file.read(HEAD)
    except OSError as error:
        return unreadable(shown, error)
    if not head:
        return Problem(kind="empty", detail=f"{shown} is empty. Provide the whole file.")
    content = recognise(head)
    if content == ORT_MODEL:
        detail = f"{shown} is in ORT format, which ONNX Runtime knows by the suffix. Rename it to end in .ort."
        return None if taken_for_ort else Problem(kind="ort-format", detail=detail)
    if content is not None:
        kind = "lfs-pointer" if content == POINTER else "not-onnx"
        return Problem(kind=kind, detail=f"{shown} is {content.what}, not the model. {content.advice}")
    return None


def _look_at_name(path: Path, shown: str, load_format: str | None) -> Problem | None:
    """Refuse an ONNX model whose suffix or session says ORT format."""
    with open_regular(path) as file:
        if file.read(8)[4:] == ORT_MAGIC:
            return None
    if load_format == "ORT":
        detail = f"{shown} is an ONNX model, and session.load_model_format says ORT. Leave that out."
    elif path.suffix.lower() == ".ort":
        detail = f"{shown} is an ONNX model; ONNX Runtime takes what ends in .ort for ORT format. Name it .onnx."
    else:
        return None
    return Problem(kind="ort-format", detail=detail)


def _look_at_model(model: onnx.ModelProto, shown: str) -> Problem | None:
    """Refuse what protobuf reads and is not ONNX: text that happens to parse, files cut between two fields."""
    made = {name for node in model.graph.node for name in node.output}
    made |= {tensor.name for tensor in model.graph.initializer} | {value.name for value in model.graph.input}
    made |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    whole = model.ir_version > 0 and model.opset_import and model.graph.output
    if not whole or any(value.name not in made for value in model.graph.output):
        return Problem(kind="not-onnx", detail=f"{shown} is not an ONNX model, or is cut off. Provide the whole file.")
    return None


def _facts(
    path: Path,
    model: onnx.ModelProto,
    files: tuple[HashedFile, ...],
    declared: Mapping[str, Shape],
    *,
    in_ort_format: bool,
) -> ModelFacts:
    overruling = {} if in_ort_format or _compilers(model) else overruling_shapes(model, declared)
    overruled = {value.name: _value(value).tensor.shape for value in model.graph.input if value.name in overruling}
    if overruling:
        give_shapes(model, overruling)
    constants = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    takes_defaults = model.ir_version >= _MIN_IR_WITH_DEFAULTS
    written = {value.name: value for value in model.graph.input}  # Olive lists the inputs of adapters twice
    inputs = tuple(
        replace(_value(value), default=constants.get(name))
        for name, value in written.items()
        if takes_defaults or name not in constants
    )
    outputs = tuple(_value(value) for value in model.graph.output)
    shapes = [value.tensor.shape for value in inputs]
    inputs = tuple(_told_by_nodes(inputs, model))
    weights, draws = weigh(model.graph), random_operators(model)
    outline = None if in_ort_format else take_outline(model)
    drop_weights(model.graph)
    sound = is_sound(model)
    read = read_nodes(model, infer=sound)
    if overruling:
        outputs = tuple(_with_inferred(value, read.outputs) for value in outputs)
    return ModelFacts(
        path=str(path),
        sha256=_digest(files),
        files=files,
        ir_version=model.ir_version,
        opsets={opset.domain or "ai.onnx": opset.version for opset in model.opset_import},
        inputs=inputs,
        outputs=outputs,
        symbols=frozenset(size for shape in shapes for size in shape or () if isinstance(size, str)),
        nodes=read.nodes,
        unranked=read.unranked,
        unconfirmed=dict(_unconfirmed(outputs, read.outputs)),
        skeleton=model.SerializeToString() if sound else b"",
        outline=outline,
        compiled_by=_compilers(model),
        overruled=overruled,
        weights=weights,
        draws=draws,
        metadata={one.key: one.value for one in model.metadata_props},
    )


def _value(value: onnx.ValueInfoProto) -> ValueFacts:
    kind = kind_of(value.type)
    if kind != "tensor":
        element = kind_of(value.type.sequence_type.elem_type) if kind == "sequence" else None
        return ValueFacts(name=value.name, kind=kind, tensor=TensorType(), element=element)
    tensor = value.type.tensor_type
    shape = _shape(tensor.shape) if tensor.HasField("shape") else None
    dtype = _ELEMENT_TYPES.get(tensor.elem_type)
    return ValueFacts(name=value.name, kind=kind, tensor=TensorType(dtype, shape))


def _with_inferred(value: ValueFacts, inferred: Mapping[str, onnx.TypeProto]) -> ValueFacts:
    """Return an output with the shape that its nodes give it, if they tell one."""
    kind = inferred.get(value.name, onnx.TypeProto())
    if not kind.tensor_type.HasField("shape"):
        return value
    return replace(value, tensor=value.tensor.with_shape(_shape(kind.tensor_type.shape)))


def _unconfirmed(
    outputs: Sequence[ValueFacts], inferred: Mapping[str, onnx.TypeProto]
) -> Iterator[tuple[str, Shape | None]]:
    """Yield the outputs to which nodes do not give the shape that the graph says, and what they give: sizes alone."""
    for value in outputs:
        kind = inferred.get(value.name, onnx.TypeProto())
        known = kind.HasField("tensor_type") and kind.tensor_type.HasField("shape")
        shape = _shape(kind.tensor_type.shape) if known else None
        sizes = None if shape is None else tuple(size if isinstance(size, int) else None for size in shape)
        if value.tensor.shape is not None and (sizes is None or not shapes_agree(value.tensor.shape, sizes)):
            yield value.name, sizes


def _told_by_nodes(inputs: Sequence[ValueFacts], model: onnx.ModelProto) -> Iterator[ValueFacts]:
    """Yield inputs with facts from the nodes that read them: the limits of an index, an image's layout and channels.

    A lookup in a branch limits nothing, because the branch may not be taken.
    """
    graph = model.graph
    with suppress(Exception):  # onnx raises what it likes
        graph = without_functions(model).graph
    limits, images = index_limits(graph), image_uses(inlined(graph))
    for value in inputs:
        tensor, use = value.tensor, images.get(value.name)
        if use is not None and tensor.shape is not None and len(tensor.shape) == _IMAGE_RANK:
            axis = use.layout.index("C")
            open_channels = use.channels is not None and not isinstance(tensor.shape[axis], int)
            shape = tuple(
                use.channels if open_channels and at == axis else size for at, size in enumerate(tensor.shape)
            )
            tensor = replace(tensor, shape=shape, layout=use.layout)
        yield replace(value, tensor=tensor, limits=limits.get(value.name))


def kind_of(kind: onnx.TypeProto) -> str:
    """Return tensor, sequence, map, optional or sparse."""
    return _KINDS.get(kind.WhichOneof("value") or "tensor_type", "tensor")


def _shape(shape: onnx.TensorShapeProto) -> Shape:
    return tuple(_dimension(dim) for dim in shape.dim)


def _dimension(dim: Any) -> int | str | None:
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    name = str(dim.dim_param)
    return name if name not in _NO_NAMES and any(sign.isalpha() for sign in name) else None


def _digest(files: Sequence[HashedFile]) -> str:
    """SHA-256 of the file; with others beside it, of a list of `digest  name` lines as sha256sum prints them."""
    model, *others = files
    if not others:
        return model.sha256
    lines = [f"{one.sha256}  {one.name}\n" for one in (model, *sorted(others, key=lambda one: one.name))]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _compilers(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the providers that compiled nodes of the graph."""
    return tuple({texts["source"]: None for texts, _ in _contexts(model) if texts.get("source")})


def _compiled_binaries(folder: Path, model: onnx.ModelProto) -> dict[str, Path]:
    """Return the files with compiled binaries, by name. Raises TensorProblemError if one is missing."""
    names = [texts.get("ep_cache_context") for texts, beside in _contexts(model) if beside]
    return {name: file_beside(folder, name, "compiled binary") for name in names if name}


def _contexts(model: onnx.ModelProto) -> Iterator[tuple[Mapping[str, str], bool]]:
    """Yield the texts of each node that a provider compiled, and whether its binary lies beside the model."""
    for node in model.graph.node:
        if node.op_type == "EPContext":
            texts = {attribute.name: attribute.s.decode("utf-8", errors="replace") for attribute in node.attribute}
            yield texts, any(attribute.name == "embed_mode" and attribute.i == 0 for attribute in node.attribute)
