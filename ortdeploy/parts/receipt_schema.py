"""The form of what a report says of sessions and memory: receipts are checked with it, because others write them."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from ortdeploy.plan.plan_file import decode


class _Session(Struct, frozen=True, kw_only=True):
    session: str
    instance: int
    providers: tuple[str, ...]
    placement: Mapping[str, int]
    cache: str | None
    batches: int
    batch_size: int | None
    rows: int
    session_run: Mapping[str, int | float | None]
    failure: str | None


class _Component(Struct, frozen=True, kw_only=True):
    path: str
    sha256: str
    session: str
    providers: tuple[Mapping[str, Any], ...]
    placement: Mapping[str, int]


class _Heat(Struct, frozen=True, kw_only=True):
    celsius: float
    sensor: str


class _Machine(Struct, frozen=True, kw_only=True):
    temperature: _Heat | None
    energy_joules: Mapping[str, float]
    devices: tuple[Mapping[str, int | float | str], ...]


class _Ran(Struct, frozen=True, kw_only=True):
    session: str | None
    sessions_passed_over: Mapping[str, str]
    layout: str | None
    providers: tuple[str, ...]
    placement: Mapping[str, int]
    sessions: tuple[_Session, ...]
    memory: Mapping[str, Mapping[str, int | None]]
    components: Mapping[str, _Component]
    machine: _Machine | None


def check_ran(ran: Mapping[str, Any]) -> None:
    """Raise TypeError or LookupError if entries have not the form that `JobReport.ran` returns."""
    found: _Ran = decode(_Ran, {"components": {}, "machine": None, **ran})
    if not {"resident_bytes", "proportional_bytes"} <= found.memory["last_rows"].keys():
        raise LookupError("memory after the last rows")
    for device in found.machine.devices if found.machine else ():
        if [name for name, value in device.items() if isinstance(value, str)] != ["device"]:
            raise TypeError(f"a device is {device!r}")
