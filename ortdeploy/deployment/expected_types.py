"""The element types that the steps of a pipeline want: text is read in them, since numbers as text have no type.

What a step wants is carried back through the steps before it: if a model takes int64, so do the steps that only
reshape what reaches it, and the column that they begin with.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec import Struct, field

from ortdeploy.deployment.op_names import KnownOperators
from ortdeploy.facts.models import ModelFacts
from ortdeploy.manifest.op_steps import OpSpec
from ortdeploy.manifest.pipelines import StepOfPipeline
from ortdeploy.manifest.spec import StepSpec
from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.types import ELEMENT_TYPES, FLOATING, USUAL, WIDER
from ortdeploy.transforms.catalogue import PREPARE

_NOT_FROM_NUMBERS = ("bool", "string")
"""What a cast makes of any number; text is not read as these, because numbers such as 2 would not be read at all."""


class _Place(Struct, frozen=True):
    """An input or an output of a step: its value, its type variable (or its one type), and the types it may have.

    `default` is what it takes if nobody wants another of its types.
    """

    value: str
    variable: str
    types: tuple[str, ...] = ()
    default: str | None = None


class _Step(Struct, frozen=True):
    """A step between places; `casts_to` is the type that it makes of any other."""

    taken: tuple[_Place, ...]
    made: tuple[_Place, ...]
    casts_to: str | None = None


class _Wants(Struct):
    """What is wanted of values: `needed` is the only type that a step takes, `asked` are those that suit others."""

    needed: dict[str, str] = field(default_factory=dict)
    asked: dict[str, set[str]] = field(default_factory=dict)

    def of(self, value: str) -> str | None:
        """Return the type that a value is wanted in, if steps agree."""
        asked = self.asked.get(value, set())
        return self.needed.get(value) or (next(iter(asked)) if len(asked) == 1 else None)

    def add(self, other: "_Wants", value: str, of: str) -> None:
        """Want of a value what others want of another one."""
        if of in other.needed:
            self.needed[value] = other.needed[of]
        self.asked.setdefault(value, set()).update(other.asked.get(of, ()))

    def carry(self, step: _Step) -> None:
        """Want of what a step takes what is wanted of that which it makes; the steps behind it are known."""
        for place in step.taken:
            if len(place.types) == 1:
                self.needed[place.value] = place.types[0]
            elif step.casts_to is not None:
                self._ask(place, [step.casts_to])
            else:
                self._carry_back(place, step.made)
                if place.default is not None and self.of(place.value) not in place.types:
                    self.needed[place.value] = place.default

    def _carry_back(self, place: _Place, made: Iterable[_Place]) -> None:
        for result in made:
            if result.variable == place.variable:
                if self.needed.get(result.value) in place.types:
                    self.needed[place.value] = self.needed[result.value]
                self._ask(place, self.asked.get(result.value, ()))
            elif result.variable == f"float({place.variable})":  # whole numbers become float32
                dtype = self.of(result.value) or USUAL
                if dtype == USUAL:
                    self._ask(place, [dtype])
                elif dtype in FLOATING and dtype in place.types:
                    self.needed[place.value] = dtype

    def _ask(self, place: _Place, dtypes: Iterable[str]) -> None:
        known = [WIDER.get(dtype, dtype) for dtype in dtypes if dtype not in _NOT_FROM_NUMBERS]
        self.asked.setdefault(place.value, set()).update(dtype for dtype in known if dtype in place.types)


def wanted_types(
    steps: Sequence[StepOfPipeline], models: Mapping[str, ModelFacts], operators: KnownOperators
) -> dict[str, str]:
    """Return the element type of each value that steps want in one type; the first step that needs one decides."""
    wants = _Wants()
    _gather(wants, steps, models, operators)
    found = {name: wants.of(name) for name in {**wants.needed, **wants.asked}}
    return {name: dtype for name, dtype in found.items() if dtype is not None}


def read_type(steps: Sequence[StepSpec], wanted: str | None, operators: KnownOperators) -> str | None:
    """Return the element type to read text in, for prepare steps behind which a type is wanted; None: any would do."""
    wants = _Wants({str(len(steps)): wanted} if wanted else {})
    for place in reversed(range(len(steps))):
        wants.carry(_prepare_step(steps[place], str(place), str(place + 1), operators))
    return wants.of("0")


def _gather(
    wants: _Wants, steps: Sequence[StepOfPipeline], models: Mapping[str, ModelFacts], operators: KnownOperators
) -> None:
    """Add what steps want, from the last one back."""
    for step in reversed(steps):
        match step.kind:
            case "run":
                wants.needed.update(_of_model(step, models))
            case "do":
                wants.carry(_operation(step))
            case "op":
                wants.carry(_operator(step, operators))
            case _:
                _gather_items(wants, step, models, operators)


def _of_model(step: StepOfPipeline, models: Mapping[str, ModelFacts]) -> Iterator[tuple[str, str]]:
    inputs = models[step.name].inputs if step.name in models else ()
    for value in inputs:
        if value.name in step.wires and value.tensor.dtype is not None:
            yield step.wires[value.name], WIDER.get(value.tensor.dtype, value.tensor.dtype)


def _operation(step: StepOfPipeline) -> _Step:
    contract = OPERATIONS[step.name].contract
    known = {one.name: one for one in contract.inputs}
    taken = (
        _Place(value, known[name].type, contract.constraint(known[name]).types)
        for place, value in step.wires.items()
        if (name := place.partition(".")[0]) in known
    )
    results = zip(step.outputs, contract.outputs, strict=False)
    made = (_Place(name, one.type) for (_, name), one in results)
    return _Step(tuple(taken), tuple(made), step.options.get("cast"))


def _operator(step: StepOfPipeline, operators: KnownOperators) -> _Step:
    """Return an op step. What cannot take float32, which is read else, takes int64 rather than another type."""
    spec = step.op
    facts = operators.find(spec.operator, spec.domain, spec.opset) if spec is not None else None
    if facts is None or spec is None:
        return _Step((), ())
    known = {one.name: one for one in facts.inputs}
    made_by = {one.name: one for one in facts.outputs}
    first = next(iter(made_by), "")
    taken = []
    for place, value in step.wires.items():
        name = place.partition(".")[0]
        if name in known and known[name].types:
            types = tuple(one for one in known[name].types if one == _key_type(spec)) or known[name].types
            default = None if USUAL in types else "int64" if "int64" in types else types[0]
            taken.append(_Place(value, known[name].variable, types, default))
    made = [
        _Place(name, made_by[own].variable)
        for place, name in step.outputs
        if (own := place.partition(".")[0] or first) in made_by
    ]
    to = spec.attributes.get("to") if spec.operator == "Cast" else None
    return _Step(tuple(taken), tuple(made), to if to in ELEMENT_TYPES else None)


_KEYS = {"keys_strings": "string", "keys_int64s": "int64", "keys_floats": USUAL, "cats_strings": "string"}
"""Attributes of LabelEncoder and OneHotEncoder that say of which type the input is."""


def _key_type(spec: OpSpec) -> str | None:
    """Return the element type that an operator looks up in a table of keys."""
    if "cats_int64s" in spec.attributes:  # of CategoryMapper, which maps either way
        return None
    return next((dtype for name, dtype in _KEYS.items() if name in spec.attributes), None)


def _prepare_step(step: StepSpec, before: str, after: str, operators: KnownOperators) -> _Step:
    """Return a prepare step from the value before it to the one behind it."""
    if step.op is None:
        contract = PREPARE[step.name].contract
        (one,) = contract.inputs
        taken = _Place(before, one.type, contract.constraint(one).types)
        made = tuple(_Place(after, result.type) for result in contract.outputs[:1])
        return _Step((taken,), made, step.options.get("cast"))
    wires = {place: before for place, _ in step.op.wires()}
    in_pipeline = StepOfPipeline(
        kind="op", name=step.name, wires=wires, options={}, outputs=(("", after),), at=step.at, op=step.op
    )
    return _operator(in_pipeline, operators)


def _gather_items(
    wants: _Wants, step: StepOfPipeline, models: Mapping[str, ModelFacts], operators: KnownOperators
) -> None:
    """Add what the steps of an each want of values outside; what they want of an item, they want of the list."""
    inside = _Wants()
    for name, collected in step.outputs:
        inside.add(wants, name, collected)
    _gather(inside, step.steps, models, operators)
    own = {step.item, *step.state, *(name for one in step.steps for _, name in one.outputs)}
    for name in {**inside.needed, **inside.asked}:
        if name == step.item:
            wants.add(inside, step.name, name)
        if name not in own:
            wants.add(inside, name, name)
