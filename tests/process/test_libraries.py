"""What the program asks of libraries through the environment."""

import os

import pytest

from ortdeploy.process import libraries
from ortdeploy.process.libraries import set_up_libraries, switch_off_telemetry, users_environment

ASKED = {"ARROW_DEFAULT_MEMORY_POOL": "system", "OPENBLAS_NUM_THREADS": "1", "ORT_DISABLE_TELEMETRY": "1"}


@pytest.fixture(autouse=True)
def begin_without(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ASKED:
        monkeypatch.setenv(name, "")  # so that it is as before when the test has ended
        monkeypatch.delenv(name)
    monkeypatch.setattr(libraries, "_own", set())


def asked(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name in ASKED}


def test_what_the_user_has_not_set_is_set_for_this_program_alone() -> None:
    set_up_libraries()
    assert asked(dict(os.environ)) == ASKED
    assert asked(users_environment()) == {}
    assert users_environment()["PATH"] == os.environ["PATH"]


def test_what_the_user_has_set_stays_for_all_programs() -> None:
    os.environ["OPENBLAS_NUM_THREADS"] = "8"
    set_up_libraries()
    assert asked(users_environment()) == {"OPENBLAS_NUM_THREADS": "8"}


def test_a_library_of_another_program_asks_for_no_more_than_that_nothing_is_sent() -> None:
    switch_off_telemetry()
    assert asked(dict(os.environ)) == {"ORT_DISABLE_TELEMETRY": "1"}
    assert asked(users_environment()) == {}
