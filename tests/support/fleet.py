"""A status document to begin with, and folders of such as a collector has them."""

import os
from pathlib import Path
from typing import Any

from msgspec import json
from msgspec.structs import replace

from ortdeploy.fleet.document import Clock, Device, Document, Job, Profile, Version, Versions, Wanted
from ortdeploy.state.looks import moment_of

NOW = 1_795_873_265.0
"""Some moment, in seconds since 1970."""
WHEN = moment_of(NOW - 60)
CURRENT = Document(
    format_version=1,
    deployment="demo",
    device=Device(name="line-4"),
    version=Version(commit="a" * 40),
    wanted=Wanted(same=True, state_reached="current"),
    profile=Profile(name="gpu", reason="when", facts={"memory": 8 * 1024**3, "provider CUDA": True}, since=WHEN),
    state="current",
    refusal=None,
    jobs=(Job(name="run", status="done", committed=20, left=0, last_row=WHEN, waiting=1, oldest_waiting=WHEN),),
    versions=Versions(ortdeploy="1", onnxruntime="1.32.0", python="3.11", providers={}),
    clock=Clock(now=WHEN, synchronised=True),
    sequence=1,
    last_look=WHEN,
    next_look=moment_of(NOW + 60),
)


def collected(folder: Path, name: str, *, changed: float = NOW - 60, **differing: Any) -> Path:
    """Write the document of a device into a folder; its file has `changed` at that time."""
    path = folder / f"{name}.json"
    device = differing.pop("device", replace(CURRENT.device, name=name))
    path.write_bytes(json.encode(replace(CURRENT, device=device, **differing)))
    os.utime(path, (changed, changed))
    return path
