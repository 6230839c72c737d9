"""The items of one row through one model with state: as steps would run them, with what is alike held against it once."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.diagnostics import OrtdeployError, OutOfMemoryError
from ortdeploy.pipelines.each import Each, Values
from ortdeploy.pipelines.items_in_turn import ItemsInTurn, items_in_turn
from ortdeploy.pipelines.model_step import ModelStep
from ortdeploy.plan.constants import PlannedConstant
from ortdeploy.plan.narrowed import Narrowed
from ortdeploy.plan.pipeline import PlannedValue, PlannedWireStep

WIRES = (("x", "item"), ("bias", "of_row"), ("h", "state"))
Compute = Callable[[Mapping[str, Any]], Sequence[Any]]


class Model:
    """A component that computes with numpy, and keeps what it was fed."""

    def __init__(self, compute: Compute) -> None:
        self.compute = compute
        self.fed: list[Mapping[str, Any]] = []

    def run(self, _outputs: Sequence[str], feeds: Mapping[str, Any], _adapters: Sequence[str]) -> list[Any]:
        assert all(array.flags.c_contiguous for array in feeds.values())
        self.fed.append(feeds)
        return list(self.compute(feeds))


NARROWED = Narrowed(limits=(-5.0, 5.0), smallest=0.0, fails=True, why="It computes with three bits.")


def accumulate(feeds: Mapping[str, Any]) -> Sequence[Any]:
    """Return y [1, 2] = x + bias + h, and h after it: the same, where the feeds have their rows."""
    h = feeds["h"] + (feeds["x"] + feeds["bias"]).reshape(feeds["h"].shape)
    return [h.reshape(1, 2), h]


def model_step(model: Model, *, axis: int = 0, whole: bool = False, **more: Any) -> ModelStep:
    """Return a step that takes x [rows, 2], bias [rows, 2] and h, whose rows stand at an axis, or that has none."""
    state = (1, 2) if whole else ("rows", more.pop("width", 2))
    shapes = {"x": ("rows", 2), "bias": ("rows", 2), "h": state}
    limits, narrowed = more.pop("limits", None), more.pop("narrowed", None)
    takes = tuple(
        PlannedValue(
            name=name,
            dtype="float64",
            shape=shape,
            layout=None,
            limits=limits if name == "x" else None,
            narrowed_by=narrowed if name == "x" else None,
        )
        for name, shape in shapes.items()
    )
    step = wire_step(
        "run",
        "sum",
        wires=WIRES,
        takes=takes,
        outputs=(("y", "given"), ("h_after", "after")),
        row_axes={"h": axis, "h_after": axis} if axis else {},
        **more,
    )
    return ModelStep(step, model, frozenset({"state", "after"}) if whole else frozenset())  # type: ignore[arg-type]  # as one


def each_step(*, whole: bool = False, collect: str = "given") -> PlannedWireStep:
    """An each over what `w` lists, one row at a time."""
    return wire_step(
        "each",
        "w",
        outputs=((collect, "all"),),
        makes=(PlannedValue(name="all", dtype="float64", shape=("rows", None, 2), layout=None),),
        item="item",
        steps=(wire_step("run", "sum", wires=WIRES),),
        state=(("state", "after"),),
        first_state=(PlannedValue(name="state", dtype="float64", shape=(1, 2) if whole else ("rows", 2), layout=None),),
        state_by_row=not whole,
    )


def wire_step(kind: str, name: str, **more: Any) -> PlannedWireStep:
    """Return a step that has nothing but what is given."""
    nothing: dict[str, Any] = dict.fromkeys(("wires", "takes", "outputs", "makes", "adapters", "steps"), ())
    nothing |= {"options": {}, "item": "", "batch": 1, "most": None}
    return PlannedWireStep(kind=kind, name=name, **{**nothing, **more})


def values_of(lengths: Sequence[int]) -> dict[str, Any]:
    random = np.random.default_rng(len(lengths))
    return {
        "w": [random.standard_normal((length, 2)) for length in lengths],
        "of_row": random.standard_normal((len(lengths), 2)),
    }


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[Mapping[str, Any]]:
    """What was held against the model."""
    seen: list[Mapping[str, Any]] = []
    check = ModelStep.check

    def counted(step: ModelStep, feeds: Mapping[str, Any]) -> None:
        seen.append(feeds)
        check(step, feeds)

    monkeypatch.setattr(ModelStep, "check", counted)
    return seen


@given(
    lengths=st.lists(st.integers(0, 5), min_size=1, max_size=4),
    axis=st.integers(0, 1),
    whole=st.booleans(),
    collect=st.sampled_from(["given", "after"]),
)
def test_rows_give_what_their_items_give_step_by_step(lengths: list[int], axis: int, whole: bool, collect: str) -> None:
    """A function beside the model step makes an each run both as steps of any kind."""
    axis, collect = (0, "given") if whole else (axis, collect)
    values, step = values_of(lengths), each_step(whole=whole, collect=collect)
    in_turn, in_steps = Model(accumulate), Model(accumulate)
    one = model_step(in_turn, axis=axis, whole=whole)
    assert isinstance(items_in_turn(step, [one]), ItemsInTurn)
    found = Each(step, [one])(dict(values), len(lengths))["all"]
    other = model_step(in_steps, axis=axis, whole=whole)
    expected = Each(step, [other, nothing_more])(dict(values), len(lengths))["all"]
    for row, same in zip(found, expected, strict=True):
        np.testing.assert_array_equal(row, same)
    for fed, same_fed in zip(in_turn.fed, in_steps.fed, strict=True):
        assert fed.keys() == same_fed.keys()
        assert all(np.array_equal(fed[name], same_fed[name]) for name in fed)


def nothing_more(_values: Values, _rows: int) -> Values:
    return {}


def test_items_that_are_alike_are_held_against_the_model_once_with_the_first_state_and_once_with_the_next(
    checks: list[Any],
) -> None:
    each = Each(each_step(), [model_step(Model(accumulate), axis=1)])
    each(values_of([9, 0, 7]), 3)
    assert len(checks) == 4


def test_a_state_that_grows_is_held_against_the_model_each_time(checks: list[Any]) -> None:
    """As a cache of keys does, until it has a size that the model does not take."""

    def grow(feeds: Mapping[str, Any]) -> Sequence[Any]:
        size = feeds["h"].shape[1] + (len(model.fed) >= 3)
        return [feeds["x"], np.zeros((1, size))]

    model = Model(grow)
    each = Each(each_step(), [model_step(model, width="past")])
    each(values_of([6]), 1)
    assert [one["h"].shape for one in checks] == [(1, 2), (1, 2), (1, 3), (1, 4), (1, 5)]
    model.fed.clear()
    fixed = Each(each_step(), [model_step(model)])
    with pytest.raises(OrtdeployError, match=r"a row of input h takes \[2\] and gets \[3\]"):
        fixed(values_of([6]), 1)
    assert len(model.fed) == 3  # the fourth item would be fed the state of the third


def test_a_last_state_is_held_against_nothing() -> None:
    model = Model(lambda feeds: [feeds["x"], np.zeros((1, 2 + (len(model.fed) == 4)))])
    found = Each(each_step(), [model_step(model)])(values_of([4]), 1)
    assert np.shape(found["all"]) == (1, 4, 2)


def test_a_result_that_has_more_than_the_one_row_is_refused_at_its_item() -> None:
    def split(feeds: Mapping[str, Any]) -> Sequence[Any]:
        return [np.zeros((1 + (len(model.fed) == 3), 2)), feeds["h"]]

    model = Model(split)
    with pytest.raises(OrtdeployError, match=r"sum: output y is \[2, 2\] for one row"):
        Each(each_step(), [model_step(model)])(values_of([6]), 1)
    assert len(model.fed) == 3


@pytest.mark.parametrize("error", [OrtdeployError("refused"), OutOfMemoryError("full"), MemoryError()])
def test_what_fails_at_an_item_fails_the_row_and_the_next_begins_anew(error: Exception) -> None:
    def fail(feeds: Mapping[str, Any]) -> Sequence[Any]:
        if len(model.fed) == 3:
            raise error
        return accumulate(feeds)

    model, values = Model(fail), values_of([5])
    each = Each(each_step(), [model_step(model, axis=1)])
    with pytest.raises(type(error)):
        each(dict(values), 1)
    (row,) = each(dict(values), 1)["all"]
    np.testing.assert_allclose(row, np.cumsum(values["w"][0] + values["of_row"], axis=0))


def test_constants_are_fed_with_every_item() -> None:
    rate = PlannedConstant(name="rate", dtype="int64", shape=(), content=16000, row_axis=None)
    model = Model(accumulate)
    Each(each_step(), [model_step(model, constants=(rate,))])(values_of([4]), 1)
    assert [int(feeds["rate"]) for feeds in model.fed] == [16000] * 4


@pytest.mark.parametrize("model", [{"by_row": True}, {"fixed_rows": 4}, {"limits": (0.0, 9.0)}, {"narrowed": NARROWED}])
def test_models_that_need_more_than_a_look_run_step_by_step(model: dict[str, Any]) -> None:
    assert items_in_turn(each_step(), [model_step(Model(accumulate), **model)]) is None


def test_limits_hold_for_every_item() -> None:
    each = Each(each_step(), [model_step(Model(accumulate), limits=(0.0, 5.0))])
    with pytest.raises(OrtdeployError, match="must lie in 0 to 5 and has 6 to 7"):
        each({"w": [np.arange(8.0).reshape(4, 2)], "of_row": np.zeros((1, 2))}, 1)


def test_what_a_provider_cannot_hold_is_looked_for_in_every_item() -> None:
    each = Each(each_step(), [model_step(Model(accumulate), narrowed=NARROWED)])
    with pytest.raises(OrtdeployError, match=r"sum: input x has 6\. It computes with three bits"):
        each({"w": [np.arange(8.0).reshape(4, 2)], "of_row": np.zeros((1, 2))}, 1)


def test_several_steps_and_values_from_elsewhere_run_step_by_step() -> None:
    one = model_step(Model(accumulate))
    assert items_in_turn(each_step(), [one, nothing_more]) is None
    assert items_in_turn(each_step(), [nothing_more]) is None
    assert items_in_turn(each_step(collect="item"), [one]) is None


def test_items_that_differ_or_lie_apart_run_step_by_step() -> None:
    alike = np.zeros((3, 2))
    assert ItemsInTurn.may_run(alike)
    assert not ItemsInTurn.may_run(list(alike))
    assert not ItemsInTurn.may_run(alike[:0])
    assert not ItemsInTurn.may_run(np.zeros((3, 4))[:, ::2])
    model = Model(accumulate)
    spread = np.arange(16.0).reshape(4, 4)[:, ::2]
    (row,) = Each(each_step(), [model_step(model)])({"w": [spread], "of_row": np.zeros((1, 2))}, 1)["all"]
    np.testing.assert_array_equal(row, np.cumsum(spread, axis=0))
