"""Remembers what was read in graphs, so that planning again needs no onnx, whose import takes longer than planning.

An entry depends only on the bytes of one model file, on this code, and on onnx's version; all three go into its key.
Facts with a problem are not kept, nor those of a model with other files beside it. The predicted placement of nodes
depends on ONNX Runtime's library and on the processor too.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from msgspec.structs import replace

from ortdeploy.deployment.placement_prediction import Attributes, Kernels, Predict, Prediction, predict_placement
from ortdeploy.facts.data import HashedFile
from ortdeploy.facts.host import HostFacts
from ortdeploy.facts.models import InferredShapes, ModelFacts
from ortdeploy.facts.problems import unnameable
from ortdeploy.files.digests import signature
from ortdeploy.plan.plan_file import decode, encode
from ortdeploy.providers.catalogue import CPU
from ortdeploy.state import memo
from ortdeploy.tensors.types import Shape
from ortdeploy.versions import package_version

_KIND = "graph"
_OF_PLACEMENT = ("deployment/placement_prediction.py", "providers/catalogue.py", "runtime/kernels.py")

Sizes = tuple[int | None, ...]
Shapes = tuple[tuple[str, Sizes], ...]
"""The shapes of a model's inputs, by name."""

_state_dir: ContextVar[Path | None] = ContextVar("state_dir", default=None)
_read: ContextVar[dict[tuple[str, ...], ModelFacts] | None] = ContextVar("read", default=None)


@contextmanager
def remembered_in(state_dir: Path) -> Iterator[None]:
    """Inside the block, look facts of graphs up in a state folder, and keep new ones there."""
    token = _state_dir.set(state_dir)
    try:
        yield
    finally:
        _state_dir.reset(token)


@contextmanager
def each_read_once() -> Iterator[None]:
    """Inside the block, read each model file once, also one with external data."""
    token = _read.set({})
    try:
        yield
    finally:
        _read.reset(token)


def read_model(
    path: Path,
    shown: str,
    digest_of: Callable[[Path], str],
    load_format: str | None = None,
    data_folder: Path | None = None,
    declared: Mapping[str, Shape] = MappingProxyType({}),
) -> ModelFacts:
    """Read a model file as `graph.model.read_model` does."""
    read = _read.get()
    if read is None:
        return _read_or_recall(path, shown, digest_of, load_format, data_folder, declared)
    key = (str(path), shown, str(load_format), str(data_folder), str(sorted(declared.items())))
    if key not in read:
        read[key] = _read_or_recall(path, shown, digest_of, load_format, data_folder, declared)
    return read[key]


def _read_or_recall(
    path: Path,
    shown: str,
    digest_of: Callable[[Path], str],
    load_format: str | None,
    data_folder: Path | None,
    declared: Mapping[str, Shape],
) -> ModelFacts:
    known = None if unnameable(str(path), shown) else _known_file(path, digest_of)
    shapes = sorted(declared.items())
    entry = None if known is None else _Entry("model", known.sha256, path.suffix.lower(), load_format, shapes)
    facts: ModelFacts | None = None if entry is None else entry.find(ModelFacts)
    if facts is not None and known is not None:
        return replace(facts, path=str(path), files=(known,))

    from ortdeploy.graph.model import read_model as read  # noqa: PLC0415  brings onnx

    facts = read(path, shown, digest_of, load_format, data_folder, declared)
    if entry is not None and known is not None and facts.problem is None and facts.files == (known,):
        entry.keep(replace(facts, path="", files=()))
    return facts


def infer_shapes(skeleton: bytes, inputs: Mapping[str, Sequence[int | None]]) -> InferredShapes:
    """Infer shapes as `graph.shapes.infer_shapes` does."""
    entry = _Entry("shapes", _digest(skeleton), sorted((name, list(shape)) for name, shape in inputs.items()))
    inferred: InferredShapes | None = entry.find(InferredShapes)
    if inferred is None:
        from ortdeploy.graph.shapes import infer_shapes as infer  # noqa: PLC0415  brings onnx

        inferred = infer(skeleton, inputs)
        entry.keep(inferred)
    return inferred


@lru_cache(maxsize=256)
def live_bytes(skeleton: bytes, shapes: Shapes) -> int | None:
    """Return the most bytes of values that a run holds at once as `graph.values.live_bytes` does."""
    entry = _Entry("live", _digest(skeleton), shapes)
    found: tuple[int | None, ...] | None = entry.find(tuple[int | None, ...])
    if found is None:
        from ortdeploy.graph.values import live_bytes as add_up  # noqa: PLC0415  brings onnx

        found = (add_up(skeleton, dict(shapes)),)
        entry.keep(found)
    return found[0]


def largest_value(skeleton: bytes, shapes: Shapes) -> tuple[str, int]:
    """Return the largest value that a run makes as `graph.values.largest_value` does."""
    entry = _Entry("largest", _digest(skeleton), shapes)
    found: tuple[str, int] | None = entry.find(tuple[str, int])
    if found is None:
        from ortdeploy.graph.values import largest_value as find  # noqa: PLC0415  brings onnx

        found = find(skeleton, dict(shapes))
        entry.keep(found)
    return found


def remembering_placement(host: HostFacts) -> Predict:
    """Return a `predict_placement` for a machine that remembers its results for chains without plugins."""
    if host.runtime.library is None or host.machine is None:
        return predict_placement
    machine = [host.runtime.library, host.machine.architecture, host.machine.cpu_flags]
    built_in = {CPU, *host.runtime.available_providers}

    def predict(
        model: ModelFacts, chain: Sequence[str], kernels: Kernels, attributes: Attributes | None
    ) -> Prediction | None:
        if not built_in.issuperset(chain) or model.problem is not None:
            return predict_placement(model, chain, kernels, attributes)
        digests = [file.sha256 for file in model.files]
        graph = [digests, Path(model.path).suffix.lower(), _digest(model.skeleton), sorted(model.opsets.items())]
        entry = _Entry("placement", machine, graph, list(chain))
        found: Prediction | None = entry.find(Prediction)
        if found is None:
            found = predict_placement(model, chain, kernels, attributes)
            if found is not None:
                entry.keep(found)
        return found

    return predict


def _known_file(path: Path, digest_of: Callable[[Path], str]) -> HashedFile | None:
    """Return a file that did not change while it was hashed; None if there is a problem, which the reader reports."""
    with suppress(OSError):
        before = signature(path.stat())
        file = HashedFile(name=path.name, path=str(path), sha256=digest_of(path), size=before["size"])
        return file if signature(path.stat()) == before else None
    return None


@lru_cache(maxsize=64)
def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@cache
def _code() -> str:
    """Return the identity of the code that reads graphs: the versions, and the states of its files."""
    package = Path(__file__).parents[2]
    files = [*sorted((package / "graph").glob("*.py")), *(package / file for file in _OF_PLACEMENT)]
    states = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return json.dumps([package_version("ortdeploy"), package_version("onnx"), states])


class _Entry:
    """One remembered fact, whose key is everything that it depends on."""

    def __init__(self, *depends_on: Any) -> None:
        self._state_dir = _state_dir.get()
        self._key = "" if self._state_dir is None else json.dumps([_code(), *depends_on])

    def find(self, kind: Any) -> Any:
        """Return the remembered value if it has the wanted type; else None."""
        known = None if self._state_dir is None else memo.get(self._state_dir, _KIND, self._key)
        if known is not None:
            with suppress(ValueError, TypeError, KeyError, RecursionError):
                return decode(kind, known)
        return None

    def keep(self, fact: Any) -> None:
        """Remember a value; if it cannot be written, it is worked out again the next time."""
        if self._state_dir is not None:
            memo.put(self._state_dir, _KIND, self._key, encode(fact))
