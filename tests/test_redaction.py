"""Secrets are masked at any depth, and nothing else is."""

from ortdeploy.files.urls import MASK
from ortdeploy.redaction import masked


def test_values_whose_name_speaks_of_a_secret_are_masked_at_any_depth() -> None:
    event = {
        "event": "session.opened",
        "options": [{"azure.auth_key": "k", "device_id": 0, "inner": {"Password": "p"}}],
    }
    assert masked("", event) == {
        "event": "session.opened",
        "options": [{"azure.auth_key": MASK, "device_id": 0, "inner": {"Password": MASK}}],
    }


def test_nothing_is_made_of_nothing_and_plain_keys_stay() -> None:
    assert masked("token", None) is None
    assert masked("key", {"row": 1}) == {"row": 1}
