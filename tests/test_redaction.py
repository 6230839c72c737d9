"""Secrets are masked at any depth, and nothing else is."""

import pytest

from ortdeploy.files.urls import MASK
from ortdeploy.redaction import masked, shown_arguments


def test_values_whose_name_speaks_of_a_secret_are_masked_at_any_depth() -> None:
    event = {
        "event": "session.opened",
        "options": [{"azure.auth_key": "k", "device_id": 0, "inner": {"Password": "p"}}],
    }
    assert masked("", event) == {
        "event": "session.opened",
        "options": [{"azure.auth_key": MASK, "device_id": 0, "inner": {"Password": MASK}}],
    }


@pytest.mark.parametrize("name", ["max_new_token", "max_token", "min-new-token", "numToken"])
def test_a_count_of_tokens_is_none_also_if_its_name_lacks_a_letter(name: str) -> None:
    assert masked(name, 20) == 20


def test_nothing_is_made_of_nothing_and_plain_keys_stay() -> None:
    assert masked("token", None) is None
    assert masked("key", {"row": 1}) == {"row": 1}


def test_words_of_a_command_line_are_shown_without_secrets() -> None:
    words = ["apply", "m.yaml", "--set", "models.m.hf_token=abc", "--set=a.password=b=c", "--job", "token=run"]
    assert shown_arguments([*words, "https://me:pass@host/x"]) == (
        *words[:3], f"models.m.hf_token={MASK}", f"--set=a.password={MASK}", *words[5:], "https://host/x",
    )  # fmt: skip
