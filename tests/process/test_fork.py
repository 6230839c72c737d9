"""A fork ends with who asks it, and as soon as the run that asked is to stop."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from ortdeploy.process.fork import ask_fork, can_fork


@pytest.mark.skipif(not can_fork(), reason="this system cannot fork")
def test_a_fork_that_hangs_is_killed_when_the_run_is_to_stop() -> None:
    reading, writing = os.pipe()

    def hang() -> Iterator[Mapping[str, Any]]:
        os.read(reading, 1)
        yield {}

    answer = ask_fork(hang, seconds=600, stopped=lambda: True)
    os.close(reading)
    os.close(writing)
    assert answer.late
    assert answer.messages == []
