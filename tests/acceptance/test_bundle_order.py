"""What is opened of a bundle, and when: nothing of its files before it is trusted, and no file as a whole."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import pytest
from conftest import Cli
from msgspec.structs import replace
from support.bundle_worlds import World, allow, sign
from support.bundles import Signer, describe
from support.effort import effort
from support.models import scale_model

from ortdeploy.bundles import layout as made_layout
from ortdeploy.bundles.description import BundledFile
from ortdeploy.bundles.layout import open_bundle
from ortdeploy.files import names
from ortdeploy.files.digests import file_digest
from ortdeploy.planning.versions import installed

HUGE = """\
version: 1
name: demo
models: {scale: {path: models/scale.onnx, providers: [CPU]}}
jobs: {run: {model: scale, input: {path: inbox/*.npy}, output: {path: out}}}
"""
Hears = Callable[[str], object]
_HEARS: list[Hears] = []


@cache
def _listen() -> None:
    sys.addaudithook(_note)  # for as long as this process lives


def _note(event: str, arguments: tuple[object, ...]) -> None:
    if _HEARS and event == "open" and isinstance(arguments[0], (str, bytes, os.PathLike)):
        hears = _HEARS.pop()  # what it opens itself does not count
        hears(os.path.realpath(os.fsdecode(arguments[0])))
        _HEARS.append(hears)


@contextmanager
def hearing(hears: Hears) -> Iterator[None]:
    """Call a function with each path that is opened inside."""
    _listen()
    _HEARS.append(hears)
    try:
        yield
    finally:
        _HEARS.clear()


@pytest.fixture
def world(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> World:
    """A checkout and a device whose machine has a policy."""
    monkeypatch.setattr(names, "POLICY", str(tmp_path / "etc/policy.yaml"))
    return World(tmp_path, cli)


def layout(world: World, *more: str | Path) -> tuple[Path, dict[str, BundledFile]]:
    """Make a layout in a folder, and return its files by the real path of their bytes."""
    made = world.home.parent / "demo-layout"
    done = world.cli("bundle", world.home / "m.yaml", "-o", made, "--version", "1", *more)
    assert done.code == 0, done.err
    with open_bundle(made) as bundle:
        files = {str((made / "blobs/sha256" / file.sha256).resolve()): file for file in bundle.description.files}
    return made, files


@pytest.mark.parametrize("words", [["apply"], ["apply", "--last-good"], ["plan"], ["service"]])
def test_with_a_policy_nothing_but_policy_description_and_store_is_opened_before_trust(
    world: World, words: list[str]
) -> None:
    allow(Signer().public)
    made, files = layout(world)
    world.put("a", 0)
    opened: list[str] = []
    with hearing(opened.append):
        refused = world.run(*words, made)
    assert "wants a signature" in refused.err
    own = {one for one in opened if one.startswith(os.path.realpath(world.home.parent))}
    assert not own & set(files)
    allowed = (os.path.realpath(Path(names.POLICY).parent), str(made.resolve()), str(world.device / ".ortdeploy"))
    own -= {os.path.realpath(world.device)}  # whose new folder is made durable
    assert [one for one in own if not one.startswith(allowed)] == []
    assert own


def test_files_of_a_trusted_bundle_are_opened_only_after_that_is_durable(world: World) -> None:
    signer = Signer()
    allow(signer.public)
    sign(world, signer, 1)
    made, files = layout(world, "--signature", world.home.parent / "model.sig")
    record = installed.record_of(world.device / ".ortdeploy", "demo")
    states: list[set[str]] = []

    def hears(path: str) -> None:
        if path in files:
            states.append(set(json.loads(record.read_text())["reached"].values()))

    world.put("a", 0)
    with hearing(hears):
        assert world.run("apply", made).code == 0
    assert states
    assert all(one == {"trusted"} for one in states)


_APPLY = """
import resource, sys
from ortdeploy.cli.main import main
from ortdeploy.files import content_store

class Sparse:
    def __init__(self, *words, **named):
        self.file = open(*words, **named)
    def __getattr__(self, name):
        return getattr(self.file, name)
    def __enter__(self):
        return self
    def __exit__(self, *raised):
        self.file.close()
    def write(self, piece):
        if any(piece[:4096]) or any(memoryview(piece)[-4096:]):
            return self.file.write(piece)
        self.file.seek(len(piece), 1)
        self.file.truncate(self.file.tell())

def open_sparse(*words, **named):
    return Sparse(*words, **named) if "xb" in words else open(*words, **named)

content_store.open = open_sparse
code = main(sys.argv[1:])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
"""Applies a bundle with a store that keeps holes, so that no disk is filled, and prints the memory in KiB."""


def sparse_bundle(folder: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a bundle whose weights are in a sparse file of zeros."""
    scale_model(folder / "models/plain.onnx", width=2)
    model = onnx.load(folder / "models/plain.onnx")
    model.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.zeros(2, np.float32), "factor"))
    onnx.save(model, folder / "models/scale.onnx", save_as_external_data=True, location="scale.data", size_threshold=0)
    (folder / "m.yaml").write_text(HUGE)
    with (folder / "models/scale.data").open("wb") as file:
        file.truncate(size)
    listed = []
    for name in ("m.yaml", "models/scale.data", "models/scale.onnx"):
        path = folder / name
        kind = "config" if name == "m.yaml" else "weight"
        listed.append(BundledFile(name=name, sha256=file_digest(path), size=path.stat().st_size, kind=kind))
    whole = replace(describe(), name="demo", manifest="m.yaml", files=tuple(listed))
    real = made_layout.copy_as

    def copy_as(source: Path, out: BinaryIO, digest: str, count: int) -> None:
        out.truncate(count) if count == size else real(source, out, digest, count)

    with monkeypatch.context() as patch:
        patch.setattr(made_layout, "copy_as", copy_as)
        made_layout.write_bundle(folder / "demo", whole, {one.name: folder / one.name for one in listed}, {})
    return folder / "demo"


@pytest.mark.slow
@pytest.mark.process
def test_a_bundle_of_gibibytes_takes_no_memory_that_grows_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peaks = []
    for size in (10 * 1024**2, effort(1, 10) * 1024**3):
        folder = tmp_path / str(size)
        (folder / "device/inbox").mkdir(parents=True)
        np.save(folder / "device/inbox/a.npy", np.zeros((2, 2), np.float32))
        bundle = sparse_bundle(folder, size, monkeypatch)
        words: list[str | Path] = [sys.executable, "-c", _APPLY, "apply", "-q", bundle, f"--root={folder / 'device'}"]
        done = subprocess.run(words, check=True, capture_output=True, text=True)
        code, *found = map(int, done.stdout.split())
        assert code == 0, done.stderr
        peaks.append(found)
    small, huge = peaks
    assert max(now - before for before, now in zip(small, huge, strict=True)) < 32 * 1024


class Disk:
    """What of a device's files is durable: inodes whose bytes were synced, and names whose folder was."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.synced: set[int] = set()
        self.waiting: set[str] = set()
        self._real = {name: getattr(os, name) for name in ("fsync", "link", "replace")}
        patch.setattr(os, "fsync", self._fsync)
        for name in ("link", "replace"):
            patch.setattr(os, name, partial(self._name, name))
        self.before: Callable[[str, str], object] = lambda _source, _target: None

    def _fsync(self, descriptor: int) -> None:
        self._real["fsync"](descriptor)
        path = os.path.realpath(f"/proc/self/fd/{descriptor}")
        self.synced.add(os.fstat(descriptor).st_ino)
        self.waiting = {one for one in self.waiting if str(Path(one).parent) != path}

    def _name(self, how: str, source: str | Path, target: str | Path) -> None:
        self.before(str(source), str(target))
        self._real[how](source, target)
        self.waiting.add(os.path.realpath(target))

    def holds(self, path: Path) -> bool:
        """Whether a file would be there, whole, after a power cut."""
        return path.stat().st_ino in self.synced and os.path.realpath(path) not in self.waiting


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc what is synced")
def test_a_state_is_written_only_when_all_that_it_rests_on_is_durable(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = world.device / ".ortdeploy"
    record, states = installed.record_of(state, "demo"), list[str]()
    world.put("a", 0)
    bundle = world.bundle(1)
    disk = Disk(monkeypatch)

    def before(source: str, target: str) -> None:
        if target != str(record):
            return
        assert Path(source).stat().st_ino in disk.synced
        assert not states or disk.holds(record)  # the state before this one
        told = json.loads(Path(source).read_text())
        states.append(told["reached"].get(told["wanted"], ""))
        for version in told["versions"]:
            for digest in {*version["files"].values(), version["id"]}:
                assert disk.holds(state / "store/files" / digest), (states, version["files"])
            assert all(map(disk.holds, (state / "store/references").iterdir()))

    disk.before = before
    assert world.run("apply", bundle).code == 0
    assert [*dict.fromkeys(states)] == ["", "described", "trusted", "whole", "planned", "checked", "current"]
    assert disk.holds(record)
