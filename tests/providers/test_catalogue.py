"""What schemas say of chains is what the catalogue says of providers."""

import json

from ortdeploy.providers.catalogue import CPU, PROVIDERS
from ortdeploy.schemas import schema_text

MODEL, SESSION = (json.loads(schema_text("deployment"))["$defs"][name]["x-relations"] for name in ("model", "session"))
LIVING = [one for one in PROVIDERS if one.claims_nodes and one.name != CPU]


def test_compiling_providers_are_the_same_in_both() -> None:
    compiling = {one.name for one in LIVING if one.compiles}
    (relation,) = (one for one in SESSION if one["option"][-1] == "session.disable_model_compile")
    assert set(relation["when"]["properties"]["chain"]["not"]["contains"]["enum"]) == compiling


def test_providers_without_a_cache_are_the_same_in_both() -> None:
    (chain,) = (one["when"]["properties"]["chain"] for one in MODEL if one["option"] == ["cache"])
    assert set(chain["contains"]["enum"]) == {one.name for one in LIVING if not one.writes_context}
    assert set(chain["not"]["contains"]["enum"]) == {one.name for one in LIVING if one.writes_context}
    assert all(one.compiles for one in LIVING if one.writes_context)
