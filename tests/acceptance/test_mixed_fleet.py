"""Twelve devices of three kinds through many commits: the table in CI, what each runs, and `fleet` say the same.

A device is a folder with a checkout and state of its own. Commits are good, refused for some devices or for all, or
fail their golden check; applies are killed, a GPU is gone for a while, and somebody edits a checkout. Each row shows
by its value which version made it, and in which profile.
"""

import json
import os
import random
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import Cli, read_rows
from support.effort import effort
from support.forks import CAN_FORK
from support.kills import in_a_process
from support.machines import GIB, Machine
from support.models import scale_model

from ortdeploy.cli.main import run

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_FORK, reason="kills are of forks")]

MANIFEST = """\
version: 1
name: line
models: {m: {path: base.onnx, providers: [CPU]CHECKS}}
jobs: {j: {model: m, input: {path: "inbox/*.npy"}, output: {path: out, columns: [y], on_upgrade: continue}}}
profiles:
  gpu: {when: {provider: CUDA, memory: ">= 6GiB"}, models: {m: {path: gpu.onnx}}}
  paint: {when: {labels: {line: paint}, not: {provider: CUDA}}, models: {m: {path: paint.onnx}}}
  otherwise: base
"""
PROFILES = ("base", "gpu", "paint")
CHECKED = ", gate: true, checks: [golden]"

BROKEN: dict[str, tuple[Callable[[str], str], str, frozenset[str]]] = {
    "memory": (
        lambda text: text.replace("gpu.onnx}}}", "gpu.onnx}}, limits: {memory: 1MiB}}"),
        "over-memory-limit",
        frozenset({"gpu"}),
    ),
    "model": (lambda text: text.replace("paint.onnx", "gone.onnx"), "unreadable-model", frozenset({"paint"})),
    "two": (
        lambda text: text.replace("otherwise:", "cuda: {when: {provider: CUDA}}\n  otherwise:"),
        "ambiguous-profile",
        frozenset({"gpu"}),
    ),
    "none": (lambda text: text.replace("otherwise: base", "otherwise: refuse"), "no-profile", frozenset({"base"})),
    "text": (lambda text: f"{text}jobz: {{}}\n", "unknown-key", frozenset(PROFILES)),
}
"""What a commit does to the manifest, the rule that refuses it, and on devices of which profiles."""


@dataclass
class Device:
    """A device: its folder, which profile holds there, and the values of the rows that it should have written."""

    folder: Path
    machine: Machine
    profile: str
    rows: list[float] = field(default_factory=list)
    good: int | None = None
    refused: str | None = None

    @property
    def name(self) -> str:
        return self.machine.name


def sha(commit: int) -> str:
    return f"{commit + 1:040x}"


def value(commit: int, profile: str) -> float:
    return float(10 * (commit + 1) + PROFILES.index(profile))


def devices(root: Path) -> list[Device]:
    """Four devices of each kind; those with a GPU have both labels."""
    found = []
    for number in range(12):
        profile, opens = PROFILES[number % 3], ("CUDA", "CPU") if number % 3 == 1 else ("CPU",)
        labels = {"line": "paint"} if profile == "paint" or number == 1 else {"site": f"{number}"}
        machine = Machine(name=f"box-{number:02}", labels=labels, opens=opens, memory=(8 + number) * GIB)
        found.append(Device(root / machine.name, machine, profile))
    return found


def write_commit(folder: Path, commit: int, kind: str) -> None:
    """Put the files of a commit into a checkout; a wrong golden output is beside the model that it belongs to."""
    for profile in PROFILES:
        scale_model(folder / f"{profile}.onnx", width=1, factor=value(commit, profile))
    text = MANIFEST.replace("CHECKS", CHECKED if kind == "check" else "")
    (folder / "m.yaml").write_text(BROKEN[kind][0](text) if kind in BROKEN else text)
    golden = folder / "golden"
    golden.mkdir(exist_ok=True)
    for name, known in (("input_0", "x"), ("output_0", "y")):
        tensor = onnx.numpy_helper.from_array(np.full((2, 1), 1, np.float32), known)
        (golden / f"{name}.pb").write_bytes(tensor.SerializeToString())
    (folder / ".git").mkdir(exist_ok=True)
    (folder / ".git/HEAD").write_text(f"{sha(commit)}\n")


def arrive(device: Device, name: str) -> None:
    np.save(device.folder / f"inbox/{name}.npy", np.ones((1, 1), np.float32))


class Fleet:
    """All devices, CI, and the folder into which their documents are collected."""

    def __init__(self, root: Path, cli: Cli, seed: int) -> None:
        self.root, self.cli, self.random = root, cli, random.Random(seed)  # noqa: S311
        self.devices = devices(root)
        for name in ("ci", "devices", "collected"):
            (root / name).mkdir()
        for device in self.devices:
            (device.folder / "inbox").mkdir(parents=True)
            (root / f"devices/{device.name}.yaml").write_text(device.machine.device_file())

    def table(self) -> dict[str, tuple[str | None, str | None]]:
        """Return what CI says of each device: the profile, and the rule that refuses it."""
        os.chdir(self.root / "ci")
        shown = self.cli("plan", "m.yaml", "--device", "../devices/*.yaml", "--format", "json")
        found: dict[str, tuple[str | None, str | None]] = {}
        for one in shown.json["devices"]:
            choice, refused = one["profile"], one["refused"]
            profile = None if choice is None else choice["name"] or "base"
            found[one["device"]] = (profile, refused and refused["rule"])
        if not found:
            rule = next(one["rule"] for one in shown.json["diagnostics"] if one["severity"] == "error")
            found = {device.name: (None, rule) for device in self.devices}
        assert shown.code == int(any(rule for _, rule in found.values()))
        return found

    def apply(self, device: Device, *, opens: tuple[str, ...] | None = None, killed_at: int | None = None) -> Any:
        """Apply on a device, and return its document, which is collected too."""
        os.chdir(device.folder)
        command = ["apply", "m.yaml", "--last-good", "--every", "1h"]
        with pytest.MonkeyPatch.context() as patch:
            Machine(**{**vars(device.machine), "opens": opens or device.machine.opens}).become(patch)
            if killed_at is not None:
                patch.setattr(sys, "argv", ["ortdeploy", *command])
                with in_a_process(run, killed_at=killed_at) as process:
                    process.wait()
            code = self.cli(*command).code
        (path,) = (device.folder / ".ortdeploy/status").glob("*.json")
        found = json.loads(path.read_text())
        assert code == (found["state"] == "refused"), found
        shutil.copy(path, self.root / f"collected/{device.name}.json")
        return found

    def commit(self, commit: int, kind: str) -> None:
        """Let a commit come to CI and to each device, each of which has a new row."""
        write_commit(self.root / "ci", commit, kind)
        said = self.table()
        for device in self.devices:
            write_commit(device.folder, commit, kind)
            arrive(device, f"{commit:03}")
            is_refused = kind in BROKEN and device.profile in BROKEN[kind][2]
            device.refused = BROKEN[kind][1] if is_refused else None
            profile, rule = said[device.name]
            assert rule == device.refused, (device.name, kind)
            assert profile == device.profile or is_refused
            killed_at = self.random.randint(1, 250) if kind == "killed" and self.random.random() < 0.4 else None
            if kind == "lost" and device.profile == "gpu":
                self.without_its_gpu(device)
            found = self.apply(device, killed_at=killed_at)
            if kind == "check":
                device.refused = "check"
            elif not is_refused:
                device.good = commit
            assert device.good is not None, "the first commit is good"
            device.rows.append(value(device.good, device.profile))
            self.look(device, found)

    def without_its_gpu(self, device: Device) -> None:
        """Let a device have no GPU for a while: it runs nothing, whatever the commit is."""
        found = self.apply(device, opens=("CPU",))
        assert (found["state"], found["refusal"]["rule"]) == ("refused", "profile-changed")
        assert (found["profile"]["name"], found["profile"]["reason"]) == ("gpu", "kept")
        assert self.rows(device) == device.rows

    def edit(self, device: Device, commit: int) -> None:
        """Let somebody spoil a checkout, in which another row arrives then."""
        with (device.folder / "m.yaml").open("a") as file:
            file.write("mine: true\n")
        arrive(device, f"{commit:03}-edited")
        device.refused = "unknown-key"
        found = self.apply(device)
        assert device.good is not None
        device.rows.append(value(device.good, device.profile))
        self.look(device, found)

    def look(self, device: Device, found: Any) -> None:
        """Hold what a device has written, and its document, against what it should run."""
        assert self.rows(device) == device.rows, (device.name, device.good)
        assert device.good is not None
        assert found["version"]["commit"] == sha(device.good), device.name
        assert (found["profile"]["name"] or "base") == device.profile
        assert found["state"] == ("refused" if device.refused else "current")
        assert (found["refusal"] or {}).get("rule") == (None if device.refused == "check" else device.refused)

    def rows(self, device: Device) -> list[float]:
        return [float(row["y"][0]) for row in read_rows(device.folder / "out")]

    def shown(self, wanted: int) -> dict[str, list[str]]:
        """Return what `fleet` finds wrong with each device."""
        os.chdir(self.root)
        flags = ("--expect", "devices", "--wanted", sha(wanted), "--format", "json")
        shown = self.cli("fleet", "collected", *flags)
        found = {row["device"]: row["wrong"] for row in shown.json["rows"]}
        assert shown.code == int(any(found.values()))
        return found


def test_each_device_runs_the_last_version_that_is_good_for_it(
    tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    fleet = Fleet(tmp_path, cli, seed=1)
    kinds = ["good", "memory", "check", "killed", "lost", "two"]
    others = [*BROKEN, "good", "killed", "lost", "check"]
    kinds += [fleet.random.choice(others) for _ in range(effort(0, 34))]
    for commit, kind in enumerate(kinds):
        fleet.commit(commit, kind)
        edited = fleet.random.sample(fleet.devices, 2) if commit % 3 == 0 else []
        for device in edited:
            fleet.edit(device, commit)
        shown = fleet.shown(commit)
        assert shown == {
            one.name: ["refused"] * bool(one.refused) + ["behind"] * (one.good != commit) for one in fleet.devices
        }
    fleet.commit(len(kinds), "good")
    assert set(map(tuple, fleet.shown(len(kinds)).values())) == {()}
    shutil.rmtree(tmp_path / "collected")
    (tmp_path / "collected").mkdir()
    assert set(map(tuple, fleet.shown(0).values())) == {("missing",)}
