"""Records do what frozen dataclasses with slots do."""

import copy
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, get_type_hints

import pytest

from ortdeploy.records import field_names, mutable_record, ordered_record, record


@record
class Made:
    """A noun."""

    name: str
    size: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    note: str = field(default="", repr=False, compare=False)

    @property
    def shown(self) -> str:
        """What is shown of it."""
        return f"{self.name}:{self.size}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """The same noun."""

    name: str
    size: int | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    note: str = field(default="", repr=False, compare=False)


@ordered_record
class Pair:
    """Two fields, and one that is made of them."""

    left: int
    right: int = 2
    total: int = 0

    def __post_init__(self) -> None:
        """Add them."""
        object.__setattr__(self, "total", self.left + self.right)


@record
class One:
    """A single field."""

    value: float


def test_a_record_is_a_dataclass_to_whoever_asks() -> None:
    assert all(map(is_dataclass, (Made, Pair, One(value=1.0))))
    assert [one.name for one in fields(Made)] == [one.name for one in fields(Compiled)]
    assert [(one.default, one.default_factory, one.compare, one.repr, one.kw_only) for one in fields(Made)] == [
        (one.default, one.default_factory, one.compare, one.repr, one.kw_only) for one in fields(Compiled)
    ]
    assert asdict(Made(name="a", tags={"k": "v"})) == asdict(Compiled(name="a", tags={"k": "v"}))
    assert get_type_hints(Made) == get_type_hints(Compiled)
    assert replace(Made(name="a", size=1), size=2) == Made(name="a", size=2)
    assert fields(Made(name="a")) == fields(Made)


@mutable_record
class Changing:
    """A noun whose fields change."""

    count: int
    seen: list[int] = field(default_factory=list)


def test_a_mutable_one_can_be_changed_and_has_no_hash() -> None:
    one = Changing(1)
    one.count += 1
    one.seen.append(2)
    assert one == Changing(2, [2])
    assert one != Changing(2)
    assert not hasattr(one, "__dict__")
    with pytest.raises(TypeError, match="unhashable"):
        hash(one)


def test_it_is_written_and_compared_field_by_field() -> None:
    assert repr(Made(name="a", note="n")) == repr(Compiled(name="a", note="n")).replace("Compiled", "Made")
    assert Made(name="a", note="n") == Made(name="a", note="m")
    assert Made(name="a") != Made(name="b")
    others: list[Any] = [One(value=1.0), Compiled(name="a"), "a"]
    assert Made(name="a") not in others
    assert len({Pair(1), Pair(1, 2), Pair(1, 3)}) == 2
    assert {One(value=1.5), One(value=1.5)} == {One(value=1.5)}
    with pytest.raises(TypeError, match="unhashable"):
        hash(Made(name="a", tags={"k": "v"}))


def test_defaults_are_its_own() -> None:
    one, other = Made(name="a"), Made(name="a")
    assert one.size is None
    assert one.tags == {}
    assert one.tags is not other.tags
    assert one.shown == "a:None"


def test_those_made_after_many_are_like_the_first() -> None:
    @record
    class Row:
        """A noun of which there are many."""

        number: int
        size: int | None = None
        tags: dict[str, str] = field(default_factory=dict)
        note: str = field(default="", compare=False)
        twice: int = 0

        def __post_init__(self) -> None:
            """Double the number."""
            object.__setattr__(self, "twice", 2 * self.number)

    rows = [Row(number=1) for _ in range(200)]
    assert (
        type(rows[-1]).__init__.__code__.co_filename != type(rows[-1]).__repr__.__code__.co_filename
    )  # it is compiled
    assert set(map(repr, rows)) == {repr(rows[0])}
    assert all(one == rows[0] for one in rows)
    assert len({id(one.tags) for one in rows}) == len(rows)
    assert rows[-1].twice == 2
    assert replace(rows[-1], number=4, tags={"k": "v"}) == Row(number=4, tags={"k": "v"})
    wrong: list[Callable[[], Any]] = [
        Row,  # type: ignore[list-item]
        lambda: Row(number=1, nam="b"),  # type: ignore[call-arg]
        lambda: Row(1),  # type: ignore[call-arg]
    ]
    for one in wrong:
        with pytest.raises(TypeError):
            one()
    with pytest.raises(FrozenInstanceError):
        rows[-1].number = 2  # type: ignore[misc]


def test_fields_may_be_given_in_order_where_it_says_so() -> None:
    assert Pair(1) == Pair(left=1) == Pair(1, right=2)
    assert Pair(3, 4).total == 7
    match Pair(3, 4):
        case Pair(left, right):
            assert (left, right) == (3, 4)


@pytest.mark.parametrize(
    "wrong",
    [
        Made,
        lambda: Made(name="a", nam="b"),  # type: ignore[call-arg]
        lambda: Made(size=1, tags={}, note="", nam="b"),  # type: ignore[call-arg]
        lambda: Made("a"),  # type: ignore[call-arg]
        lambda: Pair(1, left=1),  # type: ignore[misc]
        lambda: Pair(1, 2, 3, 4),  # type: ignore[call-arg]
    ],
    ids=["missing", "unknown", "unknown among as many", "in order", "twice", "too many"],
)
def test_wrong_fields_are_refused(wrong: Callable[[], Any]) -> None:
    with pytest.raises(TypeError):
        wrong()


def test_nothing_is_changed_or_added_afterwards() -> None:
    one = Made(name="a")
    for name in ("name", "other"):
        with pytest.raises(FrozenInstanceError):
            setattr(one, name, "b")
    with pytest.raises(FrozenInstanceError):
        delattr(one, "name")
    assert not hasattr(one, "__dict__")


def _pickled(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))  # noqa: S301  our own


def test_it_is_copied_and_pickled() -> None:
    one = Made(name="a", size=1, tags={"k": "v"}, note="n")
    for other in (copy.copy(one), copy.deepcopy(one), _pickled(one)):
        assert (other, other.note) == (one, "n")
    assert _pickled(One(value=0.5)) == One(value=0.5)


def test_the_class_keeps_its_name_and_its_words() -> None:
    assert (Made.__name__, Made.__qualname__, Made.__module__, Made.__doc__) == ("Made", "Made", __name__, "A noun.")


def test_a_field_that_is_never_given_is_refused() -> None:
    class Late:
        """Has a field that it makes itself."""

        made: int = field(init=False)

    with pytest.raises(TypeError, match="leave it to dataclass"):
        record(Late)


def test_the_names_of_fields_are_told_without_making_fields() -> None:
    @record
    class Unasked:
        first: int
        second: str = ""

    assert field_names(Unasked) == ("first", "second")
    assert not isinstance(Unasked.__dict__["__dataclass_fields__"], dict), "no Field is made"
    assert [one.name for one in fields(Unasked)] == ["first", "second"]
    assert field_names(Unasked) == ("first", "second")
    assert field_names(Compiled) == ("name", "size", "tags", "note")
    assert field_names(str) is None
