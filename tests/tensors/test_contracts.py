"""What a contract says of boxes, scores and units; and ONNX's own operator schemas written down as contracts."""

from typing import Any

import numpy as np
import onnx
import pytest

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.tensors.contract_checks import ContractCheck
from ortdeploy.tensors.contracts import (
    FIT,
    LOGITS,
    MASK,
    OPTIONAL,
    PIXELS,
    PROBABILITY,
    SINGLE,
    TOKEN,
    VARIADIC,
    Attribute,
    Contract,
    ContractError,
    FormalParameter,
    Solved,
    TypeConstraint,
    forms,
)
from ortdeploy.tensors.types import ELEMENT_TYPES, ROWS, InapplicableError, TensorType
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE

Shape = tuple[int | str | None, ...]


def floats(*sizes: int | str | None, unit: str | None = None) -> TensorType:
    return TensorType("float32", (ROWS, *sizes), unit=unit)


def refusal(name: str, options: dict[str, Any], **types: TensorType) -> str:
    with pytest.raises(InapplicableError) as caught:
        OPERATIONS[name].infer(options, types)
    return str(caught.value)


def test_boxes_have_four_numbers() -> None:
    text = refusal("nms", {}, boxes=floats(10, 2), scores=floats(10))
    assert text.startswith("it takes boxes [rows, n, 4] or [rows, n, 5] and gets float32 [rows, 10, 2]")
    assert "[rows, 3]" in refusal("unletterbox", {}, boxes=floats(10, 4), how=floats(4))
    assert "[rows, n, 4]" in refusal("unletterbox", {}, boxes=floats(10, 5), how=floats(3))


def test_the_raw_output_of_a_detector_is_refused_with_what_to_do() -> None:
    raw = floats(84, 8400)
    for scores in (raw, floats(8400), floats(None, None)):
        text = refusal("nms", {}, boxes=raw, scores=scores)
        assert "The raw output of a detector" in text
        assert "as two outputs, boxes [rows, n, 4]" in text
    transposed = refusal("nms", {}, boxes=floats(8400, 4), scores=floats(80, 8400))
    assert "n is 8400 in boxes and 80 in scores" in transposed


def test_swapped_inputs_are_told() -> None:
    assert refusal("nms", {}, boxes=floats(10), scores=floats(10, 4)).endswith("boxes and scores seem to be swapped")
    assert "seem to be swapped" in refusal("unletterbox", {}, boxes=floats(3), how=floats(None, 4))
    assert "seem to be swapped" in refusal("mean_pool", {}, x=floats(7), mask=floats(7, 16))
    assert "swapped" not in refusal("nms", {}, boxes=floats(10, 2), scores=floats(10))


def test_swapped_inputs_that_only_the_run_knows_are_told() -> None:
    types = {"boxes": TensorType("float32"), "scores": TensorType("float32")}
    call = OPERATIONS["nms"].build({}, types)
    with pytest.raises(ContractError, match="swapped"):
        call({"boxes": np.ones((2, 10), np.float32), "scores": np.ones((2, 10, 4), np.float32)})


def test_inputs_of_one_step_agree_with_each_other() -> None:
    assert "n is 10 in boxes and 12 in scores" in refusal("nms", {}, boxes=floats(10, 4), scores=floats(12))
    OPERATIONS["nms"].infer({}, {"boxes": floats(None, 4), "scores": floats(12, 80)})
    OPERATIONS["nms"].infer({}, {"boxes": floats("n", 4), "scores": floats("m", 80)})


def test_units_go_from_step_to_step() -> None:
    picture = TensorType("uint8", (ROWS, 9, 9, 3), "NHWC")
    _, how = OPERATIONS["letterbox"].infer({"size": [4, 4]}, {"image": picture})
    (boxes,) = OPERATIONS["boxes_from_heatmap"].infer({"threshold": 0.5}, {"heat": floats(9, 9)})
    assert (how.unit, boxes.unit) == (FIT, PIXELS)
    (back,) = OPERATIONS["unletterbox"].infer({}, {"boxes": boxes, "how": how})
    kept, scores, *_ = OPERATIONS["nms"].infer({}, {"boxes": back, "scores": floats(None, unit=LOGITS)})
    assert (kept.unit, scores.unit) == (PIXELS, LOGITS)
    (cast,) = PREPARE["cast"].infer({"cast": "float64"}, kept)
    assert cast.unit == PIXELS
    (share,) = POSTPROCESS["softmax"].infer({"softmax": "x", "as": "y"}, floats(3, 4))
    assert share.unit == PROBABILITY
    assert "unit pixels or normalised and gets probability" in refusal("nms", {}, boxes=share, scores=floats(3))
    ids = TensorType("int64", (ROWS, 7), unit=TOKEN)
    assert "unit mask and gets token" in refusal("mean_pool", {}, x=floats(7, 16), mask=ids)
    OPERATIONS["mean_pool"].infer({}, {"x": floats(7, 16), "mask": TensorType("int64", (ROWS, 7), unit=MASK)})


def test_an_alphabet_and_the_classes_belong_together_in_the_run_too() -> None:
    call = OPERATIONS["ctc_greedy"].build({"alphabet": "abc"}, {"logits": TensorType("float32")})
    with pytest.raises(ContractError, match="5 classes"):
        call({"logits": np.zeros((1, 6, 5), np.float32)})
    assert "blank is 4" in refusal("ctc_greedy", {"alphabet": "abc", "blank": 4}, logits=floats(6, 4))


def test_a_look_is_unified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    solve = Contract.solve

    def counted(contract: Contract, *given: Any) -> Solved:
        calls.append(given)
        return solve(contract, *given)

    monkeypatch.setattr(Contract, "solve", counted)
    check = ContractCheck(OPERATIONS["nms"].contract, {}, {"boxes": TensorType(), "scores": TensorType()})
    for rows in (4, 4, 4, 3):
        check({"boxes": np.ones((rows, 10, 4), np.float32), "scores": np.ones((rows, 10), np.float32)})
    assert len(calls) == 2
    many = [np.ones((1 + place % 5, 4), np.float32) for place in range(200)]
    check({"boxes": many, "scores": [np.ones(len(one), np.float32) for one in many]})
    assert len(calls) == 7


def test_numbers_of_channels_do_not_fall_onto_rows() -> None:
    """A vector of means along a column of single numbers would be spread over the rows."""
    options = {"normalize": {"mean": [1.0, 2.0, 3.0], "std": 1.0}}
    with pytest.raises(InapplicableError, match="no channels"):
        PREPARE["normalize"].infer(options, TensorType("float32", (ROWS,)))
    with pytest.raises(ContractError, match="no channels"):
        PREPARE["normalize"].build(options, TensorType())(np.ones(3, np.float32))


def test_a_form_of_any_axes_says_so() -> None:
    assert str(forms("rows *dims classes")[0]) == "[rows, …, classes]"
    assert forms("NCHW rows channels height width")[0].layout == "NCHW"


def contract_of(schema: onnx.defs.OpSchema) -> Contract:
    """Write an operator schema of ONNX's down with the nouns of contracts."""
    names = {f"tensor({onnx_name})": name for name, onnx_name in ELEMENT_TYPES.items()}
    options = {"Single": SINGLE, "Optional": OPTIONAL, "Variadic": VARIADIC}

    def parameter(one: Any) -> FormalParameter:
        return FormalParameter(one.name, one.type_str, (), one.description, option=options[one.option.name])

    return Contract(
        name=schema.name,
        meaning=schema.doc or "",
        inputs=tuple(parameter(one) for one in schema.inputs),
        outputs=tuple(parameter(one) for one in schema.outputs),
        attributes=tuple(
            Attribute(
                name,
                str(one.type).rpartition(".")[2],
                one.description,
                required=one.required,
                default=onnx.helper.get_attribute_value(one.default_value) if one.default_value.name else None,
            )
            for name, one in schema.attributes.items()
        ),
        types=tuple(
            TypeConstraint(
                one.type_param_str,
                tuple(names[text] for text in one.allowed_type_strs if text in names),
                "the types of ONNX",
            )
            for one in schema.type_constraints
        ),
        row_wise=False,
    )


@pytest.mark.parametrize("name", ["Clip", "Concat", "Conv", "Gather", "Gemm", "LayerNormalization", "Resize", "Where"])
def test_an_operator_of_onnx_can_be_written_down(name: str) -> None:
    schema = onnx.defs.get_schema(name, 21)
    contract = contract_of(schema)
    assert [one.name for one in contract.inputs] == [one.name for one in schema.inputs]
    assert {one.name for one in contract.attributes} == set(schema.attributes)
    assert any(one.option == VARIADIC for one in contract.inputs) == (name == "Concat")
    first = contract.inputs[0]
    dtype = contract.constraint(first).types[0]
    given = {first.name: TensorType(dtype, (ROWS, 3))}
    assert contract.infer({}, given)[0].dtype in {dtype, None}
    for other in set(ELEMENT_TYPES) - set(contract.constraint(first).types):
        with pytest.raises(ContractError, match=r"it takes .* and gets"):
            contract.infer({}, {first.name: TensorType(other, (ROWS, 3))})


def test_inputs_of_one_type_variable_have_one_type() -> None:
    contract = contract_of(onnx.defs.get_schema("Gemm", 21))
    with pytest.raises(ContractError, match="one element type and gets float32 and float64"):
        contract.infer({}, {"A": TensorType("float32", (2, 3)), "B": TensorType("float64", (3, 4))})
    assert (
        contract.infer({}, {"A": TensorType("float32", (2, 3)), "B": TensorType("float32", (3, 4))})[0].dtype
        == "float32"
    )


def test_boxes_or_points_of_a_rank_that_nobody_knows_stay_so() -> None:
    how = TensorType("float32", (ROWS, 6))
    unknown, boxes, points = (
        OPERATIONS["unletterbox"].infer({"outside": "cut"}, {"boxes": TensorType("float32", shape), "how": how})[0]
        for shape in (None, (ROWS, 5, 4), (ROWS, 5, 17, 2))
    )
    assert (unknown.shape, boxes.shape, points.shape) == (None, (ROWS, 5, 4), (ROWS, 5, 17, 2))
