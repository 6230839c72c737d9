"""Reads what `ortdeploy diff` compares: manifests, saved plans, reports of runs and device files."""

import json
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.diagnostics import Diagnostic, has_errors
from ortdeploy.manifest.document import Document, parse_document, read_bounded
from ortdeploy.manifest.loader import LoadOptions, is_device_file, load_manifest
from ortdeploy.manifest.schema_check import check_document
from ortdeploy.planning.differences import Value
from ortdeploy.planning.plan_file.saved_plan import MAX_BYTES, is_plan_file, read_plan_file
from ortdeploy.providers.secrets import masked_document, remember_secrets

MANIFEST = "a manifest"
PLAN = "a saved plan"
REPORT = "a report"
_COURSE = frozenset({"events", "samples", "timeline"})
"""The times in a report, which differ in any two runs."""
DEVICE = "a device file"


class Comparable(Struct, frozen=True, kw_only=True):
    """A document by its kind; `value` is None if it cannot be read, and `diagnostics` say why."""

    kind: str
    value: Value | None
    diagnostics: tuple[Diagnostic, ...] = ()


def read_comparable(path: str, options: LoadOptions) -> Comparable:
    """Read a file of any of the four kinds. Raises OrtdeployError if it cannot be read, or is none of them."""
    raw = read_bounded(path, MAX_BYTES)
    if is_plan_file(raw):
        return _read_plan_or_report(raw, path)
    document, diagnostics = parse_document(raw, path)
    if document is not None and is_device_file(document):
        return _checked(DEVICE, document, (*diagnostics, *check_document(document, "device")))
    loaded = load_manifest(path, replace(options, digest=False))
    if loaded.spec is None:
        return Comparable(kind=MANIFEST, value=None, diagnostics=loaded.diagnostics)
    return _checked(MANIFEST, loaded.spec.document, loaded.diagnostics)


def _read_plan_or_report(raw: bytes, path: str) -> Comparable:
    try:
        data = json.loads(raw)
    except (ValueError, RecursionError):
        data = None  # reported below, as for a plan
    if isinstance(data, dict) and {"run", "job", "identity"} <= data.keys():
        return Comparable(kind=REPORT, value=_value({key: data[key] for key in data if key not in _COURSE}))
    document, diagnostics = read_plan_file(raw, path)
    if document is None:
        return Comparable(kind=PLAN, value=None, diagnostics=diagnostics)
    return _checked(PLAN, document, diagnostics)


def _checked(kind: str, document: Document, diagnostics: tuple[Diagnostic, ...]) -> Comparable:
    value = None if has_errors(diagnostics) else _value(document.data)
    return Comparable(kind=kind, value=value, diagnostics=diagnostics)


def _value(data: Any) -> Value:
    remember_secrets(data)
    return Value(data, masked_document(data))
