"""What it catches: an output whose name ends like that of a file, such as `results.csv`.

Why: an output is a folder, in which each part is a file of its own. The end of its name doesn't choose the format.

Example: output: {path: results.csv}

How to fix: name a folder, and say the format: `output: {path: results, format: csv}`. If `rows_per_part` is at least
the number of rows that an `apply` finds, its results are one file, `results/part-00000000.csv`.
"""

import posixpath
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ortdeploy.diagnostics import Severity
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="output-named-as-file", summary="Output is a folder and is named like a file", severity=Severity.WARNING)
FORMATS = frozenset({"arrow", "csv", "jsonl", "npy", "npz", "parquet"})
"""The output formats, whose own catalogue takes long to load."""


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        folder, (stem, suffix) = job.output.shown, posixpath.splitext(job.output.shown.rstrip("/"))
        kind = suffix.lower().removeprefix(".")
        if kind in FORMATS:
            detail = (
                f'Job "{job.name}" makes a folder "{folder}", with parts such as part-00000000.{job.output.format}. '
                f"For {kind} files in a folder, write output: {{path: {stem}, format: {kind}}}."
            )
            yield Finding(at=(*job.output.at, "path"), detail=detail, job=job.name)
