"""A checkout in which bundles are made, and a device that takes them, with a policy or without one."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli, Result, read_rows

from ortdeploy.bundles.description import parse
from ortdeploy.files import names
from ortdeploy.planning.versions.installed import running_version
from support.bundles import Signer
from support.fuse import Fuse
from support.models import scale_model

MANIFEST = """\
version: 1
name: demo
models:
  scale: {path: models/scale.onnx, providers: [CPU], checks: [checks/scale]}
jobs:
  run:
    model: scale
    input: {path: inbox/*.npy, key: [row]}
    postprocess: [{argmax: y, as: best}, {labels: best, from: labels.txt, as: word}]
    output: {path: out, columns: [word], on_upgrade: continue}
"""


class World:
    """A checkout in which bundles are made, and a device that has only them and an inbox."""

    def __init__(self, folder: Path, cli: Cli) -> None:
        self.home, self.device, self.cli = folder / "home", folder / "device", cli
        (self.home / "models").mkdir(parents=True)
        (self.device / "inbox").mkdir(parents=True)
        self.write(MANIFEST)
        self.change_model(2)
        (self.home / "labels.txt").write_text("left\nright\n")

    def write(self, manifest: str) -> None:
        """Write the manifest."""
        (self.home / "m.yaml").write_text(manifest)

    def change_model(self, scale: float) -> None:
        """Write a model that multiplies by a number, with a golden set."""
        scale_model(self.home / "models/scale.onnx", width=2, factor=scale)
        golden = self.home / "checks/scale"
        golden.mkdir(parents=True, exist_ok=True)
        np.savez(golden / "inputs.npz", x=np.ones((1, 2), np.float32))
        np.savez(golden / "outputs.npz", y=np.full((1, 2), scale, np.float32))

    def bundle(self, version: int, *more: str | Path) -> Path:
        """Make a bundle of a version, for the device."""
        target = self.home.parent / f"demo-{version}.tar"
        target.unlink(missing_ok=True)
        done = self.cli("bundle", self.home / "m.yaml", "-o", target, "--version", str(version), *more)
        assert done.code == 0, done.err
        return target

    def put(self, name: str, largest: int) -> None:
        """Put a file of two rows into the inbox."""
        rows = np.zeros((2, 2), np.float32)
        rows[:, largest] = 1
        np.save(self.device / f"inbox/{name}.npy", rows)

    def run(self, *words: str | Path) -> Result:
        """Run a command on the device."""
        return self.cli(*words, "--root", self.device)

    def words(self) -> list[str]:
        """What the device has committed."""
        return [str(row["word"]) for row in read_rows(self.device / "out")]

    @property
    def version(self) -> int | None:
        """The number of the version that runs."""
        found = running_version(self.device / ".ortdeploy", "demo")
        return None if found is None else found.number


def allow(*keys: bytes, more: str = "", deployment: str = "", name: str = "demo") -> None:
    """Write the policy of the machine."""
    folder = Path(names.POLICY).parent
    folder.mkdir(exist_ok=True)
    for number, key in enumerate(keys):
        (folder / f"{number}.pub").write_bytes(key)
    listed = ", ".join(f"{number}.pub" for number in range(len(keys)))
    text = f"version: 1\ndeployments: {{{name}: {{keys: [{listed}]{deployment}}}}}\n{more}"
    Path(names.POLICY).write_text(text if keys else f"version: 1\ndeployments: {{}}\n{more}")


def sign(world: World, signer: Signer, version: int) -> Path:
    """Make a signed bundle, as CI does: the folder is signed, and the signature goes into the bundle."""
    folder = world.home.parent / f"files-{version}"
    shutil.rmtree(folder, ignore_errors=True)
    done = world.cli("bundle", world.home / "m.yaml", "--files", folder, "--version", str(version))
    assert done.code == 0, done.err
    signature = world.home.parent / "model.sig"
    signature.write_bytes(signer.sign(parse((folder / "deployment.json").read_bytes())))
    return world.bundle(version, "--signature", signature)


_NAMES = ("link", "mkdir", "remove", "rename", "replace", "rmdir", "unlink")


@contextmanager
def burning_everywhere(length: int | None) -> Iterator[Fuse]:
    """Kill what runs inside before its nth change of a name, in the state directory too; None lets it live."""
    fuse = Fuse(length)
    with pytest.MonkeyPatch.context() as patch:
        for name in _NAMES:
            real = getattr(os, name)

            def call(*words: object, _real: Callable[..., object] = real, _name: str = name, **named: object) -> object:
                fuse.burn(_name)
                return _real(*words, **named)

            patch.setattr(os, name, call)
        yield fuse
