"""The service of a deployment that comes in bundles: what its unit allows, and versions that need more."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import REPOSITORY, Cli
from support.bundle_worlds import MANIFEST, World, allow, sign
from support.bundles import Signer

from ortdeploy.cli.command_line.arguments import build_parser
from ortdeploy.files import names

ELSEWHERE = "  scale: {path: models/scale.onnx, providers: [CPU]"
GPU = ELSEWHERE.replace("[CPU]", "[CUDA, CPU], on_unavailable: skip")
PROFILES = """\
profiles:
  jetson: {models: {scale: {providers: [CUDA, CPU]}}, when: {architecture: aarch64, provider: CUDA}}
  otherwise: base
"""


@pytest.fixture
def world(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> World:
    """A checkout and a device without a policy, and with a folder of units."""
    monkeypatch.setattr(names, "POLICY", str(tmp_path / "etc/policy.yaml"))
    monkeypatch.setattr(names, "UNITS", (str(tmp_path / "units"), str(tmp_path / "lib")))
    (tmp_path / "units").mkdir()
    return World(tmp_path, cli)


def unit_of(world: World) -> Path:
    """The unit of the deployment."""
    return world.home.parent / "units/ortdeploy-demo.service"


def install_unit(world: World, *what: str | Path) -> list[str]:
    """Write the unit, and return its lines."""
    done = world.run("service", *what, "-o", unit_of(world).parent)
    assert done.code == 0, done.err
    return unit_of(world).read_text().splitlines()


def test_a_bundle_has_a_unit_before_it_is_installed_and_nothing_is_written_for_it(world: World) -> None:
    bundle = world.bundle(1)
    before = sorted(world.device.rglob("*"))
    lines = install_unit(world, bundle)
    assert sorted(world.device.rglob("*")) == before
    (command,) = [line for line in lines if line.startswith("ExecStart=")]
    assert command.endswith(f"watch --root={world.device} -- {bundle}")
    assert {"PrivateDevices=yes", f"ReadWritePaths={world.device}"} <= set(lines)


def test_what_is_not_trusted_has_no_unit(world: World) -> None:
    signer = Signer()
    allow(signer.public)
    assert "wants a signature" in world.run("service", world.bundle(1)).err
    assert world.run("service", sign(world, signer, 1)).code == 0


def test_a_unit_is_for_all_profiles_and_all_versions_that_are_here(world: World) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    assert "PrivateDevices=yes" in install_unit(world, "@demo")
    world.write(MANIFEST + PROFILES)
    two = world.bundle(2)
    assert "DeviceAllow=char-nvidia* rw" in install_unit(world, two)
    unit_of(world).unlink()
    assert (world.run("apply", two).code, world.version) == (0, 2)
    world.write(MANIFEST)
    assert (world.run("apply", world.bundle(3)).code, world.version) == (0, 3)
    assert "DeviceAllow=char-nvidia* rw" in install_unit(world, "@demo")  # a rollback may come


def test_a_version_that_its_unit_denies_something_waits_until_the_unit_is_written_anew(world: World) -> None:
    world.put("a", 0)
    bundle = world.home.parent / "current.tar"
    world.bundle(1).replace(bundle)
    assert world.run("apply", bundle).code == 0
    install_unit(world, bundle, "--metrics", world.home.parent)
    world.write(MANIFEST + PROFILES)
    world.bundle(2).replace(bundle)
    for words in (["plan"], ["apply"], ["apply"]):
        refused = world.run(*words, bundle)
        assert (refused.code, world.version) == (1, 1)
        assert "is not planned: " in refused.err
        assert f"{unit_of(world)} denies its service" in refused.err
        assert "MemoryDenyWriteExecute=no, DeviceAllow=/dev/nvmap rw, " in refused.err
        assert "DeviceAllow=char-nvidia* rw. " in refused.err
    again = shlex.split(refused.err.partition("daemon-reload: ")[2].partition(". So ")[0])[1:]
    assert again[-4:] == [f"--metrics={world.home.parent}", f"--root={world.device}", "--", str(bundle)]
    assert world.cli(*again).code == 0
    done = world.run("apply", bundle)
    assert (done.code, world.version) == (0, 2), done.err


@pytest.mark.parametrize(
    ("more", "denied"),
    [
        ("", "PrivateNetwork=no, WatchdogSec=1800"),
        ("[Service]\nPrivateNetwork=no\n", "needs: WatchdogSec=1800. "),
        ("[Service]\nWatchdogSec=3600\n", "needs: PrivateNetwork=no. "),
        ("[Service]\nWatchdogSec=3600\nPrivateNetwork=True\n", "needs: PrivateNetwork=no. "),
        ("[Unit]\nPrivateNetwork=no\n", "PrivateNetwork=no, WatchdogSec=1800"),
        ("[Service]\nReadWritePaths=\n", "PrivateNetwork=no, ReadWritePaths="),
        ("[Service]\nReadWritePaths=\nReadWritePaths=/nowhere \\\n  -{root}\n", "PrivateNetwork=no, WatchdogSec=1800"),
        ("[Service]\n# no more than this\nWatchdogSec=0\nPrivateNetwork=false\n", ""),
    ],
)
def test_what_was_changed_beside_a_unit_counts(world: World, more: str, denied: str) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    install_unit(world, "@demo")
    (unit_of(world).parent / f"{unit_of(world).name}.d").mkdir()
    (unit_of(world).parent / f"{unit_of(world).name}.d/own.conf").write_text(more.format(root=world.device))
    slow = MANIFEST.replace("model: scale\n", "model: scale\n    errors: {run_timeout: 10min}\n")
    world.write(slow.replace("inbox/*.npy", "http://127.0.0.1:9/a.npy"))
    done = world.run("apply", world.bundle(2))
    assert denied in done.err, done.err
    assert ("denies its service" in done.err) == bool(denied)


def spoil_root(unit: Path) -> None:
    unit.write_text(unit.read_text().replace("--root=", "--root=/another"))


def lengthen_root(unit: Path) -> None:
    unit.write_text(re.sub(r"(--root=\S+)", r"\1-2", unit.read_text()))


def move_to_lib(unit: Path) -> None:
    (unit.parent.parent / "lib").mkdir()
    unit.rename(unit.parent.parent / "lib" / unit.name)


@pytest.mark.parametrize(
    ("change", "counts"), [(spoil_root, False), (lengthen_root, False), (Path.unlink, False), (move_to_lib, True)]
)
def test_a_unit_counts_if_it_is_that_of_the_root(world: World, change: Callable[[Path], None], counts: bool) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    install_unit(world, "@demo")
    change(unit_of(world))
    world.write(MANIFEST + PROFILES)
    refused = world.run("apply", world.bundle(2))
    assert ("denies its service" in refused.err, world.version) == (counts, 1 if counts else 2)


def in_the_image(word: str) -> list[str]:
    """What the image runs by an instruction of its Containerfile, without the name of the program."""
    lines = (REPOSITORY / "deployments/fleet/Containerfile").read_text(encoding="utf-8").splitlines()
    (line,) = [line for line in lines if line.startswith(f"{word} ")]
    if word == "CMD":
        return [*json.loads(line.removeprefix("CMD "))]
    return shlex.split(line.partition(" CMD ortdeploy ")[2].partition(" || ")[0])


def test_what_the_image_runs_are_commands_with_flags_that_exist() -> None:
    commands = [in_the_image(word) for word in ("CMD", "HEALTHCHECK")]
    assert [build_parser(one[0]).parse_args(one).command for one in commands] == ["watch", "fleet"]


def test_the_image_is_healthy_while_what_is_signed_runs_and_not_while_somebody_is_needed(world: World) -> None:
    words = [
        str(world.device) + one.removeprefix("/srv/line") if "/" in one else one for one in in_the_image("HEALTHCHECK")
    ]
    assert world.cli(*words).code == 1  # nothing was applied yet
    world.put("a", 0)
    bundle = world.bundle(1)
    assert (world.run("apply", bundle).code, world.cli(*words).code) == (0, 0)
    (world.device / "inbox/b.npy").write_bytes(b"no array")
    assert world.run("apply", "@demo").code == 1
    assert world.cli(*words).code == 1
    (world.device / "inbox/b.npy").unlink()
    assert (world.run("apply", "@demo").code, world.cli(*words).code) == (0, 0)
    world.write(MANIFEST.replace("argmax: y", "argmax: z"))
    assert world.run("apply", "--last-good", world.bundle(2)).code == 1
    shown = world.cli(*words)
    assert (shown.code, "Version 2 is not planned" in shown.out) == (1, True)
