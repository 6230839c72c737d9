"""What it catches: a job that writes into a folder from which it, or another job, reads.

Why: the second run would read the first run's results as data, and a running job would read its own parts.

Example:

    input: {path: "data/**/*.csv"}
    output: {path: data/results}

How to fix: write to a folder that no input path covers. To read what another job has written, name that job:
`input: {job: NAME}`. Then each row that it commits is read once, also while new rows come.
"""

import posixpath
import re
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from ortdeploy.redaction import shown_path
from ortdeploy.rules.protocol import Finding, Rule

if TYPE_CHECKING:
    from ortdeploy.manifest.spec import Spec

RULE = Rule(id="output-inside-input", summary="Output lies inside an input")

_MAGIC = re.compile(r"[*?\[]")
_BESIDE_PARTS = ("_failed.jsonl", "_run.json", "_output.json")


def check(spec: "Spec") -> Iterator[Finding]:
    for job in spec.jobs:
        for reader in spec.jobs:
            for pattern in reader.input.paths:
                if _covers(shown_path(pattern), job.output.shown, job.output.format):
                    remedy = (
                        "Write to a folder that no input covers."
                        if reader is job
                        else f"Write input: {{job: {job.name}}} to read the rows that it commits, each once."
                    )
                    detail = (
                        f'Job "{job.name}" writes to "{job.output.shown}", which "{pattern}" of job "{reader.name}" '
                        f"reads. {remedy}"
                    )
                    yield Finding(at=(*job.output.at, "path"), detail=detail, job=job.name)


def _covers(pattern: str, folder: str, output_format: str) -> bool:
    """Whether files in the folder can match: the same folder for `a/*`, any below for `a/**` and for a folder."""
    pattern, folder = posixpath.normpath(pattern), posixpath.normpath(folder)
    parent, name = posixpath.split(pattern)
    if "**" in pattern:
        start = pattern.partition("**")[0].rstrip("/")
        return start in {"", "."} or folder == start or folder.startswith(f"{start}/")
    if _MAGIC.search(parent):
        written = (f"part-00000000.{output_format}", *_BESIDE_PARTS)
        return _matches(parent, folder) and any(fnmatchcase(one, name) for one in written)
    if "*" in name or "?" in name:
        return parent == folder
    return pattern == folder


def _matches(pattern: str, folder: str) -> bool:
    """Whether a pattern without `**` matches a folder; its signs match no name that begins with a dot."""
    wanted, names = pattern.split("/"), folder.split("/")
    pairs = zip(wanted, names, strict=False)
    return len(wanted) == len(names) and all(
        fnmatchcase(name, one) and (one.startswith(".") or not name.startswith(".")) for one, name in pairs
    )
