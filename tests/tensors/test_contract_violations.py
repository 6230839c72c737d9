"""Every operation and step holds to its contract: inputs made from the table, right ones and wrong ones."""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.contracts import Case, right, wrong, wrong_units

from ortdeploy.operations.catalogue import OPERATIONS
from ortdeploy.operations.protocol import HeldOperation
from ortdeploy.tensors.contracts import ContractError
from ortdeploy.tensors.types import ROWS, InapplicableError, TensorType
from ortdeploy.transforms.catalogue import POSTPROCESS, PREPARE
from ortdeploy.transforms.protocol import HeldTransform

STEPS: dict[str, HeldOperation | HeldTransform] = {
    **{f"do-{name}": one for name, one in OPERATIONS.items()},
    **{f"prepare-{name}": one for name, one in PREPARE.items()},
    **{f"postprocess-{name}": one for name, one in POSTPROCESS.items()},
}
if importlib.util.find_spec("tokenizers") is None:
    del STEPS["do-tokenize"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tokenizer")


def infer(step: HeldOperation | HeldTransform, case: Case, types: Mapping[str, TensorType]) -> tuple[TensorType, ...]:
    if isinstance(step, HeldTransform):
        return step.infer(named(step, case.options), types["x"])
    return step.infer(case.options, types)


def run(step: HeldOperation | HeldTransform, case: Case, values: Mapping[str, Any] | None = None) -> tuple[Any, ...]:
    """Run a step that was planned with the right types on the arrays of a case."""
    values = case.arrays if values is None else values
    if isinstance(step, HeldTransform):
        return step.build(named(step, case.options), case.types["x"])(values["x"])
    call = step.build(case.options, case.types)
    if step.state is None:
        return call(values)
    found: tuple[Any, ...] = call(values, np.zeros([size or 1 for size in step.state.shape or ()]))[0]
    return found


def named(step: HeldTransform, options: Mapping[str, Any]) -> dict[str, Any]:
    """Name every result, as a postprocess step does."""
    return {**options, **{one.named_by: one.name for one in step.contract.outputs if one.named_by}}


def fits(promised: TensorType, made: Any) -> None:
    if isinstance(made, list):
        made = [np.asarray(row) for row in made if not isinstance(row, list)]
        assert all(promised.shape is None or row.ndim == len(promised.shape) - 1 for row in made)
        shapes, kinds = [(len(made), *row.shape) for row in made], {row.dtype for row in made}
    else:
        shapes, kinds = [made.shape], {made.dtype}
    for kind in kinds:
        name = "string" if kind.kind in "OU" else kind.name
        assert promised.dtype in {None, name}
    for shape in shapes:
        if promised.shape is not None:
            assert len(promised.shape) == len(shape)
            assert all(
                not isinstance(want, int) or want == have
                for want, have in zip(promised.shape[1:], shape[1:], strict=True)
            )


@pytest.mark.parametrize("name", STEPS)
def test_right_inputs_are_taken_and_give_what_the_contract_promises(name: str, tmp_path: Path) -> None:
    step = STEPS[name]
    for rows, free in ((2, 5), (1, 5), (3, 4), (2, 0)):
        for case in right(step.contract, tmp_path, rows, free):
            promised, made = infer(step, case, case.types), run(step, case)
            assert len(promised) == len(made)
            for kind, value in zip(promised, made, strict=True):
                fits(kind, value)


@pytest.mark.parametrize("name", OPERATIONS)
def test_rows_that_are_listed_one_by_one_give_the_same(name: str, tmp_path: Path) -> None:
    if f"do-{name}" not in STEPS:
        pytest.skip("tokenizers is not installed")
    step = OPERATIONS[name]
    for case in right(step.contract, tmp_path):
        together = run(step, case)
        listed = run(step, case, {key: list(value) for key, value in case.arrays.items()})
        for one, other in zip(together, listed, strict=True):
            for row, same in zip(one, other, strict=True):
                np.testing.assert_array_equal(row, same)
        if step.contract.row_wise:
            alone = run(step, case, {key: value[1:2] for key, value in case.arrays.items()})
            for one, other in zip(together, alone, strict=True):
                np.testing.assert_array_equal(one[1], other[0])


@pytest.mark.parametrize("name", STEPS)
def test_wrong_inputs_are_refused_before_the_run_and_in_it(name: str, tmp_path: Path) -> None:
    step, seen = STEPS[name], 0
    for case in right(step.contract, tmp_path):
        for bad in wrong(step.contract, case):
            seen += 1
            if bad.known_before:
                with pytest.raises(InapplicableError) as refused:
                    infer(step, bad, bad.seen())
                assert str(refused.value), bad.why
            with pytest.raises(ContractError) as failed:  # no error of numpy's
                run(step, bad)
            assert " " in str(failed.value), bad.why
    assert seen > 0


@pytest.mark.parametrize("name", OPERATIONS)
def test_a_wrong_row_among_right_ones_is_refused(name: str, tmp_path: Path) -> None:
    if f"do-{name}" not in STEPS:
        pytest.skip("tokenizers is not installed")
    step = OPERATIONS[name]
    for case in right(step.contract, tmp_path):
        for bad in wrong(step.contract, case):
            if "no rows" in bad.why or "rank 0" in bad.why:
                continue
            mixed = {key: [case.arrays[key][0], bad.arrays[key][-1]] for key in case.arrays}
            with pytest.raises(ContractError):
                run(step, case, mixed)


@pytest.mark.parametrize("name", OPERATIONS)
def test_another_number_of_rows_of_one_input_is_refused(name: str, tmp_path: Path) -> None:
    step = OPERATIONS[name]
    if len(step.contract.inputs) < 2:
        return
    for case in right(step.contract, tmp_path):
        for key, value in case.arrays.items():
            short = {**case.arrays, key: value[:1]}
            for values in (short, {one: list(rows) for one, rows in short.items()}):
                with pytest.raises(ContractError, match="rows"):
                    run(step, case, values)


@pytest.mark.parametrize("name", STEPS)
def test_units_of_other_things_are_refused(name: str, tmp_path: Path) -> None:
    step = STEPS[name]
    for case in right(step.contract, tmp_path):
        for one in step.contract.inputs:
            for unit in wrong_units(one):
                types = {**case.types, one.name: replace(case.types[one.name], unit=unit)}
                with pytest.raises(InapplicableError, match=unit):
                    infer(step, case, types)
            for unit in one.units:
                infer(step, case, {**case.types, one.name: replace(case.types[one.name], unit=unit)})


@pytest.mark.parametrize("name", STEPS)
def test_a_size_or_a_shape_that_is_not_known_is_not_promised(name: str, folder: Path) -> None:
    step = STEPS[name]
    for case in right(step.contract, folder):
        made = run(step, case)
        for first in case.types:
            for shape in less_known(case.types[first].shape):
                known = {**case.types, first: replace(case.types[first], shape=shape)}
                for kind, value in zip(infer(step, case, known), made, strict=True):
                    fits(kind, value)


def less_known(shape: Any) -> list[Any]:
    """A shape of which all, all sizes, or one of them has been forgotten."""
    if shape is None:
        return []
    one_less = [(*shape[:axis], None, *shape[axis + 1 :]) for axis in range(1, len(shape))]
    return [None, (shape[0], *(None for _ in shape[1:])), *one_less]


@given(st.data())
def test_what_is_not_known_yet_is_not_refused(folder: Path, data: st.DataObject) -> None:
    """Forget sizes, ranks, element types or layouts of right inputs at random."""
    step = STEPS[data.draw(st.sampled_from(sorted(STEPS)))]
    case = data.draw(st.sampled_from(right(step.contract, folder)))
    known = {}
    for name, tensor in case.types.items():
        shape: Any = tensor.shape
        if shape is not None:
            shape = (ROWS, *(data.draw(st.sampled_from([size, None, "symbol"])) for size in shape[1:]))
        known[name] = TensorType(
            data.draw(st.sampled_from([tensor.dtype, None])), data.draw(st.sampled_from([shape, None])), tensor.layout
        )
    promised = infer(step, case, known)
    for kind, value in zip(promised, run(step, case), strict=True):
        fits(kind, value)


@pytest.mark.parametrize(
    "change",
    [lambda column: [column], lambda column: [*column[:1], [np.ones((2, 3)), np.ones((3, 2))]]],
    ids=["nested", "many sizes"],
)
def test_rows_that_list_values_of_several_shapes_are_refused(change: Callable[[Any], Any], tmp_path: Path) -> None:
    step = OPERATIONS["pixels"]
    (case,) = right(step.contract, tmp_path)
    with pytest.raises(ContractError, match=r"one by one, with each|rows"):
        run(step, case, {"x": change([list(row) for row in case.arrays["x"]])})
