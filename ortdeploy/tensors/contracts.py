"""The contract of a step as data: what it takes, gives and is set with, in the form of ONNX's OpSchema.

A contract has formal inputs and outputs, attributes and type constraints, as `onnx.defs.OpSchema` has. Beyond an
OpSchema it names the axes: within one step an axis of the same name has the same size everywhere. `solve` unifies a
contract with what is known of the inputs: types before a run, whole arrays (`contract_checks`) while it runs.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from ortdeploy.tensors.types import (
    ELEMENT_TYPES,
    FLOATING,
    INTEGERS,
    MAP,
    ROWS,
    Dimension,
    Shape,
    TensorType,
    format_shape,
)

Options = Mapping[str, Any]
Types = Mapping[str, TensorType]

PIXELS = "pixels"
"""Places in an image, counted from its left and upper edge."""
NORMALISED = "normalised"
"""From 0 to 1."""
PROBABILITY = "probability"
LOGITS = "logits"
INDEX = "index"
"""The number of a class, counted from 0."""
TOKEN = "token"  # noqa: S105  an id in a vocabulary
MASK = "mask"
"""1 for what counts, 0 for what does not."""
TOKEN_TYPE = "token type"  # noqa: S105  which of two sentences a token is of
FIT = "fit"
"""How an image was fitted into another: factors across and down, left, top, height, width."""
UNITS = (PIXELS, NORMALISED, PROBABILITY, LOGITS, INDEX, TOKEN, MASK, TOKEN_TYPE, FIT)

SINGLE, OPTIONAL, VARIADIC = "single", "optional", "variadic"
"""How often a formal parameter occurs: ONNX's FormalParameterOption."""

_LAYOUTS = ("NCHW", "NHWC")


class ContractError(ValueError):
    """The inputs do not keep the contract; the text says why, in a sentence without its full stop."""


class Form(Struct, frozen=True):
    """One shape that a value may have: an axis is a size, a name, or `*name` for any number of axes.

    An image has one form for each layout.
    """

    axes: tuple[int | str, ...]
    layout: str | None = None

    def __str__(self) -> str:
        """`[rows, n, 4]`; `[rows, …]` for any number of axes."""
        return "[" + ", ".join("…" if str(axis).startswith("*") else str(axis) for axis in self.axes) + "]"

    @property
    def star(self) -> int | None:
        """The place of the axis that stands for any number of axes."""
        return next((place for place, axis in enumerate(self.axes) if str(axis).startswith("*")), None)

    def has_rank(self, rank: int) -> bool:
        """Return whether a shape of this rank may have this form."""
        return rank == len(self.axes) if self.star is None else rank >= len(self.axes) - 1


def forms(*texts: str) -> tuple[Form, ...]:
    """Read forms such as `rows n 4`, `rows *dims classes` and, of a layout, `NCHW rows channels height width`."""
    return tuple(_form(text.split()) for text in texts)


def _form(words: list[str]) -> Form:
    layout = words.pop(0) if words and words[0] in _LAYOUTS else None
    return Form(tuple(int(word) if word.isdigit() else word for word in words), layout)


IMAGE = forms("NHWC rows height width channels", "NCHW rows channels height width")


class TypeConstraint(Struct, frozen=True):
    """A type variable, and the element types that it may stand for; `called` is what a message calls them."""

    name: str
    types: tuple[str, ...]
    called: str
    advice: str = ""


ANY = TypeConstraint("T", tuple(ELEMENT_TYPES), "any element type")
NUMBERS = TypeConstraint("T", tuple(name for name in ELEMENT_TYPES if name != "string"), "numbers")
REALS = TypeConstraint("T", FLOATING, f"floating numbers ({', '.join(FLOATING)})", "cast before")
WHOLE = TypeConstraint("T", INTEGERS, "whole numbers", "such as argmax gives")
PICTURES = TypeConstraint("T", ("uint8", "float32"), "uint8 or float32", "cast before")
COORDINATES = TypeConstraint("B", (*FLOATING, *INTEGERS), "numbers")


class SizeConstraint(Struct, frozen=True):
    """What the size of a named axis may be: one of `sizes`, or at least a number or the size of another name."""

    name: str
    sizes: tuple[int, ...] = ()
    least: int | str | None = None


IMAGE_SIZES = (SizeConstraint("height", least=1), SizeConstraint("width", least=1))


class FormalParameter(Struct, frozen=True):
    """An input or an output: its element type (a type variable or a type), forms (none: any shape) and meaning.

    `type` of an output may be `float(T)`: T where that is floating, else float32. `units` are those that an input may
    have, or the one that an output has; `keeps` says that an output keeps the layout or the unit of the input `like`,
    or of the first.
    An input that is OPTIONAL may be left out.
    `finite` refuses NaN and infinities, `not_nan` NaN alone: where a step would swallow them. A postprocess step is
    given an output's name by the key `named_by`. An output that is OPTIONAL is given with the setting, or the input, of
    that name.
    """

    name: str
    type: str
    forms: tuple[Form, ...]
    meaning: str
    units: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ()
    like: str | None = None
    finite: bool = False
    not_nan: bool = False
    option: str = SINGLE
    named_by: str | None = None
    advice: str = ""

    @property
    def shapes(self) -> str:
        """The forms as a message names them."""
        return " or ".join(map(str, self.forms)) or "[…]"


class Attribute(Struct, frozen=True):
    """A setting: its type, by ONNX's names, and what it may be.

    A path is a STRING that names a file or a folder. `binds` are the axes, or the type variable, that the setting's
    values fix. FLOATS may be a single number, and INTS that are `scalar`; INTS of no `length` hold any number of them.
    A dot leads into a mapping, which may stand in the place of a list of the same name.
    """

    name: str
    type: str
    meaning: str
    required: bool = False
    default: Any = None
    least: float | None = None
    above: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    length: int | None = None
    scalar: bool = False
    path: str | None = None
    binds: tuple[str, ...] = ()

    def value(self, options: Options) -> Any:
        """Return what is set, or the default."""
        found: Any = options
        for key in self.name.split("."):
            found = found.get(key) if isinstance(found, Mapping) else None
        return self.default if found is None or isinstance(found, Mapping) else found


def image_size(name: str, *, required: bool = True, binds: tuple[str, ...] = ()) -> Attribute:
    """Return an attribute that is a height and a width in pixels."""
    return Attribute(name, "INTS", "height, width", required, least=1, most=65536, length=2, binds=binds)


def row_axis(name: str) -> Attribute:
    """Return an attribute that is an axis, counted within one row."""
    return Attribute(name, "INT", "the axis in a row", required=True, least=-32, most=32)


class Solved(Struct):
    """What unification knows: the size of each named axis, the axes of each `*name`, types, layout and unit.

    `by` tells what fixed a size; `chosen` are the forms that each input may have, by what is known of it; `units` are
    those of outputs that settings decide.
    """

    options: Options
    sizes: dict[str, Dimension] = field(default_factory=dict)
    runs: dict[str, Shape] = field(default_factory=dict)
    types: dict[str, str] = field(default_factory=dict)
    by: dict[str, str] = field(default_factory=dict)
    chosen: dict[str, tuple[Form, ...]] = field(default_factory=dict)
    layout: str | None = None
    given: dict[str, TensorType] = field(default_factory=dict)
    units: dict[str, str] = field(default_factory=dict)

    @property
    def first(self) -> TensorType:
        """The type of the first input."""
        return next(iter(self.given.values()), TensorType())

    def size(self, name: str) -> int | None:
        """Return the size of a named axis, if it is known as a number."""
        size = self.sizes.get(name)
        return size if isinstance(size, int) else None


Arithmetic = Callable[[Solved, Types], None]
"""Works out sizes that no name says, and adds them to what is solved. Raises ContractError."""


class Contract(Struct, frozen=True, kw_only=True):
    """What a step takes, gives and is set with. `row_wise`: a row's result does not depend on other rows.

    If it is not `even`, rows of one shape may give rows of several, so that each is taken alone.
    """

    name: str
    meaning: str
    inputs: tuple[FormalParameter, ...]
    outputs: tuple[FormalParameter, ...]
    attributes: tuple[Attribute, ...] = ()
    types: tuple[TypeConstraint, ...] = ()
    sizes: tuple[SizeConstraint, ...] = ()
    row_wise: bool = True
    even: bool = True
    arithmetic: Arithmetic | None = None

    def filled(self, options: Options) -> dict[str, Any]:
        """Return the settings with the defaults of those that are left out."""
        defaults = {one.name: one.default for one in self.attributes if one.default is not None}
        return {**defaults, **options}

    def constraint(self, parameter: FormalParameter) -> TypeConstraint:
        """Return the element types that an input may have."""
        own = next((one for one in self.types if one.name == parameter.type), None)
        return own or TypeConstraint(parameter.type, (parameter.type,), _called(parameter.type))

    def takes(self, name: str) -> TensorType | None:
        """Return the type of an input, if the contract leaves nothing open about it."""
        one = next(parameter for parameter in self.inputs if parameter.name == name)
        allowed = self.constraint(one).types
        if len(allowed) > 1 or len(one.forms) != 1 or one.forms[0].star is not None:
            return None
        if any(isinstance(axis, str) and axis != ROWS for axis in one.forms[0].axes):
            return None
        return TensorType(allowed[0], one.forms[0].axes)

    @property
    def takes_ranks(self) -> bool:
        """Whether its one input may have several ranks, which make no difference to the forms of what it gives."""
        if len(self.inputs) != 1 or any(one.star is not None for one in self.inputs[0].forms):
            return False
        ranks = {len(one.axes) for one in self.inputs[0].forms}
        return len(ranks) > 1 and all(len(one.forms) == 1 for one in self.outputs)

    def infer(self, options: Options, types: Types) -> tuple[TensorType, ...]:
        """Return what can be known of the outputs' types. Raises ContractError."""
        solved = self.solve(options, types)
        return tuple(
            _output(one, solved)
            for one in self.outputs
            if one.option != OPTIONAL or one.named_by is None or one.named_by in options or one.named_by in types
        )

    def solve(self, options: Options, types: Types) -> Solved:
        """Unify the inputs with the contract. Raises ContractError, which tells of two inputs that seem swapped."""
        try:
            return self._solve(options, types)
        except ContractError as error:
            swapped = next(self._swapped(options, types), None)
            if swapped is None:
                raise
            raise ContractError(f"{error}. {' and '.join(swapped)} seem to be swapped") from error

    def _solve(self, options: Options, types: Types) -> Solved:
        solved = Solved(options)
        for attribute in self.attributes:
            _bind(attribute, solved)
        for place, parameter in enumerate(self.inputs):
            if parameter.name in types:
                self._take(parameter, types[parameter.name], solved, first=place == 0)
        if self.arithmetic is not None:
            self.arithmetic(solved, types)
        for size in self.sizes:
            _hold_size(size, solved)
        return solved

    def _swapped(self, options: Options, types: Types) -> Iterator[tuple[str, str]]:
        """Yield pairs of inputs that would keep the contract the other way round."""
        for one, other in combinations([parameter.name for parameter in self.inputs if parameter.name in types], 2):
            if types[one].shape is None or types[other].shape is None:
                continue
            try:
                self._solve(options, {**types, one: types[other], other: types[one]})
            except ContractError:
                continue
            yield one, other

    def _take(self, parameter: FormalParameter, have: TensorType, solved: Solved, *, first: bool) -> None:
        name = f"{parameter.name} " if len(self.inputs) > 1 else ""
        self._hold_type(parameter, have, solved, name)
        if parameter.units and have.unit is not None and have.unit not in parameter.units:
            wanted = " or ".join(parameter.units)
            raise ContractError(f"it takes {name}in the unit {wanted} and gets {have.unit}")
        fitting = _choose(parameter, have, name)
        solved.given[parameter.name] = have
        if first:
            solved.layout = fitting[0].layout if fitting else have.layout
        if fitting:
            solved.chosen[parameter.name] = fitting
        if fitting and have.shape is not None:
            _unify(parameter, fitting[0], have, solved, name)

    def _hold_type(self, parameter: FormalParameter, have: TensorType, solved: Solved, name: str) -> None:
        if have.dtype is None:
            return
        constraint = self.constraint(parameter)
        if have.dtype not in constraint.types:
            advice = f"; {constraint.advice}" if constraint.advice else ""
            raise ContractError(f"it takes {name}{_of(name, constraint.called)} and gets {_called(have.dtype)}{advice}")
        if solved.types.setdefault(parameter.type, have.dtype) != have.dtype:
            first = solved.types[parameter.type]
            raise ContractError(
                f"it takes inputs of one element type and gets {first} and {have.dtype} ({name.strip()})"
            )


def _of(name: str, called: str) -> str:
    return f"of {called}" if name else called


def _called(dtype: str) -> str:
    return "text" if dtype == "string" else dtype


def _bind(attribute: Attribute, solved: Solved) -> None:
    """Take the sizes, or the type, that a setting fixes."""
    value = attribute.value(solved.options)
    if value is None or not attribute.binds:
        return
    if isinstance(value, str):
        solved.types[attribute.binds[0]] = value
        return
    for name, size in zip(attribute.binds, value if isinstance(value, list | tuple) else [value], strict=True):
        solved.sizes[name], solved.by[name] = size, attribute.name


def _choose(parameter: FormalParameter, have: TensorType, name: str) -> tuple[Form, ...]:
    """Return the forms that a value may have by its layout and what is known of its shape; none if it may have any."""
    if not parameter.forms:
        return ()
    first = parameter.forms[0].layout  # what has no layout is taken for the first that the step knows
    laid_out = [one for one in parameter.forms if one.layout == (have.layout or first)]
    if have.layout is None or not laid_out:
        laid_out += [one for one in parameter.forms if one.layout is None and one not in laid_out]
    if not laid_out:
        known = " or ".join(one.layout for one in parameter.forms if one.layout)
        raise ContractError(f"it takes {name}{known} and gets {have.layout}; put it before layout: {have.layout}")
    if have.shape is None:
        return tuple(laid_out)
    fitting = tuple(one for one in laid_out if one.has_rank(len(have.shape)) and _literals_agree(one, have.shape))
    if not fitting:
        raise ContractError(f"it takes {name}{parameter.shapes} and gets {have}{_advice(parameter)}")
    return fitting


def _advice(parameter: FormalParameter) -> str:
    return f". {parameter.advice}" if parameter.advice else ""


def _axes(form: Form, shape: Shape) -> Iterator[tuple[int | str, Dimension]]:
    """Yield the axes of a form beside the sizes of a shape of its rank, without those that `*name` stands for."""
    star = len(form.axes) if form.star is None else form.star
    behind = len(form.axes) - star - 1
    yield from zip(form.axes[:star], shape, strict=False)
    if behind > 0:
        yield from zip(form.axes[star + 1 :], shape[-behind:], strict=True)


def _literals_agree(form: Form, shape: Shape) -> bool:
    return all(
        not isinstance(axis, int) or not isinstance(size, int) or axis == size for axis, size in _axes(form, shape)
    )


def _unify(parameter: FormalParameter, form: Form, have: TensorType, solved: Solved, name: str) -> None:
    """Take the sizes of a value for the names of its form. Raises ContractError if another input has another size."""
    shape = have.shape or ()
    for axis, size in _axes(form, shape):
        if isinstance(axis, int):
            continue
        known = solved.sizes.get(axis)
        if isinstance(size, int) and isinstance(known, int) and size != known:
            other = solved.by[axis]
            raise ContractError(
                f"it takes {name or 'a value '}{form} with {axis} as in {other}, and {axis} is {known} in {other} and "
                f"{size} in {parameter.name if name else format_shape(shape)}{_advice(parameter)}"
            )
        if known is None or (isinstance(size, int) and not isinstance(known, int)):
            solved.sizes[axis], solved.by[axis] = size, parameter.name
    if form.star is not None:
        behind = len(form.axes) - form.star - 1
        solved.runs[str(form.axes[form.star])] = shape[form.star : len(shape) - behind]


def _hold_size(constraint: SizeConstraint, solved: Solved) -> None:
    size = solved.size(constraint.name)
    if size is None:
        return
    if constraint.sizes and size not in constraint.sizes:
        wanted = " or ".join(map(str, constraint.sizes))
        raise ContractError(f"{constraint.name} must be {wanted} and is {size} in {format_shape(solved.first.shape)}")
    least = solved.size(constraint.least) if isinstance(constraint.least, str) else constraint.least
    if least is not None and size < least:
        by = f" ({solved.by[constraint.least]})" if isinstance(constraint.least, str) else ""
        where = format_shape(solved.first.shape)
        raise ContractError(f"{constraint.name} must be at least {least}{by} and is {size} in {where}")


_FLOATING_OF = re.compile(r"float\((\w+)\)")


def _output(parameter: FormalParameter, solved: Solved) -> TensorType:
    """Return the type of an output, by what the inputs have fixed."""
    kept = solved.given.get(parameter.like, TensorType()) if parameter.like else solved.first
    given = TensorType(_element_type(parameter, solved), _shape(parameter, solved))
    if "layout" in parameter.keeps:
        given = replace(given, layout=kept.layout)
    elif any(one.layout for one in parameter.forms):
        given = replace(given, layout=_forms_of(parameter, solved)[0].layout)
    unit = kept.unit if "unit" in parameter.keeps else next(iter(parameter.units), None)
    return replace(given, unit=solved.units.get(parameter.name, unit))


def _element_type(parameter: FormalParameter, solved: Solved) -> str | None:
    floating = _FLOATING_OF.fullmatch(parameter.type)
    if floating:
        dtype = solved.types.get(floating.group(1))
        return dtype if dtype is None or dtype in FLOATING else "float32"
    return parameter.type if parameter.type in {*ELEMENT_TYPES, MAP} else solved.types.get(parameter.type)


def _forms_of(parameter: FormalParameter, solved: Solved) -> tuple[Form, ...]:
    """Return the forms that an output may have: those of an input which has the same ones, or that of the layout."""
    fitting = [one for one in parameter.forms if one.layout == solved.layout] or list(parameter.forms)
    shared = (tuple(one for one in forms if one in fitting) for forms in solved.chosen.values())
    return next(filter(None, shared), (fitting[0],))


def _shape(parameter: FormalParameter, solved: Solved) -> Shape | None:
    if not parameter.forms:
        return solved.runs.get(parameter.name)
    if solved.first.shape is None and any(one.star is not None for one in parameter.forms):
        return None
    forms = _forms_of(parameter, solved)
    if len({len(one.axes) for one in forms}) > 1:
        return None
    shape: list[Dimension] = []
    for axis, *others in zip(*(one.axes for one in forms), strict=True):
        if any(other != axis for other in others):
            shape.append(None)
        elif isinstance(axis, int):
            shape.append(axis)
        elif axis.startswith("*"):
            if axis not in solved.runs:
                return None
            shape += solved.runs[axis]
        else:
            shape.append(solved.sizes.get(axis, ROWS if axis == ROWS else None))
    return tuple(shape)
