"""Which input files a job looks at again: those that no source has read whole, as they were planned."""

from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.facts.contents import ContentColumns
from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.files.compact_list import OF_A_BLOCK, in_blocks
from ortdeploy.jobs.unverified_inputs import InputVerifier

PLANNED = [FileState(f"{number}.png", 10, number) for number in range(5)]


def others(
    read: "list[FileState]", planned: "list[FileState]" = PLANNED, *, at_once: int = 1, last: str | None = None
) -> list[FileState]:
    vouched = InputVerifier(FileStates.of(planned))
    for some in in_blocks(read, at_once):
        contents = ContentColumns()
        for path, size, mtime_ns in some:
            contents.add(path, size, mtime_ns, bytes(16))
        vouched.add(contents)
    if last is not None:
        vouched.pass_over_to(last)
    vouched.pass_over_rest()
    return [*vouched.new_others()]


def test_files_that_were_read_as_planned_are_not_looked_at_again() -> None:
    assert others(PLANNED) == []
    assert others([]) == PLANNED


def test_a_file_that_was_read_in_another_state_is_looked_at_again() -> None:
    assert others([PLANNED[0], PLANNED[1]._replace(size=11), *PLANNED[2:]]) == [PLANNED[1]]


def test_files_of_an_earlier_run_and_those_that_no_run_has_reached_are_looked_at_again() -> None:
    assert others(PLANNED[2:4]) == [*PLANNED[:2], PLANNED[4]]


@given(st.lists(st.sampled_from([*PLANNED, FileState("0.png", 1, 1), FileState("x", 1, 1)])))
def test_whatever_is_read_each_planned_file_was_read_as_planned_or_is_looked_at(read: list[FileState]) -> None:
    assert {*PLANNED} - {*others(read)} <= {*read}


@given(
    st.lists(st.sampled_from([*PLANNED, FileState("0.png", 1, 1), FileState("x", 1, 1)])), st.integers(2, 9),
    st.sampled_from([None, "2.png", "x"]),
)  # fmt: skip
def test_it_does_not_matter_how_many_are_added_at_once(read: list[FileState], at_once: int, last: str | None) -> None:
    assert others(read, at_once=at_once, last=last) == others(read, last=last)


def test_blocks_that_are_read_and_those_of_a_long_plan_end_elsewhere() -> None:
    planned = [FileState(f"{number:07}.png", 10, number) for number in range(2 * OF_A_BLOCK + 5)]
    assert others(planned, planned, at_once=300) == []
    changed = [one._replace(size=11) if number % 999 == 998 else one for number, one in enumerate(planned)]
    assert others(changed, planned, at_once=300) == [planned[998], planned[1997]]
