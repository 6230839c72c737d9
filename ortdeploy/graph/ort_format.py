"""Reads a model in ORT format into onnx's ModelProto, without its big weights, to probe it like any other.

The format is a flatbuffer, and onnxruntime's own package has readers for it. They check nothing, so all exceptions that
a damaged file causes become one error here.
"""

import mmap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, TypeProto

from ortdeploy.files.opening import open_regular

MAGIC = b"ORTM"
_SMALL = 1024  # bytes of a constant that shape inference may want to see
_LISTS = {
    AttributeProto.FLOATS: ("floats", "Floats"),
    AttributeProto.INTS: ("ints", "Ints"),
    AttributeProto.STRINGS: ("strings", "Strings"),
}
_DEEPEST = 32  # graphs inside of each other
_VALUE, _PARAM = 1, 2  # fbs.DimensionValueType
_TENSOR, _SEQUENCE, _MAP = 1, 2, 3  # fbs.TypeInfoValue


class OrtFormatError(Exception):
    """A file that claims to be in ORT format and cannot be read as such."""


def read_ort_format(path: Path) -> ModelProto:
    """Read a model file. Raises OrtFormatError, OSError."""
    with open_regular(path) as file:
        mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    try:
        return _Reader(mapped).model()
    except Exception as error:  # struct.error, IndexError, TypeError, UnicodeDecodeError, …
        raise OrtFormatError(f"{type(error).__name__}: {error}") from error


class _Reader:
    """Turns the tables of one flatbuffer into protobuf messages; their number is bounded by the size of the file."""

    def __init__(self, buffer: memoryview) -> None:
        import onnxruntime.tools.ort_format_model  # noqa: F401, PLC0415  puts the package of the readers on the path
        from ort_flatbuffers_py import fbs  # noqa: PLC0415

        self._fbs = fbs
        self._buffer = buffer
        self._left = len(buffer)

    def model(self) -> ModelProto:
        session = self._fbs.InferenceSession.InferenceSession.GetRootAs(self._buffer, 0)
        written = session.Model()
        model = ModelProto(ir_version=written.IrVersion())
        for opset in self._each(written, "OpsetImport"):
            model.opset_import.add(domain=_text(opset.Domain()), version=opset.Version())
        model.graph.CopyFrom(self._graph(written.Graph(), _DEEPEST))
        return model

    def _each(self, table: Any, name: str) -> Iterator[Any]:
        """Yield the entries of a table's vector; a damaged length ends in an error."""
        for index in range(getattr(table, f"{name}Length")()):
            self._left -= 1
            if self._left < 0:
                raise ValueError("it claims more entries than it has bytes")
            yield getattr(table, name)(index)

    def _graph(self, written: Any, depth: int) -> GraphProto:
        if depth == 0:
            raise ValueError("its graphs are nested too deeply")
        graph = GraphProto(name="graph")
        inputs = [_text(name) for name in self._each(written, "Inputs")]
        outputs = [_text(name) for name in self._each(written, "Outputs")]
        types = {_text(value.Name()): value.Type() for value in self._each(written, "NodeArgs")}
        for names, place in ((inputs, graph.input), (outputs, graph.output)):
            for name in names:
                place.add(name=name, type=self._type(types.get(name), depth))
        for name, kind in types.items():
            if kind is not None and name not in inputs and name not in outputs:
                graph.value_info.add(name=name, type=self._type(kind, depth))
        graph.initializer.extend(self._tensor(tensor) for tensor in self._each(written, "Initializers"))
        graph.node.extend(self._node(node, depth) for node in self._each(written, "Nodes"))
        return graph

    def _node(self, written: Any, depth: int) -> NodeProto:
        node = NodeProto(
            op_type=_text(written.OpType()),
            domain=_text(written.Domain()),
            name=_text(written.Name()),
            input=[_text(name) for name in self._each(written, "Inputs")],
            output=[_text(name) for name in self._each(written, "Outputs")],
        )
        node.attribute.extend(self._attribute(attribute, depth) for attribute in self._each(written, "Attributes"))
        return node

    def _attribute(self, written: Any, depth: int) -> AttributeProto:
        kind = written.Type()
        attribute = AttributeProto(name=_text(written.Name()), type=kind)
        if kind in _LISTS:
            field, name = _LISTS[kind]
            getattr(attribute, field).extend(self._each(written, name))
        elif kind == AttributeProto.FLOAT:
            attribute.f = written.F()
        elif kind == AttributeProto.INT:
            attribute.i = written.I()
        elif kind == AttributeProto.STRING:
            attribute.s = written.S() or b""
        elif kind in {AttributeProto.TENSOR, AttributeProto.TENSORS}:
            self._fill_tensors(attribute, written)
        elif kind in {AttributeProto.GRAPH, AttributeProto.GRAPHS}:
            self._fill_graphs(attribute, written, depth - 1)
        return attribute

    def _fill_tensors(self, attribute: AttributeProto, written: Any) -> None:
        if attribute.type == AttributeProto.TENSOR:
            attribute.t.CopyFrom(self._tensor(written.T()))
        attribute.tensors.extend(self._tensor(tensor) for tensor in self._each(written, "Tensors"))

    def _fill_graphs(self, attribute: AttributeProto, written: Any, depth: int) -> None:
        if attribute.type == AttributeProto.GRAPH:
            attribute.g.CopyFrom(self._graph(written.G(), depth))
        attribute.graphs.extend(self._graph(graph, depth) for graph in self._each(written, "Graphs"))

    def _tensor(self, written: Any) -> TensorProto:
        """Return a constant; one whose bytes are not needed counts as external."""
        tensor = TensorProto(name=_text(written.Name()), data_type=written.DataType())
        tensor.dims.extend(self._each(written, "Dims"))
        if written.RawDataLength() > _SMALL:
            tensor.data_location = TensorProto.EXTERNAL
        elif written.RawDataLength():
            tensor.raw_data = bytes(written.RawDataAsNumpy())
        tensor.string_data.extend(self._each(written, "StringData"))
        return tensor

    def _type(self, written: Any, depth: int) -> TypeProto:
        if depth == 0:
            raise ValueError("its types are nested too deeply")
        kind = TypeProto()
        if written is None:
            return kind
        value = written.Value()
        if written.ValueType() == _TENSOR:
            self._fill_tensor(kind.tensor_type, self._as(self._fbs.TensorTypeAndShape.TensorTypeAndShape, value))
        elif written.ValueType() == _SEQUENCE:
            sequence = self._as(self._fbs.SequenceType.SequenceType, value)
            kind.sequence_type.elem_type.CopyFrom(self._type(sequence.ElemType(), depth - 1))
        elif written.ValueType() == _MAP:
            pairs = self._as(self._fbs.MapType.MapType, value)
            kind.map_type.key_type = pairs.KeyType()
            kind.map_type.value_type.CopyFrom(self._type(pairs.ValueType(), depth - 1))
        return kind

    def _fill_tensor(self, tensor: TypeProto.Tensor, written: Any) -> None:
        tensor.elem_type = written.ElemType()
        if written.Shape() is None:
            return
        tensor.shape.SetInParent()
        for dimension in self._each(written.Shape(), "Dim"):
            dim, value = tensor.shape.dim.add(), dimension.Value()
            if value is not None and value.DimType() == _VALUE:
                dim.dim_value = value.DimValue()
            elif value is not None and value.DimType() == _PARAM:
                dim.dim_param = _text(value.DimParam())

    @staticmethod
    def _as(kind: Any, table: Any) -> Any:
        """Return a member of a union as the type that its tag says."""
        member = kind()
        member.Init(table.Bytes, table.Pos)
        return member


def _text(raw: bytes | None) -> str:
    return (raw or b"").decode("utf-8", errors="replace")
