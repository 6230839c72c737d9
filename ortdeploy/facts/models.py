"""Facts about model files and adapters: inputs, outputs, nodes, weights, parameters."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from ortdeploy.facts.data import HashedFile
from ortdeploy.facts.host import EXTENSION_DOMAINS
from ortdeploy.facts.problems import Problem
from ortdeploy.tensors.types import Shape, TensorType

FIRST, SECOND = "lora_A", "lora_B"
"""How exporters name the two matrices of a LoRA layer; more may stand before and behind."""


class NodeFacts(Struct, frozen=True, kw_only=True):
    """A node of a graph: its operator, the version that its schema has existed since, and types by parameter.

    `expandable`: ONNX Runtime can replace it by the body of its function, if it knows the domain; `local`: by the body
    that the model itself has for it. `body` are the nodes of that function, if onnx can tell. `attributes` are by
    name; numbers and short text as text, the others empty. `of_sizes`: it computes with sizes of tensors alone.
    """

    name: str
    domain: str
    operator: str
    since: int
    types: Mapping[str, str] = field(default_factory=dict)
    expandable: bool = False
    local: bool = False
    body: tuple["NodeFacts", ...] = ()
    attributes: Mapping[str, str] = field(default_factory=dict)
    of_sizes: bool = False


class ValueFacts(Struct, frozen=True, kw_only=True):
    """An input or output of a graph. `kind` is tensor, sequence, map, optional or sparse.

    `element` is the kind of a sequence's elements, `default` the shape of the initializer that an input has.
    `limits` are the lowest and highest value that the graph can take: those of an index into a constant table.
    `ragged`: each row lists as many items as it happens to have.
    """

    name: str
    kind: str
    tensor: TensorType
    limits: tuple[int, int] | None = None
    element: str | None = None
    default: tuple[int, ...] | None = None
    ragged: bool = False

    @property
    def optional(self) -> bool:
        """Whether it may be left at its default."""
        return self.default is not None


class WeightFacts(Struct, frozen=True, kw_only=True):
    """How many bytes a model's weights take in memory, and those of convolutions among them."""

    size: int = 0
    of_convolutions: int = 0


HOLE = "weights"
"""The file that an outline names for its big constants; all of them begin at its first byte."""


class InferredShapes(Struct, frozen=True, kw_only=True):
    """The shapes of a graph's outputs, or why it cannot take its inputs."""

    outputs: Mapping[str, Shape | None] = field(default_factory=dict)
    problem: str | None = None


class Outline(Struct, frozen=True, kw_only=True):
    """A model without the bytes of its big constants, which lie in a hole, and the size of the largest of them."""

    model: bytes
    largest: int


class ModelFacts(Struct, frozen=True, kw_only=True):
    """A model file as its bytes tell it; without `inputs` and `outputs` where `problem` says why.

    `unranked` are values inside the graph whose rank shape inference does not find, `compiled_by` the providers that
    wrote its EPContext nodes. `skeleton` is the model without its weights, for shape inference; empty if onnx does
    not accept it. `outline` is the model without the bytes of its weights, to be opened; None if there is no such.
    `files` are the model, its external data and compiled binaries.
    `row_followers` are by output the axes that grow with the number of rows, for outputs whose names do not tell; none:
    its sizes do not depend on it. `unconfirmed` are the outputs to which its nodes do not give the shape that the graph
    says, with the one that they give; None: inference does not find it. `overruled` are by name the shapes in the graph
    of inputs that have here the shape that the manifest declares. `draws` are the operators that draw numbers at
    random, `metadata` is what whoever exported it has written into it.
    """

    path: str
    sha256: str = ""
    ir_version: int = 0
    opsets: Mapping[str, int] = field(default_factory=dict)
    inputs: tuple[ValueFacts, ...] = ()
    outputs: tuple[ValueFacts, ...] = ()
    symbols: frozenset[str] = frozenset()
    nodes: tuple[NodeFacts, ...] = ()
    unranked: tuple[str, ...] = ()
    skeleton: bytes = b""
    outline: Outline | None = None
    files: tuple[HashedFile, ...] = ()
    compiled_by: tuple[str, ...] = ()
    weights: WeightFacts = WeightFacts()
    row_followers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    unconfirmed: Mapping[str, Shape | None] = field(default_factory=dict)
    overruled: Mapping[str, Shape | None] = field(default_factory=dict)
    draws: tuple[str, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)
    problem: Problem | None = None

    @property
    def given_shapes(self) -> dict[str, Shape]:
        """The shapes that inputs get in place of those of the graph, by name."""
        return {value.name: value.tensor.shape or () for value in self.inputs if value.name in self.overruled}

    @property
    def uses_extensions(self) -> bool:
        """Whether some of its operators come with onnxruntime-extensions."""
        return any(node.domain in EXTENSION_DOMAINS for node in self.nodes)


class DiffusionFacts(Struct, frozen=True, kw_only=True):
    """A Stable-Diffusion-1/2-shaped folder: its scheduler's settings, and how its components are to be fed.

    `ports` say by component the inputs' names, element types and ranks, and the output's name. `sha256` is of the files
    beside the models, which are `files`, `folder_sha256` of these and the models.
    """

    sha256: str = ""
    folder_sha256: str = ""
    files: tuple[HashedFile, ...] = ()
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    ports: Mapping[str, Any] = field(default_factory=dict)
    inputs: tuple[ValueFacts, ...] = ()
    outputs: tuple[ValueFacts, ...] = ()
    problem: Problem | None = None


class ParameterFacts(Struct, frozen=True, kw_only=True):
    """A tensor that an adapter brings: the name of the graph's input that it feeds, its element type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class AdapterFacts(Struct, frozen=True, kw_only=True):
    """A LoRA adapter file as its header tells it; versions are 0 if its maker said none."""

    path: str
    sha256: str = ""
    size: int = 0
    adapter_version: int = 0
    model_version: int = 0
    parameters: tuple[ParameterFacts, ...] = ()
    problem: Problem | None = None
