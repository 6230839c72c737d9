"""Strategies of file names and states: any name that a file can have, and any size and time."""

from hypothesis import strategies as st

from ortdeploy.facts.data import FileState

NAMES = st.text(st.characters(exclude_characters="\0", max_codepoint=0xDCFF), max_size=4).filter(
    lambda text: not any("\ud800" <= sign < "\udc80" for sign in text)
)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
STATES = st.builds(FileState, NAMES, NUMBERS, NUMBERS)
