"""Which input files a job looks at again at its end: those that no source has read whole, as they were planned."""

from hypothesis import given
from hypothesis import strategies as st

from ortdeploy.facts.contents import ContentColumns
from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.running.vouched_files import VouchedFiles

PLANNED = [FileState(f"{number}.png", 10, number) for number in range(5)]


def others(read: "list[FileState]", planned: "list[FileState]" = PLANNED) -> list[FileState]:
    vouched = VouchedFiles(FileStates.of(planned))
    for state in read:
        contents = ContentColumns()
        contents.add(*state, bytes(16))
        vouched.add(contents)
    return [*vouched.others()]


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
