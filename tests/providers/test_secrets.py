"""Which options are secrets is known by their names, so that a schema is read only where a name speaks of one."""

import json

import pytest

from ortdeploy.files.urls import MASK
from ortdeploy.providers import secrets
from ortdeploy.redaction import is_secret_name
from ortdeploy.schemas import schema_names, schema_text


def _secret_options(value: object, name: str = "") -> list[str]:
    """Return the names of what a schema declares to be secrets."""
    if isinstance(value, list):
        return [found for item in value for found in _secret_options(item)]
    if not isinstance(value, dict):
        return []
    own = [name] if value.get("x-secret") is True else []
    return own + [found for key, item in value.items() for found in _secret_options(item, key)]


def test_every_declared_secret_has_a_name_that_speaks_of_one() -> None:
    declared = [one for name in schema_names() for one in _secret_options(json.loads(schema_text(name)))]
    assert declared
    assert list(filter(is_secret_name, declared)) == declared


def test_no_schema_is_read_for_options_whose_names_speak_of_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_name: str) -> dict[str, object]:
        raise AssertionError("a schema was read")

    monkeypatch.setattr("ortdeploy.providers.options.load_schema", refuse)
    monkeypatch.setattr(secrets, "load_schema", refuse)
    secrets._declared.cache_clear()  # noqa: SLF001  another test may have filled it
    settings = {"intra_op_num_threads": 1, "config": {"session.use_env_allocators": "1"}}
    assert secrets.masked_settings("session", settings) == settings
    assert secrets.masked_options("CPUExecutionProvider", {"use_arena": "1"}) == {"use_arena": "1"}


def test_a_declared_secret_is_masked_and_a_declared_name_of_a_key_that_is_none_is_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run = {"config": {"azure.auth_key": "k", "other.api_key": "k"}}
    assert secrets.masked_settings("run", run) == {"config": {"azure.auth_key": MASK, "other.api_key": MASK}}
    monkeypatch.setattr(secrets, "_declared", lambda _part: {"api_key": {"type": "string"}})
    assert secrets.masked_settings("session", {"api_key": "shown"}) == {"api_key": "shown"}
