"""Turns plans and other frozen data into JSON and back, field for field; `planning/plan_file` is about plan files."""

import hashlib
import json
import os
import re
import types
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, ForwardRef, TypeVar, Union, get_args, get_origin, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from ortdeploy.facts.data import PLAIN, FileState, FileStates
from ortdeploy.files.compact_list import CompactList
from ortdeploy.plan.batching import Batching
from ortdeploy.plan.masked import masked_step
from ortdeploy.plan.pipeline import PlannedPreset, PlannedValue
from ortdeploy.plan.selection import keep_jobs
from ortdeploy.plan.steps import (
    JobInput,
    JobOutput,
    LoadAdapter,
    OpenSession,
    Plan,
    PlannedInput,
    PlannedSession,
    RowCheck,
    RunJob,
    Step,
)

_STEPS: Mapping[str, type[Struct]] = {"open-session": OpenSession, "load-adapter": LoadAdapter, "run-job": RunJob}
LATER: Mapping[type, Mapping[str, Any]] = {
    Batching: {"most": None},
    JobInput: {"dialect": PLAIN, "types": {}},
    JobOutput: {"types": {}, "settled": {}, "recordings": {}},
    OpenSession: {"computes": (), "generates": False, "together": False, "shapes": {}},
    Plan: {"choice": None},
    PlannedInput: {"narrowed_by": None},
    PlannedPreset: {"image_folder": None},
    PlannedValue: {"narrowed_by": None},
    RowCheck: {"may_trap": False},
    RunJob: {"thread_layout": None, "expect": {}},
}
"""Fields that plans in use do not have, with their defaults. A plan that has the default says nothing of them, so that
its digest is what it was."""
ALWAYS_SAID: Mapping[str, Any] = {"rate": None, "exif": True}
"""The settings of input formats that plans in use say of every job, with their defaults."""
STEP_NAMES: Mapping[type[Struct], str] = {kind: name for name, kind in _STEPS.items()}
_Decode = Callable[[Any], Any]
_Kind = TypeVar("_Kind")


def said_fields(value: Struct) -> dict[str, Any]:
    """Return the fields of a record as its JSON has them: without those that have the default of plans without them.

    The settings of an input are among its fields.
    """
    late = LATER.get(type(value), {})
    fields = {name: getattr(value, name) for name in value.__struct_fields__}
    said = {name: item for name, item in fields.items() if name not in late or item != late[name]} if late else fields
    settings = ALWAYS_SAID | said.pop("settings") if isinstance(value, JobInput) else {}
    return said | settings


def encode(value: Any, *, packed: bool = False) -> Any:
    """Turn the plan's dataclasses into JSON values; a step carries its kind under `step`.

    Packed lists become a few long texts if they are to be `packed`, for a reader of our own.
    """
    if value is None or isinstance(value, (str, int, float)):  # as most are
        return value
    kind: Any = type(value)
    if isinstance(value, Struct):
        data = {name: encode(item, packed=packed) for name, item in said_fields(value).items()}
        return {"step": STEP_NAMES[kind], **data} if kind in STEP_NAMES else data
    if isinstance(value, Mapping):
        return {key: encode(item, packed=packed) for key, item in value.items()}
    if isinstance(value, FileState):
        return value._asdict()
    if isinstance(value, CompactList) and packed:
        return {"files": len(value), "packed": list(map(_as_text, value.blocks))}
    if isinstance(value, Sequence) and not isinstance(value, bytes):
        return [encode(item, packed=packed) for item in value]
    if isinstance(value, frozenset):
        return sorted(value)
    return _as_text(value) if isinstance(value, bytes) else value


def _as_text(value: bytes) -> str:
    from base64 import b64encode  # noqa: PLC0415  few plans have bytes

    return b64encode(value).decode()


def _as_bytes(text: Any) -> bytes:
    from base64 import b64decode  # noqa: PLC0415  few plans have bytes

    return b64decode(_expect(str, text), validate=True)


def decode(kind: type[_Kind], value: Any) -> _Kind:
    """Turn what `encode` made of something back into it. Raises TypeError and KeyError where it is something else."""
    hint: Any = kind
    decoded: _Kind = _decoder(hint)(value)
    return decoded


@cache
def _decoder(kind: Any) -> _Decode:
    """Return the function that decodes values of a type hint. Made once for each: a graph has a million values."""
    if _is_record(kind):
        return _record_decoder(kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in {Union, types.UnionType}:
        return _union_decoder(arguments)
    if origin is tuple:
        return _tuple_decoder(arguments)
    if origin is frozenset:
        decode_member = _decoder(arguments[0])
        return lambda value: frozenset(map(decode_member, _expect(list, value)))
    if origin is Sequence:
        return _decode_files
    if isinstance(kind, type) and issubclass(kind, CompactList):
        return partial(_decode_packed, kind)
    if origin is Mapping:
        decode_item = _decoder(arguments[1])
        return lambda value: {key: decode_item(item) for key, item in _expect(dict, value).items()}
    if kind is bytes:
        return _as_bytes
    return (lambda value: value) if kind is Any else partial(_expect, kind)


def _record_decoder(kind: Any) -> _Decode:
    """Return the function that makes a record of a JSON object, which may lack the fields of LATER."""

    def plain(value: Any) -> Any:
        return kind(**{name: decode_field(value[name]) for name, decode_field in _fields(kind)})

    if kind not in LATER:
        return plain
    late = encode(LATER[kind])
    if kind is JobInput:
        return lambda value: plain({**late, **value, "settings": _settings(value)})
    return lambda value: plain({**late, **value})


def _settings(said: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a format among what is said of an input."""
    others = {name: value for name, value in said.items() if name not in JobInput.__struct_fields__}
    return {name: value for name, value in others.items() if name not in ALWAYS_SAID or value != ALWAYS_SAID[name]}


@cache
def _fields(kind: type[Struct]) -> tuple[tuple[str, _Decode], ...]:
    """Return the names of a dataclass's fields, each with the function that decodes it."""
    hints: Mapping[str, Any] = kind.__annotations__
    if any(map(_has_text, hints.values())):
        hints = get_type_hints(kind)
    return tuple((name, _decoder(hints[name])) for name in kind.__struct_fields__)


def _has_text(hint: Any) -> bool:
    """Return whether a part of a type hint is text, because the class that it names came later."""
    return isinstance(hint, str | ForwardRef) or any(map(_has_text, get_args(hint)))


def _is_record(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


def _union_decoder(kinds: tuple[Any, ...]) -> _Decode:
    record: Any = next((kind for kind in kinds if _is_record(kind) and kind not in STEP_NAMES), None)
    origins = {get_origin(kind) or kind for kind in kinds}
    decode_list = next((_decoder(kind) for kind in kinds if get_origin(kind) is tuple), None)

    def decode_one(value: Any) -> Any:
        if value is None and types.NoneType in origins:
            return None
        if isinstance(value, dict):
            return value if Mapping in origins else _decoder(record or _STEPS[value["step"]])(value)
        if isinstance(value, list) and decode_list:
            return decode_list(value)
        if type(value) in origins:
            return value
        raise TypeError(value)

    return decode_one


def _tuple_decoder(kinds: tuple[Any, ...]) -> _Decode:
    decoders = [_decoder(kind) for kind in kinds if kind is not Ellipsis]
    if len(kinds) == 2 and kinds[1] is Ellipsis:  # noqa: PLR2004  tuple[X, ...]
        return lambda value: tuple(map(decoders[0], _expect(list, value)))
    return lambda value: tuple(
        decode_item(item) for decode_item, item in zip(decoders, _expect(list, value), strict=True)
    )


def _decode_files(value: Any) -> CompactList:
    """Turn files into the list that they were; the only sequences in a plan that are no tuples."""
    if isinstance(value, list):
        files = [_expect(dict, one) for one in value]
        return FileStates.pack(
            [(_expect(str, one["path"]), _expect(int, one["size"]), _expect(int, one["mtime_ns"])) for one in files]
        )
    return _decode_packed(FileStates, value)


def _decode_packed(kind: type[CompactList], value: Any) -> CompactList:
    packed = _expect(dict, value)
    return kind(list(map(_as_bytes, packed["packed"])), packed["files"])


def _expect(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


def plan_digest(plan: Plan, job: str) -> str:
    """Return the SHA-256 of what a plan says of one job.

    How far the job is does not change it, nor do secrets, nor where the manifest's folder is mounted, nor what one
    machine forecasts or will measure.
    """
    steps = [_lasting(step) for step in keep_jobs(plan, [job]).steps]
    text = json.dumps([_as_digested(encode(masked_step(step))) for step in steps], sort_keys=True)
    return hashlib.sha256(without_folder(text, json.dumps(plan.folder)[1:-1]).encode()).hexdigest()


def _as_digested(step: dict[str, Any]) -> dict[str, Any]:
    """Return an encoded step without what only says how careful a run is, and with what plans in use have beside it."""
    if "row_check" in step:
        step["row_check"].pop("may_trap", None)
    if "thread_layouts" in step:
        step["tried_layouts"] = []
    return step


def without_folder(text: str, folder: str) -> str:
    """Return a text with the paths in it that lie below a folder relative to that."""
    if folder == os.path.dirname(folder):  # noqa: PTH120  the file system's root stands in every path
        return text
    return re.sub(rf"(?<![\w./\\~-]){re.escape(folder)}(?![\w.~-])", ".", text)


def _lasting(step: Step) -> Step:
    """Return what of a step is the same however far the job is, whoever reads it, and whatever room there is."""
    if isinstance(step, OpenSession):
        return replace(step, candidates=tuple(map(_named, step.candidates)), thread_layouts=())
    return _lasting_job(step) if isinstance(step, RunJob) else step


def _named(session: PlannedSession) -> PlannedSession:
    """Return a session without the forecast of its placement, and without the places of plugins' libraries."""
    providers = tuple(
        one if one.device is None else replace(one, device=replace(one.device, library="")) for one in session.providers
    )
    return replace(session, providers=providers, predicted=None)


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
            types={},
            upstream=upstream and replace(upstream, digests=(), superseded=0),
        ),
        output=replace(
            step.output,
            committed_rows=0,
            replaces=None,
            aside=None,
            upgraded_at=0,
            changed=(),
            readers={},
            settled={},
        ),
        limits=replace(step.limits, forecast=None),
        retry=False,
        letters=None,
        thread_layout=None,
    )
