"""Layouts in which a row would fit: against all orders of its axes, tried one by one."""

from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.tensors.layouts import fitting_layout, layout_step
from ortdeploy.tensors.types import TensorType

SIZE = st.sampled_from([None, 1, 3, 8, "h"])
ROW = st.tuples(SIZE, SIZE, SIZE)


LAYOUT = st.sampled_from([None, "NCHW", "NHWC"])


@given(ROW, ROW, LAYOUT, LAYOUT)
def test_a_layout_fits_if_its_axes_have_the_sizes_and_no_other_is_taken(
    row: tuple[int | str | None, ...], want: tuple[int | str | None, ...], layout: str | None, taken: str | None
) -> None:
    have = TensorType("float32", ("rows", *row), layout)

    def agrees(order: tuple[int, ...]) -> bool:
        moved = [row[axis] for axis in order]
        return all(not (isinstance(a, int) and isinstance(b, int)) or a == b for a, b in zip(moved, want, strict=True))

    found = fitting_layout(have, want, taken)
    if found is not None:
        assert found != layout
        assert taken in {None, found}
        assert agrees((2, 0, 1) if found == "NCHW" else (1, 2, 0))
    elif None not in row:
        assert layout == "NCHW" or taken == "NHWC" or not agrees((2, 0, 1))
        assert layout == "NHWC" or taken == "NCHW" or not agrees((1, 2, 0))


def test_a_step_says_where_it_starts_only_if_nobody_knows() -> None:
    assert layout_step(TensorType("uint8", ("rows", 8, 8, 3), "NHWC"), "NCHW") == "layout: NCHW"
    assert layout_step(TensorType("float32", ("rows", 8, 8, 3)), "NCHW") == "layout: NCHW, from: NHWC"


def test_pictures_have_few_channels() -> None:
    pictures = TensorType("uint8", ("rows", None, None, None), "NHWC")
    assert fitting_layout(pictures, (3, 32, 32)) == "NCHW"
    assert fitting_layout(pictures, (64, 32, 32)) is None
