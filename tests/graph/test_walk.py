"""Every tensor of a model is found, wherever the format lets one stand."""

import random
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from ortdeploy.graph.external_data import external_places, has_inner_data
from ortdeploy.graph.walk import inner_tensors, tensors


def all_of(message: object) -> Iterator[TensorProto]:
    """Yield all tensors of a message, by what protobuf itself knows of its fields."""
    if isinstance(message, TensorProto):
        yield message
        return
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.message_type is not None:
            for one in [value] if hasattr(value, "ListFields") else value:
                yield from all_of(one)


class Maker:
    """Makes models with tensors at random places."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)  # noqa: S311
        self.made = 0

    def tensor(self) -> TensorProto:
        self.made += 1
        tensor = TensorProto(name=f"t{self.made}", data_type=TensorProto.FLOAT, dims=[1])
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=f"f{self.made}")
        return tensor

    def sparse(self) -> onnx.SparseTensorProto:
        return onnx.SparseTensorProto(values=self.tensor(), indices=self.tensor(), dims=[1])

    def attribute(self, depth: int) -> onnx.AttributeProto:
        kinds = ["t", "tensors", "sparse_tensor", "sparse_tensors", "i", "s", *(["g", "graphs"] if depth else [])]
        kind = self.random.choice(kinds)
        make = (
            {"t": self.tensor, "s": self.sparse, "g": lambda: self.graph(depth - 1)}[kind[0]] if kind != "i" else None
        )
        value = 1 if kind == "i" else b"x" if kind == "s" else make()  # type: ignore[misc]
        value = [value, make()] if kind.endswith("s") and kind != "s" else value  # type: ignore[misc]
        types = {
            "t": "TENSOR", "tensors": "TENSORS", "g": "GRAPH", "graphs": "GRAPHS", "i": "INT", "s": "STRING",
            "sparse_tensor": "SPARSE_TENSOR", "sparse_tensors": "SPARSE_TENSORS",
        }  # fmt: skip
        number = onnx.AttributeProto.AttributeType.Value(types[kind])
        return onnx.AttributeProto(name="a", type=number, **{kind: value})  # type: ignore[arg-type]

    def nodes(self, depth: int) -> list[onnx.NodeProto]:
        return [
            onnx.NodeProto(op_type="Any", attribute=[self.attribute(depth) for _ in range(self.random.randrange(3))])
            for _ in range(self.random.randrange(4))
        ]

    def graph(self, depth: int) -> onnx.GraphProto:
        some = range(self.random.randrange(3))
        return onnx.GraphProto(
            node=self.nodes(depth),
            initializer=[self.tensor() for _ in some],
            sparse_initializer=[self.sparse() for _ in some],
        )

    def model(self) -> onnx.ModelProto:
        return onnx.ModelProto(
            graph=self.graph(2),
            functions=[
                onnx.FunctionProto(node=self.nodes(2), attribute_proto=[self.attribute(1) for _ in range(2)])
                for _ in range(self.random.randrange(3))
            ],
            training_info=[
                onnx.TrainingInfoProto(initialization=self.graph(1), algorithm=self.graph(1))
                for _ in range(self.random.randrange(2))
            ],
        )


@pytest.mark.parametrize("seed", range(40))
def test_the_walk_finds_what_protobuf_knows(tmp_path: Path, seed: int) -> None:
    model = Maker(seed).model()
    expected = sorted(one.name for one in all_of(model))
    assert sorted(one.name for one in tensors(model)) == expected
    outer = [one.name for one in model.graph.initializer]
    assert sorted([*outer, *(one.name for one in inner_tensors(model))]) == expected
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    assert sorted(path.name for path in external_places(tmp_path / "m.onnx")) == sorted(
        f"f{one[1:]}" for one in expected
    )
    assert has_inner_data(tmp_path / "m.onnx") == (len(expected) > len(outer))


def test_what_is_no_model_names_nothing(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\xff\xff")
    assert (external_places(tmp_path / "m.onnx"), has_inner_data(tmp_path / "m.onnx")) == ([], False)
    assert (external_places(tmp_path / "n.onnx"), has_inner_data(tmp_path / "n.onnx")) == ([], False)
    onnx.save(helper.make_model(onnx.GraphProto(name="g")), tmp_path / "o.onnx")
    assert not has_inner_data(tmp_path / "o.onnx")
