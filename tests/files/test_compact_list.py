"""Packed lists hold what they were given, in its order, and are sorted and joined as plain lists are."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.file_states import NAMES, NUMBERS, STATES

from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.files import compact_list
from ortdeploy.files.compact_list import CompactListWriter, Names, in_order, joined

LISTS = st.lists(STATES, max_size=9)


@pytest.fixture(autouse=True, scope="module")
def small_blocks() -> "object":
    """Let a few entries fill blocks, and runs of a sort."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact_list, "OF_A_BLOCK", 2)
        patch.setattr(compact_list, "SORTED_AT_ONCE", 3)
        yield


@given(LISTS)
def test_a_packed_list_is_the_list_that_was_packed(states: Sequence[FileState]) -> None:
    held = FileStates.of(states)
    assert list(held) == states == [held[at] for at in range(len(states))]
    assert held == tuple(states)
    assert held[1:3] == states[1:3]
    assert held[::-1] == states[::-1]
    assert FileStates.of(held) is held
    assert FileStates(held.blocks, len(held)) == held
    one_by_one = CompactListWriter(FileStates)
    for state in states:
        one_by_one.add(state)
    assert one_by_one.packed() == held
    with pytest.raises(IndexError):
        held[len(states)]


@given(LISTS, LISTS)
def test_lists_are_equal_where_their_entries_are(some: Sequence[FileState], others: Sequence[FileState]) -> None:
    assert (FileStates.of(some) == FileStates.of(others)) == (some == others) == (FileStates.of(some) == others)


@given(st.lists(NAMES, max_size=20))
def test_names_are_sorted_whether_or_not_they_are_many(names: Sequence[str]) -> None:
    found = in_order(iter(names), "a/")
    assert list(found) == sorted(f"a/{name}" for name in names)
    assert isinstance(found, Names) == (len(names) >= compact_list.SORTED_AT_ONCE)


@given(st.dictionaries(NAMES, NUMBERS, max_size=12), st.dictionaries(NAMES, NUMBERS, max_size=12))
def test_lists_are_joined_by_name(some: dict[str, int], others: dict[str, int]) -> None:
    def held(of: dict[str, int]) -> FileStates:
        return FileStates.pack((name, number, 0) for name, number in of.items())

    wanted = [((name, some[name], 0) if name in some else None, (name, others[name], 0)) for name in sorted(others)]
    assert list(joined(held(some), held(others))) == wanted


@pytest.mark.slow
def test_a_million_states_take_no_more_than_fifteen_bytes_each() -> None:
    count = 20_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compact_list, "OF_A_BLOCK", 1024)
        held = FileStates.pack((f"pictures/{at:07}.png", 250 + at % 7, 10**18 + at * 7_654_321) for at in range(count))
    assert sum(map(len, held.blocks)) < 15 * count
