"""Diagnostics as SARIF 2.1.0, for code-scanning dashboards."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from ortdeploy.diagnostics import Diagnostic

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def render_diagnostics(diagnostics: Sequence[Diagnostic], page: Callable[[str], str], version: str) -> str:
    """Return the SARIF log of one run; `page` returns the text of a rule's page."""
    rules = {diagnostic.rule: diagnostic.summary for diagnostic in diagnostics}
    driver = {
        "name": "ortdeploy",
        "version": version,
        "rules": [
            {"id": rule, "shortDescription": {"text": summary}, "fullDescription": {"text": page(rule)}}
            for rule, summary in sorted(rules.items())
        ],
    }
    results = [_result(diagnostic) for diagnostic in diagnostics]
    run = {"tool": {"driver": driver}, "columnKind": "unicodeCodePoints", "results": results}
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _result(diagnostic: Diagnostic) -> dict[str, Any]:
    region = {"startLine": diagnostic.span.line, "startColumn": diagnostic.span.column}
    uri = quote(os.fsencode(PurePath(diagnostic.span.path).as_posix()), safe="/:~,()!$&*+;=@")
    place = {"artifactLocation": {"uri": uri}, "region": region}
    return {
        "ruleId": diagnostic.rule,
        "level": str(diagnostic.severity),
        "message": {"text": f"{diagnostic.summary}. {diagnostic.detail}"},
        "locations": [{"physicalLocation": place}],
        "properties": {
            "certainty": diagnostic.certainty,
            **({"devices": list(diagnostic.devices)} if diagnostic.devices else {}),
        },
    }
