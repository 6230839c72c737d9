"""In which number formats providers compute, by `x-computes` in their schemas, and what follows from that.

An entry has `in`, the format; `when`, a JSON Schema over the provider's `options`, the `session` options (config
entries as text) and the kind of `device`; `detail`, which says what becomes of numbers, and what to write to have it
otherwise; and `fed`, if the inputs of a model are in that format too. A provider without the key may compute in any
format; one whose list is empty computes in those of the graph.
"""

from collections.abc import Iterator, Sequence

from msgspec import Struct

from ortdeploy.deployment.resolved import ResolvedModel, ResolvedProvider, ResolvedSession
from ortdeploy.manifest.schema_check import make_condition
from ortdeploy.manifest.spec import Written
from ortdeploy.plan.narrowed import Narrowed
from ortdeploy.providers.catalogue import CPU, find_provider
from ortdeploy.providers.options import computed_formats, with_texts
from ortdeploy.tensors.tolerances import BETWEEN_PROVIDERS, TOLERANCES, UNKNOWN, Tolerance

_HALF = (-65504.0, 65504.0)

LIMITS: dict[str, dict[str, tuple[float, float] | None]] = {
    "int32": {"int64": (float(-(2**31)), float(2**31 - 1)), "uint64": (0.0, float(2**32 - 1))},
    "float16": {"float32": _HALF, "float64": _HALF, "bfloat16": _HALF},
    "normal": {"float32": None},
    "tf32": {},
    "bfloat16": {},
    "quantized": {},
}
"""By format and element type of the graph, the finite numbers that the format holds; None: all."""

_SMALLEST = {"normal": 2.0**-126}
"""Numbers nearer to zero than this are zero in the format."""

_COARSE = {"tensor(float16)": "float16", "tensor(bfloat16)": "bfloat16"}


class Computed(Struct, frozen=True, kw_only=True):
    """A format in which a provider computes; `is_fed`: the inputs of its models are in that format too."""

    format: str
    is_fed: bool
    detail: str


def formats_of(model: ResolvedModel, chain: Sequence[ResolvedProvider]) -> Iterator[Computed]:
    """Yield the formats, beside those of the graph, in which the providers of a session compute."""
    session = with_texts({"config": {}, **model.session})
    for provider in chain:
        view = {
            "options": dict(provider.options),
            "session": session,
            "device": provider.device.kind if provider.device else None,
        }
        for entry in computed_formats(find_provider(provider.name)) or ():
            if make_condition(entry.get("when", True))(view):
                yield Computed(format=entry["in"], is_fed=entry.get("fed", False), detail=entry["detail"])


def narrowing_of(model: ResolvedModel | None, dtype: str | None) -> Narrowed | None:
    """Return what a session of a model may make of numbers that an input of this type is fed; None: it keeps them.

    Of several formats, what is surest counts, and then what changes large numbers.
    """
    formats = () if model is None else (one for session in model.usable for one in formats_of(model, session.chain))
    found = [one for one in formats if dtype in LIMITS[one.format]]
    if model is None or not found:
        return None
    one = max(found, key=lambda one: (one.is_fed, LIMITS[one.format][dtype or ""] is not None))
    return Narrowed(
        limits=LIMITS[one.format][dtype or ""],
        smallest=_SMALLEST.get(one.format, 0.0),
        fails=one.is_fed and not (is_quantized(model) and one.format == "float16"),  # scales bring numbers near zero
        why=one.detail,
    )


def details_of(model: ResolvedModel, sessions: Sequence[ResolvedSession] | None = None) -> tuple[str, ...]:
    """Return what is said of coarser formats in which some or all sessions of a model compute, each once."""
    chosen = model.usable if sessions is None else sessions
    found = (one for session in chosen for one in formats_of(model, session.chain))
    return tuple(dict.fromkeys(one.detail for one in found if one.format in TOLERANCES))


def is_quantized(model: ResolvedModel) -> bool:
    """Return whether a graph quantizes with scales of its own."""
    return any(one.operator == "QuantizeLinear" or one.operator.startswith("QLinear") for one in model.facts.nodes)


def graph_formats(model: ResolvedModel) -> set[str]:
    """Return the formats of a graph: of its inputs and outputs, and the coarse ones of values inside."""
    fed = {value.tensor.dtype for value in (*model.facts.inputs, *model.facts.outputs)}
    inside = {_COARSE[kind] for node in model.facts.nodes for kind in node.types.values() if kind in _COARSE}
    return {dtype for dtype in fed if dtype in TOLERANCES} | inside | ({"quantized"} if is_quantized(model) else set())


def compared_within(model: ResolvedModel) -> Tolerance:
    """Return how much results of a model's sessions may differ from the CPU's."""
    return filled(model.spec.probe or (None, None), _between_providers(model))


def _between_providers(model: ResolvedModel) -> Tolerance:
    chains = [session.chain for session in model.usable]
    found = graph_formats(model) | {one.format for chain in chains for one in formats_of(model, chain)}
    coarse = found.intersection(TOLERANCES) - {"float32", "float64"}
    others = [computed_formats(find_provider(one.name)) for chain in chains for one in chain if one.name != CPU]
    if not coarse and others and None not in others:
        return BETWEEN_PROVIDERS["float32"]
    return max(BETWEEN_PROVIDERS.get(one, UNKNOWN) for one in coarse or {"unknown"})


def golden_within(model: ResolvedModel, chain: Sequence[ResolvedProvider]) -> Tolerance:
    """Return how much results of a session may differ from golden ones, if the manifest does not say."""
    formats = {one.format for one in formats_of(model, chain)}
    return max(TOLERANCES[one] for one in {"float32", *formats.intersection(TOLERANCES)})


def filled(written: Written, default: Tolerance) -> Tolerance:
    """Return a tolerance of the manifest, with the default in place of what it does not say.

    Whole numbers become floating ones, as a saved plan has them: else it would be another plan when it is read.
    """
    rtol, atol = (float(own if said is None else said) for said, own in zip(written, default, strict=True))
    return rtol, atol
