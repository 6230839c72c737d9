"""Finds options that another option refuses or makes ineffective, by `x-relations` in the schemas.

A relation's `when` is a JSON Schema over one session as a whole: `session` and `run` (config entries as the text that
ONNX Runtime gets), `chain` (full provider names), `options` (those of the provider whose schema it is), and the model's
`probe` and `cache` (whether there is one), `external_data`, and whether it is `fetched` by URL.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from ortdeploy.files.urls import is_url
from ortdeploy.manifest.schema_check import make_condition
from ortdeploy.providers.catalogue import Provider, find_provider, full_name
from ortdeploy.providers.options import options_schema, with_texts
from ortdeploy.schemas import load_schema

if TYPE_CHECKING:
    from ortdeploy.manifest.document import Path
    from ortdeploy.manifest.spec import ModelSpec, ProviderSpec, Spec

REFUSED = "refused"
IGNORED = "ignored"


class Relation(Struct, frozen=True, kw_only=True):
    """What becomes of an option that is given (`refused` or `ignored`) in the sessions that `when` describes."""

    option: tuple[str, ...]
    effect: str
    detail: str
    when: Callable[[Any], bool]


@cache
def session_relations() -> tuple[Relation, ...]:
    """Return the relations of a model's own keys, session options and run options."""
    definitions = load_schema("deployment")["$defs"]
    return tuple(relation for name in ("model", "session", "run") for relation in _relations(definitions[name]))


@cache
def provider_relations(provider: Provider) -> tuple[Relation, ...]:
    """Return the relations of a provider's options."""
    return _relations(options_schema(provider))


def _relations(schema: Mapping[str, Any]) -> tuple[Relation, ...]:
    return tuple(
        Relation(
            option=tuple(one["option"]),
            effect=one["effect"],
            detail=one["detail"],
            when=make_condition(one["when"]),
        )
        for one in schema.get("x-relations", ())
    )


def find_relations(spec: "Spec", model: "ModelSpec", effect: str) -> "Iterator[tuple[Path, str]]":
    """Yield the place of every option of a model that meets this effect, and what to say of it; each once."""
    seen: set[tuple[Path, str]] = set()
    for session in model.sessions:
        for found in _of_chain(model, spec.chain_of(session), effect):
            if found not in seen:
                seen.add(found)
                yield found


def _of_chain(model: "ModelSpec", chain: "Sequence[ProviderSpec]", effect: str) -> "Iterator[tuple[Path, str]]":
    view = {
        "session": _with_text(model.session),
        "run": _with_text(model.run),
        "chain": [full_name(entry.name) for entry in chain],
        "probe": model.probe is not None,
        "cache": model.cache,
        "fetched": is_url(model.path),
        **({"external_data": model.external_data} if model.external_data else {}),
    }
    for relation in session_relations():
        if relation.effect == effect and _meets(relation, {**view, "options": {}}):
            yield (*model.at, *relation.option), relation.detail
    for entry in chain:
        provider = find_provider(entry.name)
        for relation in provider_relations(provider) if provider else ():
            if relation.effect == effect and _meets(relation, {**view, "options": dict(entry.options)}):
                at = entry.at if relation.option[0] == "options" else model.at
                yield (*at, *relation.option), relation.detail


def _meets(relation: Relation, view: Mapping[str, Any]) -> bool:
    """Return whether a session has the option of a relation, and is as the relation describes."""
    value: Any = view
    for step in relation.option:
        if step not in value:
            return False
        value = value[step]
    return relation.when(view)


def _with_text(options: Mapping[str, Any]) -> dict[str, Any]:
    """Write config entries as ONNX Runtime gets them: a manifest may say true, 1 or "1"."""
    return with_texts({"config": {}, **options})
