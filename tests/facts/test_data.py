"""What is known of many input files is held packed, and nothing of it is lost."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from support.file_states import STATES

from ortdeploy.facts.data import KnownFile, KnownFiles


@given(
    st.lists(
        st.builds(
            KnownFile,
            state=STATES,
            done=st.booleans(),
            span=st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
            repaired=st.just(()) | st.tuples(STATES),
            rerun=st.none() | STATES,
        ),
        max_size=6,
        unique_by=lambda one: one.state.path,
    )
)
def test_known_files_keep_all_that_is_known(known: Sequence[KnownFile]) -> None:
    held = KnownFiles.of(known)
    assert list(held) == known
    assert [held[at] for at in range(len(known))] == known
