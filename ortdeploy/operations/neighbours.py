"""`neighbours` — the vectors of a file that are nearest to the vector of each row, best first, with their names.

`of` is a .npz file with `vectors` [n, numbers] and, if they have names, `names` [n]; or a .npy file of vectors alone,
whose names are their places. The score is the cosine of two vectors, or with `by: dot` their product; a vector of zeros
has a cosine of 0 to all others. Of equal scores, the first in the file comes first. At most `top` are found.

Scores are float32 products, block by block.
"""

from pathlib import Path

import numpy as np
from msgspec import Struct

from ortdeploy.files.decoding import decoding
from ortdeploy.files.memory_budget import check_room
from ortdeploy.files.numpy_archives import read_npz
from ortdeploy.files.opening import regular_path
from ortdeploy.operations.l2_normalize import of_length_one
from ortdeploy.operations.protocol import Call, Types, by_row
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.contracts import REALS, Attribute, Contract, FormalParameter, Solved, forms
from ortdeploy.tensors.conversion import convert
from ortdeploy.transforms.protocol import Options

_BLOCK = 16_384
"""How many vectors are compared at a time."""
_RANK = 2


def _count(solved: Solved, types: Types) -> None:  # noqa: ARG001  only the file tells
    solved.sizes["found"] = None


CONTRACT = Contract(
    name="neighbours",
    meaning="The nearest vectors of a file, with their names",
    inputs=(FormalParameter("x", "T", forms("rows numbers"), "a vector a row", finite=True),),
    outputs=(
        FormalParameter("names", "string", forms("rows found"), "their names, the nearest first"),
        FormalParameter("scores", "float32", forms("rows found"), "how near they are"),
        FormalParameter("places", "int64", forms("rows found"), "their places in the file, from 0"),
    ),
    attributes=(
        Attribute("of", "STRING", "a .npz with vectors and names, or a .npy", required=True, path="file"),
        Attribute("top", "INT", "how many are found at most", default=5, least=1, most=10_000),
        Attribute("by", "STRING", "what is near", default="cosine", choices=("cosine", "dot")),
    ),
    types=(REALS,),
    arithmetic=_count,
)


class Catalogue(Struct, frozen=True):
    """The vectors of a file, float32 [n, numbers], and their names [n]."""

    vectors: Array
    names: Array


def read(path: str) -> Catalogue:
    """Return what a file holds. Raises OSError, OrtdeployError, or ValueError if it holds something else."""
    if Path(path).suffix == ".npz":
        arrays = read_npz(path)
    else:
        check_room(Path(path).stat().st_size, path, None)
        with decoding(path, ".npy"):
            arrays = {"vectors": np.load(regular_path(path), allow_pickle=False)}
    vectors, names = arrays.get("vectors"), arrays.get("names")
    if vectors is None or vectors.ndim != _RANK or vectors.dtype.kind != "f" or not len(vectors):
        raise ValueError("it has no array called vectors of floating numbers [n, numbers]")
    if not np.isfinite(vectors).all():
        raise ValueError("its vectors hold NaN or infinities")
    if names is None:
        names = np.array(list(map(str, range(len(vectors)))), dtype=object)
    if names.dtype.kind not in "OU":
        raise ValueError(f"its names are {names.dtype}, and no text")
    if names.shape != (len(vectors),):
        raise ValueError(f"its {len(vectors):,} vectors have names {list(names.shape)}")
    return Catalogue(convert(vectors, "float32"), np.array(names.tolist(), dtype=object))


def build(options: Options, types: Types) -> Call:  # noqa: ARG001  the same for every type
    catalogue, by_cosine = read(options["of"]), options["by"] == "cosine"
    vectors = of_length_one(catalogue.vectors) if by_cosine else catalogue.vectors

    def find(x: Array) -> tuple[Array, Array, Array]:
        if len(x) != vectors.shape[1]:
            raise ValueError(f"a vector has {len(x)} numbers, and those of the file have {vectors.shape[1]}")
        x = convert(x, "float32")
        places, scores = _nearest(of_length_one(x) if by_cosine else x, vectors, options["top"])
        return catalogue.names[places], scores, places

    return by_row(find, 3, "x")


def _nearest(x: Array, vectors: Array, top: int) -> tuple[Array, Array]:
    """Return places and scores [top] of the largest products of x [numbers] with vectors [n, numbers].

    Each row is multiplied alone: of several rows at once, products differ in their last bits.
    """
    scores: Array = np.concatenate([vectors[begin : begin + _BLOCK] @ x for begin in range(0, len(vectors), _BLOCK)])
    order = np.argsort(-scores, kind="stable")[:top]
    return order, scores[order]
