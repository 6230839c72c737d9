"""What it catches: an adapter that does not fit its model's graph. That is: a parameter that is no input of the graph,
or of another element type, rank or size; a symbolic rank, or the rank of a pair lora_A and lora_B, that two parameters,
or a parameter and a default, make two different numbers; a file for another version of the model; a file without
parameters.

Why: ONNX Runtime notices at the first run ("Invalid input name", "GEMM: Dimension mismatch", "Shape mismatch attempting
to re-use buffer"). It does not name the parameter, and it never compares versions.

Example: an adapter of half-precision matrices on a float32 model; lora_A of rank 4 beside lora_B of rank 8.

How to fix: convert the adapter against this model: ortdeploy adapter convert. If the model has no LoRA inputs, Olive
exports it with them: olive generate-adapter.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import did_you_mean
from ortdeploy.facts.models import FIRST, SECOND
from ortdeploy.rules.protocol import Finding, Rule
from ortdeploy.tensors.types import dimensions_agree, format_shape

if TYPE_CHECKING:
    from ortdeploy.deployment.resolved import Deployment
    from ortdeploy.facts.models import AdapterFacts, ModelFacts, ParameterFacts, ValueFacts
    from ortdeploy.manifest.spec import AdapterSpec, Spec

RULE = Rule(id="adapter-mismatch", summary="Adapter does not fit the model")


def check(deployment: "Deployment") -> Iterator[Finding]:
    models = {model.spec.name: model for model in deployment.models if model.facts.problem is None}
    usable = {
        adapter.name: (adapter, deployment.facts.adapters[adapter.name])
        for adapter in deployment.spec.adapters
        if adapter.model in models and deployment.facts.adapters[adapter.name].problem is None
    }
    for spec, adapter in usable.values():
        for problem in (*_parameter_problems(adapter, models[spec.model].facts), *_versions(spec, adapter)):
            yield _finding((spec,), problem)
    for names in _together(deployment.spec):
        specs = tuple(usable[name][0] for name in names if name in usable)
        if specs and len(specs) == len(names):
            model = models[specs[0].model]
            parameters = [one for name in names for one in usable[name][1].parameters]
            reuses = bool(model.spec.session.get("enable_mem_reuse", True))
            fed = {
                one.name for spec, facts in usable.values() if spec.model == specs[0].model for one in facts.parameters
            }
            for problem in _rank_problems(parameters, model.facts, fed, reuses_memory=reuses):
                yield _finding(specs, problem)


def _finding(adapters: "Sequence[AdapterSpec]", problem: str) -> Finding:
    first = adapters[0]
    names = " and ".join(f'"{adapter.name}"' for adapter in adapters)
    what = f"Adapter {names} does" if len(adapters) == 1 else f"Adapters {names} together do"
    detail = f'{what} not fit model "{first.model}": {problem}'
    return Finding(at=(*first.at, "path"), detail=detail, model=first.model)


def _together(spec: "Spec") -> "Iterator[tuple[str, ...]]":
    """Yield the adapters that apply at the same time, each set once: of jobs, of checks, and those that none uses."""
    uses = list(spec.adapter_uses())
    sets = {use.names for use in uses if use.together}
    sets |= {(name,) for use in uses if not use.together for name in use.names}
    used = {name for names in sets for name in names}
    sets |= {(adapter.name,) for adapter in spec.adapters if adapter.checks or adapter.name not in used}
    yield from sorted(sets)


def adapter_problems(adapter: "AdapterFacts", model: "ModelFacts") -> Iterator[str]:
    """Yield what keeps an adapter that applies alone from a model, in sentences."""
    yield from _parameter_problems(adapter, model)
    yield from _rank_problems(adapter.parameters, model, (), reuses_memory=True)


def _parameter_problems(adapter: "AdapterFacts", model: "ModelFacts") -> Iterator[str]:
    inputs = {value.name: value for value in model.inputs}
    if not adapter.parameters:
        yield "the file has no parameters; the base model would answer."
        return
    unknown = [one.name for one in adapter.parameters if one.name not in inputs]
    if len(unknown) == len(adapter.parameters) and not any(value.optional for value in model.inputs):
        yield (
            f"the graph has no LoRA inputs; it takes {', '.join(inputs)}. Export it with them: olive generate-adapter "
            "makes the matrices inputs with defaults."
        )
        return
    for name in unknown:
        yield f'the graph has no input "{name}". {did_you_mean(name, inputs)}'
    for one in adapter.parameters:
        if one.name in inputs:
            yield from _mismatch(inputs[one.name], one.dtype, one.shape)


def _versions(spec: "AdapterSpec", adapter: "AdapterFacts") -> Iterator[str]:
    """Compare versions where the file and the manifest both say one; 0 is none."""
    if spec.model_version is not None and adapter.model_version not in {0, spec.model_version}:
        made_for = adapter.model_version
        yield f"it was made for version {made_for} of the model, and model_version says {spec.model_version}."
    if spec.adapter_version is not None and adapter.adapter_version not in {0, spec.adapter_version}:
        yield f"its own version is {adapter.adapter_version}, and adapter_version says {spec.adapter_version}."


def _mismatch(value: "ValueFacts", dtype: str, shape: tuple[int, ...]) -> Iterator[str]:
    want = value.tensor
    if want.dtype and want.dtype != dtype:
        yield f'"{value.name}" is {dtype}, and the graph takes {want.dtype}.'
    elif want.shape is not None and (
        len(want.shape) != len(shape) or not all(map(dimensions_agree, shape, want.shape))
    ):
        turned = len(want.shape) == len(shape) and all(map(dimensions_agree, shape[::-1], want.shape))
        remark = " It looks transposed." if turned else ""
        yield f'"{value.name}" is {format_shape(shape)}, and the graph takes {format_shape(want.shape)}.{remark}'


def _rank_problems(
    parameters: "Sequence[ParameterFacts]", model: "ModelFacts", fed: Collection[str], *, reuses_memory: bool
) -> Iterator[str]:
    """Solve each rank once over the parameters that apply together and what stands for those that are left out.

    That is their default, or if they have none, the rank of zero that is `fed` because other adapters have them.
    """
    given = {one.name: one.shape for one in parameters}
    if not given.keys() & {value.name for value in model.inputs}:
        return
    solved: dict[str, tuple[int, str]] = {}
    for value in model.inputs:
        left_out = value.name not in given
        zeros = tuple(size if isinstance(size, int) else 0 for size in value.tensor.shape or ())
        default = zeros if value.default is None and value.name in fed else value.default
        shape = default if left_out else given[value.name]
        if shape is None or value.tensor.shape is None or len(shape) != len(value.tensor.shape):
            continue
        sizes = zip(shape, value.tensor.shape, strict=True)
        opened = [(size, symbol) for size, symbol in sizes if not isinstance(symbol, int)]
        ranks = [(f'"{symbol}"', size, _LAYERS) for size, symbol in opened if symbol and reuses_memory]
        first = value.name.replace(SECOND, FIRST)
        if len(opened) == 1 and FIRST in first:
            ranks.append((f'The rank of "{first}" and its lora_B', opened[0][0], "Give both one rank."))
        for rank, size, advice in ranks:
            known, other = solved.setdefault(rank, (size, value.name))
            if size != known:
                stands = "the zeros that are fed to" if value.default is None else "the default of"
                source = f'{stands} "{value.name}"' if left_out else f'"{value.name}"'
                makes = f'"{other}" makes it {known}, and {source} makes it {size}'
                yield f"{rank} must be one number, but {makes}. {advice}"
                return


_LAYERS = (
    "Give all matrices one rank. If layers are to differ, export a symbol for each, or set session: "
    "{enable_mem_reuse: false}."
)
