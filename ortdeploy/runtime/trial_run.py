"""Runs a model on made-up inputs of several sizes until it takes them, in a process of its own.

The parent calls `try_to_run`; the child is a fork where that is safe, else it runs `main`. A graph that ends the
process takes only that with it.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from msgspec import Struct, field, to_builtins
from msgspec.structs import replace

from ortdeploy.files.opening import regular_path
from ortdeploy.process.child import Answer, Asked, ask
from ortdeploy.process.fork import ask_fork, can_fork
from ortdeploy.runtime.trial_opening import refusal_text
from ortdeploy.tensors.columns import Array
from ortdeploy.tensors.conversion import convert
from ortdeploy.tensors.types import FLOATING, Shape

_SECONDS = 90
_MOST_CRASHES = 8
"""How often an attempt may end the process before no further one is made."""

_SCALAR = 0.5
_NUMBER = re.compile(r"(?<![\w.])\d+(?![\w.]*\w)")
_LARGEST_SIZE = 1_000_000
_MOST_TOLD = 24
_MOST = 64 * 1024 * 1024  # elements of one input


class SyntheticTensor(Struct, frozen=True, kw_only=True):
    """An input to make up: its type, the least and highest value that the graph can take, or the one value to feed.

    `counts`: the value is the size of that name, by which other inputs are as long as this one says.
    """

    name: str
    dtype: str
    shape: Shape
    limits: tuple[int, int] | None = None
    value: int | None = None
    counts: str | None = None

    def open_sizes(self) -> Iterator[tuple[int, str]]:
        """Yield each dimension that the graph leaves open: its axis, and the key of its size."""
        for axis, size in enumerate(self.shape):
            if not isinstance(size, int) or size < 1:
                yield axis, size if isinstance(size, str) else f"{self.name}:{axis}"

    def sized(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
        """Return its shape with sizes by key."""
        keys = dict(self.open_sizes())
        return tuple(
            sizes.get(keys[axis], 1) if axis in keys else int(size or 1) for axis, size in enumerate(self.shape)
        )


class Ran(Struct, frozen=True, kw_only=True):
    """A run that went through: by name the shapes of inputs and outputs, and the range of an output's values.

    Outputs that are no tensors, or no numbers, have no range. `refusal` is why no run went through, as ONNX Runtime
    says it; `crashed`: it, or the last attempt, ended the process. `values` are those of whole numbers that were fed,
    by input, if not the least that they may be.
    """

    fed: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    outputs: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    refusal: str | None = None
    crashed: bool = False
    values: Mapping[str, int] = field(default_factory=dict)


def synthetic_array(one: SyntheticTensor, shape: Sequence[int]) -> Array:
    """Return values for an input: random numbers from 0 to 1 (a scalar: 0.5), zeros, the least index or empty text."""
    if one.dtype == "string":
        return np.full(shape, "", dtype=object)
    if one.dtype in FLOATING or "float" in one.dtype:
        numbers = np.random.default_rng(0).random(shape) if len(shape) else np.asarray(_SCALAR)
    else:
        numbers = np.full(shape, max(one.limits[0], 0) if one.limits else 0)
    if one.value is not None:
        numbers = np.full(shape, one.value)
    return convert(numbers, one.dtype)


def try_to_run(
    path: str,
    inputs: Sequence[SyntheticTensor],
    attempts: Sequence[Mapping[str, int]],
    lengths: Sequence[str] = (),
    *,
    extensions: bool = False,
) -> Ran:
    """Run a model with one choice of sizes after the other, and return the first run that goes through.

    `lengths` are the keys of sizes that are then set to what ONNX Runtime's refusals name.
    """
    request: dict[str, Any] = {
        "path": path,
        "inputs": [to_builtins(one) for one in inputs],
        "attempts": [dict(one) for one in attempts],
        "lengths": list(lengths),
        "extensions": extensions,
    }
    for _ in range(_MOST_CRASHES):
        answer = ask_fork(partial(_answers, request), seconds=_SECONDS) if can_fork() else _ask_child(request)
        said = answer.messages
        if said and "ran" in said[-1]:
            return _told(said[-1]["ran"])
        if answer.late:
            return Ran(refusal="it takes too long")
        begun = sum("attempt" in one for one in said)
        request["attempts"] = request["attempts"][begun:]
        if not begun or not request["attempts"]:
            break
    return Ran(refusal="running it ends the process", crashed=True)


def _ask_child(request: Mapping[str, Any]) -> Answer:
    return ask(__name__, request, seconds=_SECONDS)


def _told(found: Mapping[str, Any]) -> Ran:
    fed, outputs, ranges = (
        {name: tuple(one) for name, one in found[key].items()} for key in ("fed", "outputs", "ranges")
    )
    return Ran(refusal=found["refusal"], fed=fed, outputs=outputs, ranges=ranges, values=found["values"])


def main(asked: Asked) -> None:
    """Be the child."""
    for message in _answers(asked.request):
        asked.say(**message)


def _answers(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    inputs = [SyntheticTensor(**one) for one in request["inputs"]]
    try:
        session = _open(request["path"], extensions=request["extensions"])
    except Exception as error:  # noqa: BLE001  every error of the binding is its own class, all derived from Exception
        yield {"ran": to_builtins(Ran(refusal=refusal_text(error)))}
        return
    attempts, refusals = list(request["attempts"]), list[str]()
    for number, sizes in enumerate(chain(attempts, _told_attempts(request, refusals))):
        yield {"attempt": number}
        counted = [one if one.counts is None else replace(one, value=sizes.get(one.counts, 1)) for one in inputs]
        found = _run(session, counted, {one.name: one.sized(sizes) for one in inputs})
        if isinstance(found, Ran):
            yield {"ran": to_builtins(found)}
            return
        refusals.append(found)
    yield {"ran": to_builtins(Ran(refusal=refusals[0] if refusals else "no size was tried"))}


def _told_attempts(request: Mapping[str, Any], refusals: list[str]) -> Iterator[dict[str, int]]:
    """Yield further sizes for what is no number of rows: those that ONNX Runtime has named so far."""
    attempts, lengths = request["attempts"], request["lengths"]
    for told in _told_sizes(refusals, attempts) if lengths else ():
        for first in (attempts[0], attempts[-1]):
            yield {**first, **dict.fromkeys(lengths, told)}


def _open(path: str, *, extensions: bool) -> Any:
    from ortdeploy.runtime.library import ort  # noqa: PLC0415  only the child
    from ortdeploy.runtime.session import register_extensions, session_options  # noqa: PLC0415

    options = session_options({"graph_optimization_level": "disable"})
    options.log_severity_level = 4
    if extensions:
        register_extensions(options)
    return ort.InferenceSession(regular_path(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)


def _told_sizes(refusals: Sequence[str], attempts: Sequence[Mapping[str, int]]) -> list[int]:
    """Return the numbers that refusals name and that were not tried: one of them may be what the graph wants."""
    tried = {size for sizes in attempts for size in sizes.values()}
    told = dict.fromkeys(int(one) for text in refusals for one in _NUMBER.findall(text))
    return [size for size in told if 1 < size <= _LARGEST_SIZE and size not in tried][:_MOST_TOLD]


def _run(session: Any, inputs: Sequence[SyntheticTensor], shapes: Mapping[str, tuple[int, ...]]) -> Ran | str:
    if any(np.prod(shape, dtype=float) > _MOST for shape in shapes.values()):
        return "its inputs would be too large to make up"
    try:
        feeds = {one.name: synthetic_array(one, shapes[one.name]) for one in inputs}
        results = session.run(None, feeds)
    except Exception as error:  # noqa: BLE001  as above
        return refusal_text(error)
    arrays = {
        one.name: value
        for one, value in zip(session.get_outputs(), results, strict=True)
        if isinstance(value, np.ndarray)
    }
    return Ran(
        fed=dict(shapes),
        outputs={name: array.shape for name, array in arrays.items()},
        values={one.name: one.value for one in inputs if one.value is not None},
        ranges={name: (float(one.min()), float(one.max())) for name, one in arrays.items() if _has_range(one)},
    )


def _has_range(array: Array) -> bool:
    return array.size > 0 and array.dtype.kind in "fiu" and bool(np.isfinite(array).all())
