"""Merges profiles, overlays and --set into a document; each value keeps the place where it was written."""

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, Span, did_you_mean
from ortdeploy.manifest.document import Document, Path, parse_document, stage_diagnostic
from ortdeploy.manifest.profiles import profile_names
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.manifest.when import PROFILES
from ortdeploy.redaction import shown_path


def apply_profile(document: Document, profile: str) -> tuple[Document, tuple[Diagnostic, ...]]:
    """Merge `profiles: NAME:` over the document: mappings are merged, everything else is replaced."""
    known = profile_names(document)
    if profile not in known:
        detail = f'--profile asks for "{profile}". {did_you_mean(profile, known)}'
        return document, (stage_diagnostic("undefined-profile", detail, document.locate_key((PROFILES,))),)
    overlay = _without(_subtree(document, (PROFILES, profile)), ("when",))
    if not isinstance(overlay.data, dict):
        return document, ()  # the schema complains about the profile itself
    return _merge(document, overlay, ()), ()


def apply_overlay(document: Document, overlay: Document) -> Document:
    """Merge another file over the document, as a profile is: mappings are merged, everything else is replaced.

    An overlay that lists sessions takes the place of a model's chain, and one that names a chain that of its sessions.
    """
    models = overlay.data.get("models") if isinstance(overlay.data, dict) else None
    for name, model in models.items() if isinstance(models, dict) else ():
        for given, other in (("sessions", "providers"), ("providers", "sessions")):
            if isinstance(model, dict) and given in model and other not in model:
                document = _without(document, ("models", name, other))
    return _merge(document, overlay, ())


def _without(document: Document, at: Path) -> Document:
    """Return the document without one key of a mapping."""
    if _get(document.data, at) is None:
        return document
    parent = _get(document.data, at[:-1])
    kept = {key: value for key, value in parent.items() if key != at[-1]}
    size = len(at)
    return replace(
        document,
        data=_with(document.data, at[:-1], kept),
        spans={path: span for path, span in document.spans.items() if path[:size] != at},
        keys={path: span for path, span in document.keys.items() if path[:size] != at},
        words={path: word for path, word in document.words.items() if path[:size] != at},
    )


def apply_sets(document: Document, sets: Sequence[str]) -> tuple[Document, tuple[Diagnostic, ...]]:
    """Apply each KEY=VALUE; the value is read as YAML, so 16 is a number and [a, b] a list.

    What YAML reads as a number, a boolean or nothing is text where the manifest takes text alone: a digest of digits.
    """
    problems: list[Diagnostic] = []
    for text in sets:
        key, _, value = text.partition("=")
        source = f"--set {shown_path(key)}"
        span = Span(path=source, line=1, column=1)
        overlay, found = parse_document(value.encode(errors="surrogatepass"), source)
        if overlay is None and not value.strip():
            overlay, found = parse_document(b"''", source)
        at, problem = _find(document, key)
        if at[:1] == (PROFILES,):
            problem = f"{PROFILES}: is read in the manifest alone: a profile lies below --set. Name one with --profile."
        if problem:
            problems += (*found, stage_diagnostic("override-conflict", problem, span))
            continue
        if overlay is not None and _is_no_text(overlay, found):
            as_text = replace(overlay, data=value, words={})
            read = replace(overlay, data=0) if found else overlay  # what YAML readers disagree about is a number
            if _is_mistyped(document, read, at) and not _is_mistyped(document, as_text, at):
                overlay, found = as_text, ()
        problems += found
        document = document if overlay is None else _replace(document, overlay, at)
    return document, tuple(problems)


def _is_no_text(value: Document, problems: Sequence[Diagnostic]) -> bool:
    """Return whether YAML reads a single value as something else than text, or readers disagree about it."""
    disputed = bool(problems) and all(one.rule == "ambiguous-scalar" for one in problems)
    return disputed if isinstance(value.data, str) else not isinstance(value.data, list | dict)


def _is_mistyped(document: Document, value: Document, at: Path) -> bool:
    """Return whether a value at a place is of a type that the manifest does not take there."""
    there = value.spans[()]
    return any(one.rule == "wrong-type" and one.span == there for one in check_document(_replace(document, value, at)))


def _find(document: Document, key: str) -> tuple[Path, str | None]:
    """Turn a dotted key into a path; keys that hold dots themselves (file names, session config) are found whole."""
    at: Path = ()
    node = document.data
    parts = key.split(".")
    if not all(parts):
        return (), f'"{key}" is not a way to a value: keys are separated by single dots.'
    while parts:
        if isinstance(node, list):
            index = int(parts[0]) if parts[0].isdecimal() else -1
            if not 0 <= index < len(node):
                return (
                    (),
                    f'"{_dotted(at)}" is a list of {len(node)} items; "{parts[0]}" is not one of 0 to {len(node) - 1}.',
                )
            at, node, parts = (*at, index), node[index], parts[1:]
        elif isinstance(node, dict) or node is None:
            step = _longest_key(node or {}, parts)
            at, node, parts = (*at, step), (node or {}).get(step), parts[step.count(".") + 1 :]
        else:
            return (), f'"{_dotted(at)}" is a single value; nothing can be set below it.'
    return at, None


def _longest_key(node: dict[str, Any], parts: list[str]) -> str:
    for length in range(len(parts), 0, -1):
        if ".".join(parts[:length]) in node:
            return ".".join(parts[:length])
    return ".".join(parts) if parts[0] == "session" and len(parts) > 1 and not node else parts[0]


def _dotted(at: Path) -> str:
    return ".".join(map(str, at))


def _subtree(document: Document, root: Path) -> Document:
    """Return the part under `root` as a document of its own."""
    data: Any = document.data
    for part in root:
        data = data[part]
    return replace(
        document,
        data=data,
        spans=dict(_below(document.spans, root)),
        keys=dict(_below(document.keys, root)),
        words=dict(_below(document.words, root)),
    )


def _below(table: dict[Path, Any], root: Path) -> Iterator[tuple[Path, Any]]:
    size = len(root)
    return ((path[size:], value) for path, value in table.items() if path[:size] == root)


def _merge(document: Document, overlay: Document, at: Path) -> Document:
    for key, value in overlay.data.items():
        here = (*at, key)
        below = _subtree(overlay, (key,))
        if isinstance(value, dict) and isinstance(_get(document.data, here), dict):
            document = _merge(document, below, here)
        else:
            document = _replace(document, below, here, key_span=overlay.keys.get((key,)))
    return document


def _get(data: Any, at: Path) -> Any:
    for part in at:
        if not isinstance(data, dict) or part not in data:
            return None
        data = data[part]
    return data


def _replace(document: Document, value: Document, at: Path, key_span: Span | None = None) -> Document:
    """Put another document's value and places at `at`, making the mappings on the way."""
    spans = {path: span for path, span in document.spans.items() if path[: len(at)] != at}
    keys = {path: span for path, span in document.keys.items() if path[: len(at)] != at or path == at}
    words = {path: word for path, word in document.words.items() if path[: len(at)] != at}
    for size in range(len(at) + 1):
        spans.setdefault(at[:size], value.spans[()])
    keys[at] = key_span or value.spans[()]
    spans.update({(*at, *path): span for path, span in value.spans.items()})
    keys.update({(*at, *path): span for path, span in value.keys.items()})
    words.update({(*at, *path): word for path, word in value.words.items()})
    data = _with(document.data, at, value.data)
    return replace(document, data=data, spans=spans, keys=keys, words=words)


def _with(data: Any, at: Path, value: Any) -> Any:
    if not at:
        return value
    head, rest = at[0], at[1:]
    if isinstance(data, list) and isinstance(head, int):
        return [_with(item, rest, value) if index == head else item for index, item in enumerate(data)]
    changed = dict(data or {})
    changed[str(head)] = _with(changed.get(str(head)), rest, value)
    return changed
