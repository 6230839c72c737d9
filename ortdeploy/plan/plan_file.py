"""Turns plans and other frozen data into JSON and back, field for field; `planning/saved_plan` is about plan files."""

import hashlib
import json
import os
import re
import types
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from ortdeploy.facts.data import FileState, FileStates
from ortdeploy.plan.masked import masked_step
from ortdeploy.plan.selection import keep_jobs
from ortdeploy.plan.steps import LoadAdapter, OpenSession, Plan, PlannedCheck, RunJob, Step

_STEPS = {"open-session": OpenSession, "load-adapter": LoadAdapter, "run-job": RunJob}
STEP_NAMES = {kind: name for name, kind in _STEPS.items()}


def decode_plan(data: Any) -> Plan:
    """Turn what `encode` made of a plan back into it. Raises TypeError and KeyError where it is something else."""
    plan: Plan = decode(Plan, data)
    return plan


def decode_check(data: Any) -> PlannedCheck:
    """Turn what `encode` made of a planned check back into it."""
    check: PlannedCheck = decode(PlannedCheck, data)
    return check


def encode(value: Any, *, packed: bool = False) -> Any:
    """Turn the plan's dataclasses into JSON values; a step carries its kind under `step`.

    Lists of files become a few long texts if they are to be `packed`, for a reader of our own.
    """
    if value is None or isinstance(value, str | int | float):  # as most are
        return value
    if is_dataclass(value) and not isinstance(value, type):
        data = {field.name: encode(getattr(value, field.name), packed=packed) for field in fields(value)}
        return {"step": STEP_NAMES[type(value)], **data} if type(value) in STEP_NAMES else data
    if isinstance(value, Mapping):
        return {key: encode(item, packed=packed) for key, item in value.items()}
    if isinstance(value, FileState):
        return value._asdict()
    if isinstance(value, FileStates) and packed:
        return {"files": len(value), "packed": [b64encode(block).decode() for block in value.blocks]}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [encode(item, packed=packed) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return b64encode(value).decode() if isinstance(value, bytes) else value


def decode(kind: Any, value: Any) -> Any:
    """Turn a JSON value into what a type hint asks for. Raises TypeError where it is something else."""
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{field.name: decode(hints[field.name], value[field.name]) for field in fields(kind)})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return _decode_union(arguments, value)
    if origin is tuple:
        return _decode_tuple(arguments, value)
    if origin is frozenset:
        return frozenset(decode(arguments[0], item) for item in _expect(list, value))
    if origin is Sequence:
        return _decode_files(value)
    if origin is Mapping:
        return {key: decode(arguments[1], item) for key, item in _expect(dict, value).items()}
    if kind is bytes:
        return b64decode(_expect(str, value), validate=True)
    return value if kind is Any else _expect(kind, value)


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _decode_union(kinds: tuple[Any, ...], value: Any) -> Any:
    if value is None and type(None) in kinds:
        return None
    if isinstance(value, dict) and not any(get_origin(kind) is Mapping for kind in kinds):
        known = next((kind for kind in kinds if is_dataclass(kind) and kind not in STEP_NAMES), None)
        return decode(known or _STEPS[value["step"]], value)
    for kind in kinds:
        plain = get_origin(kind) or kind
        if plain is tuple and isinstance(value, list):
            return decode(kind, value)
        if plain is Mapping and isinstance(value, dict):
            return value
        if plain is not tuple and type(value) is plain:
            return value
    raise TypeError(value)


def _decode_tuple(kinds: tuple[Any, ...], value: Any) -> tuple[Any, ...]:
    items = _expect(list, value)
    if len(kinds) == 2 and kinds[1] is Ellipsis:  # noqa: PLR2004  tuple[X, ...]
        return tuple(decode(kinds[0], item) for item in items)
    return tuple(decode(kind, item) for kind, item in zip(kinds, items, strict=True))


def _decode_files(value: Any) -> FileStates:
    """Turn files into the list that they were; the only sequences in a plan that are no tuples."""
    if isinstance(value, list):
        files = [_expect(dict, one) for one in value]
        return FileStates.pack(
            [(_expect(str, one["path"]), _expect(int, one["size"]), _expect(int, one["mtime_ns"])) for one in files]
        )
    packed = _expect(dict, value)
    return FileStates([b64decode(block, validate=True) for block in packed["packed"]], packed["files"])


def _expect(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def plan_digest(plan: Plan, job: str) -> str:
    """Return the SHA-256 of what a plan says of one job.

    How far the job is does not change it, nor do secrets, nor where the manifest's folder is mounted.
    """
    steps = [_lasting(step) for step in keep_jobs(plan, [job]).steps]
    text = json.dumps([encode(masked_step(step)) for step in steps], sort_keys=True)
    return hashlib.sha256(without_folder(text, json.dumps(plan.folder)[1:-1]).encode()).hexdigest()


def without_folder(text: str, folder: str) -> str:
    """Return a text with the paths in it that lie below a folder relative to that."""
    if folder == os.path.dirname(folder):  # noqa: PTH120  the file system's root stands in every path
        return text
    return re.sub(rf"(?<![\w./\\~-]){re.escape(folder)}(?![\w.~-])", ".", text)


def _lasting(step: Step) -> Step:
    """Return what of a step is the same however far the job is, whoever reads it, and whatever room there is."""
    if isinstance(step, OpenSession):
        return replace(step, tried_layouts=())
    return _lasting_job(step) if isinstance(step, RunJob) else step


def _lasting_job(step: RunJob) -> RunJob:
    upstream = step.input.upstream
    return replace(
        step,
        input=replace(
            step.input,
            files=(),
            gone=(),
            rows=None,
            first_row=0,
            rerun=(),
            rerun_rows=0,
            rows_before=0,
            upstream=upstream and replace(upstream, digests=(), superseded=0),
        ),
        output=replace(step.output, committed_rows=0, replaces=None, aside=None, upgraded_at=0, changed=(), readers=()),
        limits=replace(step.limits, forecast=None),
        retry=False,
        letters=None,
    )
