"""Checks a document against `schemas/`. No other module uses jsonschema, which is imported only if something is wrong.

A JSON Schema error is turned into one of four diagnostics (unknown-key, missing-key, wrong-type, value-not-allowed),
each in words about the manifest and never about the schema. Errors are Any: half of a ValidationError's attributes
are typed as perhaps unset, which they never are for errors of iter_errors.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, Span
from ortdeploy.manifest import advice
from ortdeploy.manifest.document import Document, Path, stage_diagnostic
from ortdeploy.manifest.quick_check import UnsupportedSchemaError, fits, fits_schema
from ortdeploy.manifest.scalars import Scalar, resolve_plain
from ortdeploy.redaction import is_secret_name, without_secrets
from ortdeploy.schemas import BASE_URI, SUFFIX, is_document_file, load_schema, matches

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator
    from referencing import Registry, Resource

_TYPE_NAMES = {
    "array": "a list",
    "boolean": "true or false",
    "integer": "a whole number",
    "null": "nothing",
    "number": "a number",
    "object": "a mapping",
    "string": "text",
}


def _is_whole(_: Any, value: Any) -> bool:
    """Return whether a value is written as a whole number; JSON Schema itself takes 64.0 for one."""
    return isinstance(value, int) and not isinstance(value, bool)


def _check_content(validator: Any, schema: Any, text: Any, around: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what is wrong with a JSON document that stands as text in an option; a file's name is none."""
    from jsonschema import ValidationError  # noqa: PLC0415  takes longer than all the rest of a check

    if not isinstance(text, str) or around.get("contentMediaType") != "application/json" or is_document_file(text):
        return
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        yield ValidationError(f"is not JSON ({error})", validator="contentMediaType")
        return
    yield from validator.descend(document, schema)


def _check_pattern(_: Any, wanted: str, text: Any, _around: Any) -> Iterator[Any]:
    from jsonschema import ValidationError  # noqa: PLC0415  as above

    if isinstance(text, str) and not matches(wanted, text):
        yield ValidationError(f"{text!r} does not match {wanted!r}")


def _check_keys_like(validator: Any, wanted: Mapping[str, Any], value: Any, _around: Any) -> Iterator[Any]:
    """Check the values of keys that match a pattern."""
    for key in value if isinstance(value, dict) else ():
        for pattern, schema in wanted.items():
            if matches(pattern, key):
                yield from validator.descend(value[key], schema, path=key, schema_path=pattern)


def _check_other_keys(validator: Any, wanted: Any, value: Any, around: Mapping[str, Any]) -> Iterator[Any]:
    """Check keys that have no property and match no pattern."""
    from jsonschema import ValidationError  # noqa: PLC0415  as above

    known, patterns = around.get("properties", {}), around.get("patternProperties", {})
    keys = value if isinstance(value, dict) else ()
    others = [key for key in keys if key not in known and not any(matches(one, key) for one in patterns)]
    if wanted is False and others:
        yield ValidationError(f"Additional properties are not allowed: {others!r}")
    elif isinstance(wanted, dict):
        for key in others:
            yield from validator.descend(value[key], wanted, path=key)


@cache
def _validator_class() -> "type[Draft202012Validator]":
    from jsonschema import Draft202012Validator  # noqa: PLC0415  takes longer than all the rest of a check
    from jsonschema.validators import extend  # noqa: PLC0415

    made: type[Draft202012Validator] = extend(  # type: ignore[no-untyped-call]
        Draft202012Validator,
        validators={
            "contentSchema": _check_content,
            "pattern": _check_pattern,
            "patternProperties": _check_keys_like,
            "additionalProperties": _check_other_keys,
        },
        type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_whole),
    )
    return made


@cache
def _validator(name: str) -> "Draft202012Validator":
    return _validator_class()(load_schema(name), registry=_registry())


def make_condition(schema: Mapping[str, Any]) -> Callable[[Any], bool]:
    """Return whether a value is what a JSON Schema describes, as a function of the value."""

    def holds(value: Any) -> bool:
        try:
            return fits_schema(schema, value)
        except UnsupportedSchemaError:
            return bool(_validator_class()(schema).is_valid(value))

    return holds


def _registry() -> "Registry[Any]":
    from referencing import Registry  # noqa: PLC0415  comes with jsonschema

    return Registry(retrieve=_retrieve)  # type: ignore[call-arg]  # an alias that attrs makes


def _retrieve(uri: str) -> "Resource[Any]":
    """Read a schema that another refers to, when it is needed: a provider's options.

    Without its `$schema`, for which jsonschema would take a validator of its own that does not know our keywords.
    """
    from referencing import Resource  # noqa: PLC0415  comes with jsonschema
    from referencing.jsonschema import DRAFT202012  # noqa: PLC0415

    name = uri.removeprefix(BASE_URI).removesuffix(SUFFIX)
    contents = {key: value for key, value in load_schema(name).items() if key != "$schema"}
    return Resource.from_contents(contents, default_specification=DRAFT202012)


def check_option_document(provider: str, option: str, text: str) -> tuple[str, ...]:
    """Return what is wrong with the JSON document that an option of a provider names as a file."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        return (f"It is not JSON ({error}).",)
    top = Span(path="", line=1, column=1)
    document = Document(path="", data={option: content}, spans={(): top}, keys={}, words={})
    return tuple(one.detail for one in check_document(document, f"providers/{provider}"))


_WHOLE = {"deployment": "the manifest", "device": "the device file", "plan": "the plan file"}


def check_document(document: Document, schema: str = "deployment") -> tuple[Diagnostic, ...]:
    """Return everything about the document that the schema does not allow."""
    if _is_surely_right(document.data, schema):
        return ()
    document = replace(document, whole=_WHOLE.get(schema, "the document"))
    definitions = load_schema(schema).get("$defs", {})
    leaves = [leaf for error in _validator(schema).iter_errors(document.data) for leaf in _leaves(error, definitions)]
    mistyped = {tuple(leaf.absolute_path) for leaf in leaves if leaf.validator == "type"}
    wanted = [leaf for leaf in leaves if leaf.validator == "type" or tuple(leaf.absolute_path) not in mistyped]
    return tuple(diagnostic for leaf in wanted for diagnostic in _diagnose(leaf, document))


def _is_surely_right(data: Any, schema: str) -> bool:
    try:
        return fits(schema, data)
    except (UnsupportedSchemaError, RecursionError):
        return False


def _leaves(error: Any, definitions: Mapping[str, Any]) -> Iterator[Any]:
    """Replace the error of an `anyOf` by those of the alternative that the user most likely meant."""
    if error.validator != "anyOf":
        yield error
        return
    branches: dict[int, list[Any]] = {}
    for child in error.context or ():
        branches.setdefault(int(child.relative_schema_path[0]), []).append(child)
    meant = min(branches, key=lambda index: _distance(error, index, branches[index], definitions))
    if _distance(error, meant, branches[meant], definitions)[0] and _is_step(error):
        yield error
        return
    if all(_is_type_error_here(children) for children in branches.values()):
        yield error
        return
    for child in branches[meant]:
        yield from _leaves(child, definitions)


def _is_type_error_here(children: list[Any]) -> bool:
    return any(child.validator in {"type", "const"} and not child.path for child in children)


def _is_step(error: Any) -> bool:
    """Return whether the alternatives are a step catalogue's."""
    named = all("$ref" in branch for branch in error.validator_value)
    return isinstance(error.instance, dict) and named and len(error.validator_value) > 2  # noqa: PLR2004  a catalogue


def _distance(error: Any, index: int, children: list[Any], definitions: Mapping[str, Any]) -> tuple[bool, bool, int]:
    """Order alternatives: of another type or without its naming key last, then by the number of errors."""
    schema = error.validator_value[index]
    if "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    naming_key = (schema.get("required") or [None])[0]
    lacks_key = naming_key is not None and isinstance(error.instance, dict) and naming_key not in error.instance
    return lacks_key, _is_type_error_here(children), len(children)


def _diagnose(error: Any, document: Document) -> Iterator[Diagnostic]:
    at: Path = tuple(error.absolute_path)
    if error.validator == "additionalProperties":
        yield from _unknown_keys(error, at, document)
    elif error.validator == "required":
        yield from _missing_keys(error, at, document)
    elif error.validator == "anyOf" and _is_step(error):
        yield _unknown_step(error, at, document)
    elif error.validator in {"type", "anyOf"} or (error.validator == "const" and at in document.words):
        yield stage_diagnostic("wrong-type", _wrong_type(error, at, document), document.locate(at))
    else:
        not_json = error.validator == "contentMediaType"  # whose words are our own
        detail = f"{_name(at, document)} {error.message if not_json else _restriction(error)}"
        yield stage_diagnostic("value-not-allowed", detail if detail[-1] in ".?" else f"{detail}.", document.locate(at))


def _unknown_keys(error: Any, at: Path, document: Document) -> Iterator[Diagnostic]:
    known, patterns = error.schema.get("properties", {}), error.schema.get("patternProperties", {})
    for key in error.instance:
        if key not in known and not any(matches(pattern, key) for pattern in patterns):
            is_manifest = document.whole == _WHOLE["deployment"]
            where = (is_manifest and advice.on_key(key, at, error.instance)) or advice.meant_key(key, known)
            if error.parent is not None and key in _steps(error.parent):
                where = f"{key} is a step of its own: write it as another item of the list."
            detail = f'"{key}" is not a key of {_name(at, document)}. {where}'
            yield stage_diagnostic("unknown-key", detail, document.locate_key((*at, key)))


def _missing_keys(error: Any, at: Path, document: Document) -> Iterator[Diagnostic]:
    for key in error.validator_value:
        if key not in error.instance and error.message.startswith(repr(key)):
            meaning = error.schema.get("properties", {}).get(key, {})
            detail = f'{_name(at, document)} needs the key "{key}"{_meaning(key, meaning)}.'
            yield stage_diagnostic("missing-key", detail, document.locate_key(at))


def _meaning(key: str, schema: dict[str, Any]) -> str:
    if "const" in schema:
        return f", which is always {key}: {_shown(schema['const'])}"
    return f": {schema['title'].lower()}" if "title" in schema else ""


def _unknown_step(error: Any, at: Path, document: Document) -> Diagnostic:
    names = list(_steps(error))
    if not error.instance:
        return stage_diagnostic(
            "missing-key", f"{_name(at, document)} names no step. {advice.meant_key('', names)}", document.locate(at)
        )
    written = next(iter(error.instance))
    detail = f'{_name(at, document)}: "{written}" is not a step. {advice.meant_key(written, names)}'
    return stage_diagnostic("unknown-key", detail, document.locate_key((*at, written)))


def _steps(error: Any) -> dict[str, Any]:
    """Return the schemas of a step catalogue's steps, by their names; empty if the alternatives are something else."""
    if error.validator != "anyOf" or not all("$ref" in branch for branch in error.validator_value):
        return {}
    definitions = load_schema("deployment")["$defs"]
    refs = [branch["$ref"].rpartition("/")[2] for branch in error.validator_value]
    return {ref.removesuffix("Step"): definitions.get(ref, {}) for ref in refs}


def _wrong_type(error: Any, at: Path, document: Document) -> str:
    wanted = " or ".join(dict.fromkeys(_TYPE_NAMES.get(name, name) for name in _wanted_types(error)))
    key = _naming_key(error)
    other = f"not {_shown_of(error)}" if key is None else f'or a mapping with the key "{key}"'
    detail = f"{_name(at, document)} must be {wanted}, {other}."
    if at in document.words:
        word = document.words[at]
        read = f"YAML reads the bare word {word} as {_shown_of(error)}"
        return f'{detail} {read}; write "{word}" in quotes if text is meant.'
    if error.instance is None:
        return f"{detail} Give it a value, or remove the key."
    if isinstance(error.instance, str) and error.instance.lower() in {"yes", "no", "on", "off"} and "true" in wanted:
        return f"{detail} Write true or false."
    types = set(_wanted_types(error))
    if document.whole == _WHOLE["deployment"]:
        in_list = "array" in types and "providers" in at[-2:]
        is_provider = "providers" in at[-2:] or key == "provider"
        provider = advice.on_provider_as_key(error.instance, in_list=in_list) if is_provider else None
        if better := provider or advice.on_step_as_text(error.instance, _steps(error)):
            return f"{detail} {better}"
    return f"{detail}{_example(error)}" if {"array", "object", "string"} & types else detail


def _naming_key(error: Any) -> str | None:
    """Return the key that a mapping lacks to be one of the alternatives; None if the value is none, or none may be."""
    if error.parent is None or error.parent.validator != "anyOf" or not isinstance(error.instance, dict):
        return None
    keys = (branch["required"][0] for branch in error.parent.validator_value if branch.get("required"))
    return next(keys, None)


def _wanted_types(error: Any) -> Iterator[str]:
    if error.validator == "type":
        wanted = error.validator_value
        yield from [wanted] if isinstance(wanted, str) else wanted
    elif error.validator == "const":
        constant = error.validator_value
        shown = json.dumps(constant) if isinstance(constant, bool) else str(constant)
        yield "integer" if type(constant) is int else shown
    else:
        for child in error.context or ():
            if child.validator in {"type", "const"} and not child.path:
                yield from _wanted_types(child)


def _restriction(error: Any) -> str:
    """Say in words what the value is not allowed to be."""
    value, limit = _shown_of(error), error.validator_value
    match error.validator:
        case "enum":
            near = advice.meant_choice(error.instance, map(str, limit)) if isinstance(error.instance, str) else None
            hint = f' Did you mean "{near}"?' if near else ""
            allowed = ", ".join(choice if isinstance(choice, str) else json.dumps(choice) for choice in limit)
            return f"is {value}; allowed are {allowed}.{hint}"
        case "const":
            return f"must be {_shown(limit)}, not {value}"
        case "minimum" | "exclusiveMinimum":
            bound = f"is {value}; {'at least' if error.validator == 'minimum' else 'more than'} {limit} is allowed"
            return bound + advice.on_size(error.instance, tuple(error.absolute_path))
        case "maximum":
            return f"is {value}; at most {limit} is allowed"
        case "minItems" | "maxItems":
            bounds = error.schema.get("minItems"), error.schema.get("maxItems")
            side = "least" if error.validator == "minItems" else "most"
            wanted = f"{bounds[0]}" if bounds[0] == bounds[1] else f"at {side} {limit}"
            return f"has {len(error.instance)} items; it takes {wanted}"
        case "minLength" | "minProperties":
            return "is empty"
        case "maxLength":
            return f"is longer than {limit} characters"
        case "uniqueItems":
            return "names the same thing twice"
    description = _told_in_schema(error, "description")
    meaning = f" {description}" if description else ""
    return f"is {value}, which is not of the form that is wanted.{meaning}{_example(error)}"


def _example(error: Any) -> str:
    """Return the first example of a value, as a sentence; empty if there is none."""
    examples = _told_in_schema(error, "examples")
    if not examples:
        return ""
    first = examples[0]
    is_plain = isinstance(first, str) and resolve_plain(first) == Scalar(first)
    return f" For example: {first if is_plain else json.dumps(first)}."


def _told_in_schema(error: Any, key: str) -> Any:
    """Return what the schema of a value says under a key, or the schemas of whose alternatives that is one; or None."""
    at = error.absolute_path
    while error is not None and error.absolute_path == at:
        if key in error.schema:
            return error.schema[key]
        error = error.parent
    return None


def _shown_of(error: Any) -> str:
    """Return the value that a schema does not allow, unless it is a secret."""
    at = error.absolute_path
    secret = error.schema.get("x-secret") or (at and is_secret_name(str(at[-1])))
    return "what is written there, a secret" if secret and error.instance is not None else _shown(error.instance)


def _shown(value: Any) -> str:
    if value is None:
        return "empty (null)"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str):
        value = without_secrets(value)  # before it is cut: half a URL shows its user
        shown = value if len(value) <= 60 else f"{value[:57]}…"  # noqa: PLR2004  one line of a terminal
        return f'the text "{shown}"'
    return str(value)


def _name(at: Path, document: Document) -> str:
    """`jobs.read.batch.size`, the way that --set takes it; `steps[1].output` where no --set reaches."""
    if document.whole == _WHOLE["deployment"]:
        return ".".join(str(part) for part in at) or document.whole
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in at)
    return "".join(parts).removeprefix(".") or document.whole
