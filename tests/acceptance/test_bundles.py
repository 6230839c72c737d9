"""Bundles from the commit to the device: made here, applied there, and what keeps a version from running."""

import argparse
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import jsonschema
import numpy as np
import pytest
from conftest import REPOSITORY, Cli
from support.bundle_worlds import MANIFEST, World, allow, burning_everywhere, sign
from support.bundles import Signer
from support.effort import effort
from support.jobs import Killed
from support.models import scale_model
from support.pages import snippets

from ortdeploy.bundles.layout import open_bundle
from ortdeploy.cli.bundles.bundle_place import Place, RefusedError
from ortdeploy.cli.commands import watch
from ortdeploy.cli.main import main
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files import content_store, names
from ortdeploy.planning.versions import installed, recovery, taking_in
from ortdeploy.planning.versions.policy_file import read_policies
from ortdeploy.schemas import load_schema


@pytest.fixture
def world(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> World:
    """A checkout and a device without a policy."""
    monkeypatch.setattr(names, "POLICY", str(tmp_path / "etc/policy.yaml"))
    return World(tmp_path, cli)


def said(world: World) -> Any:
    """The one status document of the device."""
    (document,) = (world.device / ".ortdeploy/status").glob("*.json")
    found = json.loads(document.read_text())
    jsonschema.validate(found, load_schema("status"))
    return found


def test_a_bundle_runs_without_the_checkout_and_its_version_goes_on(world: World) -> None:
    bundle = world.bundle(1, "--label", "abc123")
    shutil.rmtree(world.home)
    world.put("a", 0)
    done = world.run("apply", bundle)
    assert (done.code, world.words()) == (0, ["left", "left"]), done.err
    assert sorted(one.name for one in world.device.iterdir()) == [".ortdeploy", "inbox", "out"]
    bundle.unlink()
    world.put("b", 1)
    assert (world.run("apply", "@demo").code, world.words()) == (0, ["left", "left", "right", "right"])
    for words in (
        ["plan"], ["status"], ["verify"], ["check"], ["retry", "--job", "run"], ["compact"], ["service"], ["cache", "prune"]
    ):  # fmt: skip
        done = world.run(*words, "@demo")
        assert done.code == 0, (words, done.out, done.err)
    assert "demo 1 (abc123): current" in world.run("status", "@demo", "--versions").out


def test_a_layout_in_a_folder_and_one_beside_its_inbox_is_taken(world: World) -> None:
    done = world.cli("bundle", world.home / "m.yaml", "-o", world.device / "demo")
    assert done.code == 0, done.err
    world.put("a", 1)
    done = world.cli("apply", world.device / "demo")
    assert (done.code, world.words()) == (0, ["right", "right"]), done.err


def test_a_plan_of_a_bundle_lets_nothing_run_and_changes_nothing(world: World) -> None:
    world.put("a", 0)
    done = world.run("plan", world.bundle(1), "--detailed-exitcode")
    assert done.code == 2, done.err
    assert (world.version, (world.device / "out").exists()) == (None, False)
    assert "demo 1: planned" not in world.run("status", "@demo", "--versions").out


def test_a_plan_that_refuses_a_bundle_is_remembered_as_an_apply_is_and_tells_no_collector(world: World) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    before = said(world)
    spoil_plan(world)
    bundle = world.bundle(2)
    refused = world.run("plan", bundle)
    assert refused.code == 1
    assert "is not planned: unknown-output-column: " in refused.err
    assert "So version 1 stays." in refused.err
    assert "demo 2: not planned since" in world.run("status", "@demo", "--versions").out
    assert said(world) == before
    assert world.run("apply", world.device.parent / "demo-1.tar").code == 0
    assert "apply has failed" not in world.run("status", "@demo").words


def test_a_changed_checkout_beside_the_device_changes_nothing(world: World) -> None:
    bundle = world.bundle(1)
    world.put("a", 0)
    assert world.run("apply", bundle).code == 0
    shutil.copytree(world.home, world.device, dirs_exist_ok=True)
    (world.device / "labels.txt").write_text("up\ndown\n")
    (world.device / "m.yaml").write_text("version: 1\njobz: {}\n")
    world.put("b", 1)
    done = world.run("apply", "@demo")
    assert (done.code, world.words()[2:]) == (0, ["right", "right"]), done.err


def spoil_plan(world: World) -> None:
    world.write(MANIFEST.replace("argmax: y", "argmax: z"))


def spoil_check(world: World) -> None:
    np.savez(world.home / "checks/scale/outputs.npz", y=np.full((1, 2), 9, np.float32))


@pytest.mark.parametrize(
    ("spoil", "state"), [(spoil_plan, "planned: "), (spoil_check, "checked: golden check checks/scale of model scale ")]
)
def test_what_is_refused_keeps_the_version_that_runs_and_is_remembered(
    world: World, spoil: Callable[[World], None], state: str
) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    spoil(world)
    bundle = world.bundle(2)
    world.put("b", 1)
    for _ in range(2):  # the second answer is remembered
        assert "is refused" not in world.run("status", "@demo").words
    refused = world.run("apply", bundle)
    assert (refused.code, world.version) == (1, 1)
    assert f"is not {state}" in refused.err
    assert "So version 1 stays." in refused.err
    assert world.words() == ["left", "left"]  # apply alone runs nothing else
    again = world.run("apply", bundle, "--last-good")
    assert (again.code, world.words()[2:]) == (1, ["right", "right"]), again.err  # as watch does
    said = world.run("status", "@demo").words
    assert re.search(rf"demo 2 is refused since \S+: not {state}", said)
    assert "; version 1 runs in its place" in said
    (known,) = json.loads(world.run("status", "@demo", "--format", "json").out)["refused"]
    assert (known["manifest"], known["runs"]) == ("demo 2", 1)
    assert f"demo 2: not {state.partition(':')[0]} since" in world.run("status", "@demo", "--versions").out


def test_an_empty_inbox_refuses_a_version_only_until_something_arrives(world: World) -> None:
    bundle = world.bundle(1)
    assert "is not planned: " in world.run("apply", bundle).err
    world.put("a", 0)
    assert (world.run("apply", bundle).code, world.words()) == (0, ["left", "left"])


def test_numbers_only_rise_except_by_rollback(world: World) -> None:
    one = world.bundle(1)
    (world.home / "labels.txt").write_text("links\nrechts\n")
    two = world.bundle(2)
    world.put("a", 0)
    for bundle in (one, two):
        world.run("apply", bundle)
    assert world.version == 2
    assert "is older" in world.run("apply", one).err
    assert world.run("rollback", "@demo").code == 0
    assert world.version == 1
    assert "was set aside by a rollback" in world.run("apply", two).err
    assert world.run("apply", one).code == 0
    assert world.run("rollback", "@demo", "--unpin").code == 0
    done = world.run("apply", two)
    assert (done.code, world.version) == (0, 2), done.err
    assert "no such older version of demo here; those that are: 1." in world.run("rollback", "@demo", "--to", "7").err
    (world.home / "labels.txt").write_text("up\ndown\n")
    assert "is here already with the id" in world.run("apply", world.bundle(2)).err
    (world.home / "labels.txt").write_text("oben\nunten\n")
    other = ("bundle", world.home / "m.yaml", "-o", world.home / "x.tar", "--version", "2", "--against", two)
    assert "devices take higher ones alone" in world.cli(*other).err


def test_a_higher_version_ends_what_a_rollback_set_aside(world: World) -> None:
    world.put("0", 0)
    for number in (1, 2):
        (world.home / "labels.txt").write_text(f"left{number}\nright{number}\n")
        assert world.run("apply", world.bundle(number)).code == 0
    assert world.run("rollback", "@demo").code == 0
    (world.home / "labels.txt").write_text("left3\nright3\n")
    world.put("a", 0)
    assert world.run("apply", world.bundle(3)).code == 0
    assert (world.version, world.words()) == (3, ["left1", "left1", "left3", "left3"])


def test_as_many_versions_stay_as_a_policy_keeps(world: World) -> None:
    world.put("a", 0)
    signer = Signer()
    allow(signer.public, more="keep: 2\n")
    for number in (1, 2, 3):
        (world.home / "labels.txt").write_text(f"left{number}\nright{number}\n")
        assert world.run("apply", sign(world, signer, number)).code == 0
    shown = world.run("status", "@demo", "--versions").out
    assert [number for number in "123" if f"demo {number}: current" in shown] == ["3"]
    assert "demo 2: current" not in shown
    assert "demo 1:" not in shown


def test_a_policy_asks_for_a_signature_and_is_asked_again(world: World) -> None:
    signer, other = Signer(), Signer()
    allow(signer.public)
    world.put("a", 0)
    assert "wants a signature" in world.run("apply", world.bundle(1)).err
    assert "none of the keys" in world.run("apply", sign(world, other, 1)).err
    assert world.version is None
    signed = sign(world, signer, 1)
    assert world.run("apply", signed).code == 0
    for change, why in (
        (lambda: allow(other.public), "none of the keys"),
        (allow, "allows no deployment"),
        (lambda: allow(signer.public, deployment=", oldest_version: 2"), "version 2"),
        (lambda: Path(names.POLICY).write_text("version: 1\n"), "the policy cannot be used"),
        (lambda: allow(signer.public, more="deplyments: {}\n"), "Unknown key"),
    ):
        change()
        world.put("b", 1)
        refused = world.run("apply", "@demo")
        assert (refused.code, world.words()) == (1, ["left", "left"])
        assert why in refused.err, refused.err
    allow(other.public, signer.public)
    assert (world.run("apply", "@demo").code, len(world.words())) == (0, 4)
    id_ = json.loads(world.cli("bundle", "show", signed, "--format", "json").out)["id"]
    allow(signer.public, more=f"refuse: ['sha256:{id_}']\n")
    assert f"refuses the bundle {id_}" in world.run("apply", "@demo").err


def test_a_second_policy_adds_and_never_replaces(world: World, tmp_path: Path) -> None:
    signer, other = Signer(), Signer()
    world.put("a", 0)
    allow(signer.public)
    (tmp_path / "other.pub").write_bytes(other.public)
    (tmp_path / "more.yaml").write_text("version: 1\ndeployments: {demo: {keys: [other.pub]}}\n")
    for one in (signer, other):
        assert world.run("apply", sign(world, one, 1), "--policy", tmp_path / "more.yaml").code == 1
    (tmp_path / "other.pub").write_bytes(signer.public)
    assert world.run("apply", sign(world, signer, 1), "--policy", tmp_path / "more.yaml").code == 0


@pytest.mark.parametrize(
    "words",
    [["apply", "m.yaml"], ["plan", "m.yaml"], ["watch", "m.yaml"], ["retry", "m.yaml", "--job", "run"], ["check", "m.yaml"],
     ["try", "m.yaml"], ["tune", "m.yaml", "--job", "run"], ["init", "models/scale.onnx"],
     ["adapter", "convert", "a", "--model", "m.onnx", "-o", "x"], ["apply", "m.yaml", "--root", "."]],
)  # fmt: skip
def test_under_a_policy_nothing_unsigned_runs(world: World, words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.home)
    allow(Signer().public)
    refused = world.cli(*words)
    assert (refused.code, "is in force" in refused.err) == (1, True), refused.err
    assert world.cli("validate", "m.yaml").code == 0


def test_a_checkout_may_run_unsigned_where_a_policy_says_so(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.home)
    allow(Signer().public, more=f"manifests: [{world.home}]\n")
    (world.home / "inbox").mkdir()
    np.save(world.home / "inbox/a.npy", np.zeros((2, 2), np.float32))
    assert world.cli("apply", "m.yaml").code == 0
    assert "changes what was signed" in world.cli("apply", "m.yaml", "--set", "jobs.run.batch.size=1").err
    (world.home.parent / "link.yaml").symlink_to(world.home / "m.yaml")
    shutil.copy(world.home / "m.yaml", world.device / "m.yaml")
    (world.home / "stray.yaml").symlink_to(world.device / "m.yaml")
    assert "in none of the folders" in world.cli("apply", "stray.yaml").err


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can make a file that others write"
)
def test_a_policy_that_others_may_write_refuses_everything(world: World) -> None:
    allow(Signer().public, more=f"manifests: [{world.home}]\n")
    Path(names.POLICY).chmod(0o666)
    assert "somebody else than root may write it" in world.cli("apply", world.home / "m.yaml").err
    Path(names.POLICY).chmod(0o644)
    (Path(names.POLICY).parent / "0.pub").chmod(0o666)
    assert "somebody else than root may write it" in world.cli("apply", world.home / "m.yaml").err
    Path(names.POLICY).unlink()
    Path(names.POLICY).mkdir()
    assert "the policy cannot be used" in world.cli("apply", world.home / "m.yaml").err


@pytest.mark.parametrize(
    "words",
    [["lock", "@demo"], ["tune", "@demo", "--job", "run"], ["diff", "@demo"], ["finish", "@demo"], ["try", "@demo"],
     ["apply", "@demo", "--shard", "0/2"], ["apply", "@demo", "--engine", "ray"], ["plan", "@demo", "--out", "p"],
     ["plan", "@demo", "--device", "d"], ["apply", "@demo", "m.yaml"], ["rollback", "m.yaml"], ["status", "m.yaml", "--root", "."],
     ["retry", "demo.tar", "--job", "run"], ["apply", "@demo", "--tag", "1"], ["check", "@demo", "--record"]],
)  # fmt: skip
def test_what_does_not_go_with_a_bundle_is_wrong_usage_in_words(world: World, words: list[str]) -> None:
    refused = world.cli(*words)
    assert (refused.code, len(refused.err.splitlines()) > 0) == (64, True), refused.err


def test_a_name_without_its_at_sign_is_told_what_root_is_for(world: World) -> None:
    refused = world.cli("apply", "demo", "--root", ".")
    assert refused.code == 64
    assert "a saved plan, a bundle or an installed @NAME, and demo is none of these" in refused.err


def test_show_tells_who_names_a_manifest_how_a_bundle_is_made(world: World) -> None:
    refused = world.cli("bundle", "show", "m.yaml")
    assert refused.code == 64
    assert "this is a manifest, of which one is made by ortdeploy bundle m.yaml -o FILE.tar" in refused.err


def test_another_version_of_a_model_is_told_by_against(world: World) -> None:
    one = world.bundle(1)
    world.change_model(3)
    made = world.cli("bundle", world.home / "m.yaml", "-o", world.home / "x.tar", "--version", "2", "--against", one)
    assert made.code == 0
    assert "on_upgrade" in made.out
    assert "bytes are new against" in made.out


@pytest.fixture
def upgraded(world: World) -> tuple[World, Path]:
    """A device on which a version runs, and the bundle of the next one."""
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    world.put("b", 1)
    (world.home / "labels.txt").write_text("links\nrechts\n")
    return world, world.bundle(2)


def events_of_upgrade(world: World, bundle: Path) -> int:
    """How often an upgrade changes a name, on a copy of the device."""
    device = world.device
    shutil.copytree(device, world.home.parent / "copy")
    world.device = world.home.parent / "copy"
    with burning_everywhere(None) as fuse:
        assert world.run("plan", bundle).code == 0
        assert world.run("apply", bundle).code == 0
    world.device = device
    return len(fuse.met)


@pytest.mark.parametrize("part", range(effort(3, 40)))
def test_a_kill_between_and_within_states_leaves_a_version_that_runs_and_the_next_apply_ends_it(
    upgraded: tuple[World, Path], part: int
) -> None:
    world, bundle = upgraded
    last = events_of_upgrade(world, bundle)
    event = 1 + (part * last) // effort(3, 40)
    with burning_everywhere(event), suppress(Killed):
        world.run("apply", bundle)
    before = world.version
    assert before in {1, 2}
    assert world.run("status", "@demo", "--versions").code == 0
    done = world.run("apply", bundle)
    assert (done.code, world.version) == (0, 2), done.err
    expected = (["left"] * 2 + ["rechts"] * 2, ["links"] * 2 + ["rechts"] * 2)
    assert world.words() in expected
    kept = world.device / ".ortdeploy/store/files"
    assert not [one for one in kept.iterdir() if one.suffix == ".partial"]


def test_a_version_that_was_killed_before_it_was_current_does_not_run(upgraded: tuple[World, Path]) -> None:
    world, bundle = upgraded
    assert world.run("plan", bundle).code == 0  # as far as planned
    assert (world.run("apply", "@demo").code, world.version) == (0, 1)
    assert world.words() == ["left", "left", "right", "right"]


def test_a_bundle_that_was_cut_off_or_finds_no_room_leaves_nothing_of_itself(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    before = sorted((world.device / ".ortdeploy/store/files").iterdir())
    world.change_model(3)
    layout = world.home.parent / "next"
    assert world.cli("bundle", world.home / "m.yaml", "-o", layout, "--version", "2").code == 0
    with monkeypatch.context() as patch:
        patch.setattr(taking_in, "free_at", lambda _folder: 1000)
        assert "of 1,000 that are free" in world.run("apply", layout).err
    with monkeypatch.context() as patch:
        patch.setattr(content_store, "_take", _full)
        assert "no room for it" in world.run("apply", layout).err
    with open_bundle(layout) as bundle:
        blob = next(one for one in bundle.description.files if one.name.endswith("scale.onnx"))
    path = layout / "blobs/sha256" / blob.sha256
    raw = path.read_bytes()
    path.write_bytes(raw[:-1])
    refused = world.run("apply", layout).err
    assert f"bytes of {len(raw)} in blobs/sha256/{blob.sha256}. The copy is damaged; remove that blob" in refused
    path.write_bytes(bytes(len(raw)))
    assert "is not what was described" in world.run("apply", layout).err
    assert sorted((world.device / ".ortdeploy/store/files").iterdir()) == before
    path.write_bytes(raw)
    assert (world.run("apply", layout).code, world.version) == (0, 2)


def _full(_source: object, target: BinaryIO, _room: object) -> None:
    target.write(b"half")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_file_of_an_installed_version_that_is_gone_comes_again_with_the_bundle(world: World) -> None:
    world.put("a", 0)
    bundle = world.bundle(1)
    assert world.run("apply", bundle).code == 0
    shutil.rmtree(world.device / ".ortdeploy/store")
    world.put("b", 1)
    assert "Apply the bundle again" in world.run("apply", "@demo").err
    done = world.run("apply", bundle)
    assert (done.code, len(world.words())) == (0, 4), done.err


def test_a_version_that_runs_stays_if_its_bundle_finds_no_room(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("a", 0)
    bundle = world.bundle(1)
    assert world.run("apply", bundle).code == 0
    shutil.rmtree(world.device / ".ortdeploy/store/trees")

    def link(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(content_store, "_link", link)
        assert "So version 1 stays" in world.run("apply", bundle).err
    world.put("b", 1)
    done = world.run("apply", "@demo")
    assert (done.code, len(world.words())) == (0, 4), done.err


@pytest.mark.parametrize("is_new", [False, True])
def test_what_watch_applies_runs_the_old_version_if_the_record_finds_no_room(
    upgraded: tuple[World, Path], monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    world, bundle = upgraded
    place = bundle if is_new else bundle.replace(world.home.parent / "demo-1.tar")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(installed, "open_whole", full)
    refused = world.run("apply", place)
    assert (refused.code, len(world.words())) == (1, 2)
    done = world.run("apply", "--last-good", place)
    assert "cannot be written: No space left on device. The version of demo that runs stays." in done.err
    assert (done.code, world.version, len(world.words())) == (1, 1, 4)


def test_watch_names_the_bundle_that_it_watches(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "apply_once", lambda *_: True)
    bundle = world.bundle(1)
    assert f'"paths": ["{bundle}"]' in world.run("watch", bundle).err


def test_watch_takes_versions_and_rows_as_they_come_and_survives_what_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = world.bundle(1)
    codes: list[int] = []

    def label(number: int, *, spoilt: bool = False) -> None:
        world.write(MANIFEST.replace("argmax: y", "argmax: z") if spoilt else MANIFEST)
        (world.home / "labels.txt").write_text(f"left{number}\nright{number}\n")
        os.replace(world.bundle(number), bundle)  # noqa: PTH105  as skopeo and rsync do

    steps: list[Callable[[], object]] = [
        lambda: world.put("b", 1),
        lambda: label(2),
        lambda: world.put("c", 0),
        lambda: label(3, spoilt=True),
        lambda: world.put("d", 1),
    ]
    waits = [False]

    def wait(_seconds: float, *_: object) -> bool:
        waits[0] = not waits[0]
        if waits[0]:
            if not steps:
                return True
            steps.pop(0)()
        return False

    def apply(given: argparse.Namespace, *_: object) -> bool:
        codes.append(main(watch.apply_arguments(given)))
        return False

    world.put("a", 0)
    monkeypatch.setattr(watch, "apply_once", apply)
    monkeypatch.setattr(watch, "_wait", wait)
    assert world.run("watch", bundle, "--every", "1h").code == 0
    assert codes == [0, 0, 0, 0, 1, 1]
    assert world.words()[::2] == ["left", "right", "left2", "right2"]
    assert world.version == 2


@pytest.mark.process
def test_mender_installs_what_the_device_would_run_and_no_other(world: World, shell_program: Path) -> None:
    module, theirs = REPOSITORY / "deployments/fleet/mender-module", world.home.parent / "mender"
    (theirs / "files").mkdir(parents=True)
    synced, real = world.home.parent / "synced", shutil.which("sync")
    (theirs / "sync").write_text(
        f'#!/bin/sh\nls -a "$ORTDEPLOY_ROOT/bundles" >> {synced}\necho "$@" >> {synced}\n{real} "$@"\n'
    )
    (theirs / "sync").chmod(0o755)
    path = os.pathsep.join([str(theirs), str(shell_program), os.environ["PATH"]])
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(REPOSITORY), "ORTDEPLOY_ROOT": str(world.device)}

    def call(state: str) -> int:
        return subprocess.run([str(module), state, str(theirs)], env=env, check=False, timeout=120).returncode

    world.put("a", 0)
    shutil.copy(world.bundle(1), theirs / "files/demo.tar")
    assert [call(state) for state in ("SupportsRollback", "ArtifactInstall", "ArtifactCommit", "Cleanup")] == [0] * 4
    current = world.device / "bundles/current.tar"
    assert synced.read_text().endswith(f"current.tar\n{current.parent}\n")  # before Mender takes it for committed
    assert (world.run("apply", current).code, world.version) == (0, 1)
    spoil_plan(world)
    shutil.copy(world.bundle(2), theirs / "files/demo.tar")
    assert (call("ArtifactInstall"), call("ArtifactRollback"), call("ArtifactCommit")) == (1, 0, 0)
    assert sorted(one.name for one in (world.device / "bundles").iterdir()) == ["current.tar"]
    assert (world.run("apply", current).code, world.version) == (0, 1)


def test_the_policy_of_the_page_is_one(tmp_path: Path) -> None:
    page = (REPOSITORY / "docs/bundles.md").read_text(encoding="utf-8")
    (text,) = [body for kind, _, body in snippets(page) if kind == "text"]
    (tmp_path / "keys").mkdir()
    for year in (2026, 2027):
        (tmp_path / f"keys/{year}.pub").write_bytes(Signer().public)
    (tmp_path / "policy.yaml").write_text(text)
    found = read_policies(str(tmp_path / "policy.yaml"))[-1]
    assert (len(found.deployments["digits"].keys), found.keep, found.manifests) == (2, 3, ("/srv/line",))
    (tmp_path / "keys/2027.pub").unlink()
    with pytest.raises(OrtdeployError) as refused:
        read_policies(str(tmp_path / "policy.yaml"))
    assert (str(refused.value).count("so nothing runs"), "2027.pub: No such file" in str(refused.value)) == (1, True)


def test_a_policy_without_a_key_says_how_many_it_takes(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("version: 1\ndeployments: {demo: {keys: []}}\n")
    with pytest.raises(OrtdeployError, match=r"keys has 0 items; it takes at least 1"):
        read_policies(str(tmp_path / "policy.yaml"))


def test_files_of_a_bundle_that_never_came_whole_are_freed_and_those_of_versions_stay(
    upgraded: tuple[World, Path],
) -> None:
    world, bundle = upgraded
    kept = world.device / ".ortdeploy/store/files"
    before = {one.name for one in kept.iterdir()}
    with burning_everywhere(25), suppress(Killed):
        world.run("plan", bundle)
    third = world.bundle(3)
    assert world.run("plan", third).code == 0  # is wanted now
    assert world.run("cache", "prune", "@demo").code == 0
    with open_bundle(bundle) as second, open_bundle(third) as wanted:
        gone = set(second.description.digests.values()) - set(wanted.description.digests.values()) - before
    assert not gone & {one.name for one in kept.iterdir()}
    assert (world.run("apply", "@demo").code, world.run("apply", third).code) == (0, 0)


def test_the_report_and_what_is_asked_of_the_record_name_the_bundle(upgraded: tuple[World, Path]) -> None:
    world, bundle = upgraded
    state = world.device / ".ortdeploy"
    with open_bundle(bundle) as opened:
        id_ = opened.id
    assert world.run("plan", bundle).code == 0
    found = installed.wanted_version(state, "demo")
    assert found == installed.Wanted(bundle=id_, same=False, reached="planned", refused=None)
    assert world.run("apply", bundle).code == 0
    assert installed.wanted_version(state, "demo") == installed.Wanted(
        bundle=id_, same=True, reached="current", refused=None
    )
    report = json.loads((world.device / "out/_run.json").read_text())
    assert report["invocation"]["bundle"] == id_


def test_a_policy_whose_place_cannot_be_looked_at_refuses(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def lstat(path: object, _real: Callable[..., os.stat_result] = os.lstat, **named: object) -> os.stat_result:
        if str(path) == names.POLICY:
            raise PermissionError(errno.EACCES, "Permission denied", names.POLICY)
        return _real(path, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", lstat)
        refused = world.cli("apply", world.home / "m.yaml")
    assert (refused.code, "Permission denied" in refused.err) == (1, True)
    Path(names.POLICY).parent.write_text("a file and no folder")
    assert world.cli("validate", world.home / "m.yaml").code == 0


@pytest.mark.quick("0", "4")
@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-20],
        lambda _: "[]",
        lambda _: "{}",
        lambda text: text.replace('"number": 2', '"number": "2"'),
        lambda text: text.replace('"current": "', '"current": "0'),
        lambda text: "[" * 100_000 + text,
    ],
    ids=map(str, range(6)),
)
def test_a_damaged_record_is_written_anew_from_what_is_in_the_store(
    upgraded: tuple[World, Path], damage: Callable[[str], str]
) -> None:
    world, two = upgraded
    assert world.run("apply", two).code == 0
    (world.home / "labels.txt").write_text("up\ndown\n")
    three = world.bundle(3)
    assert world.run("apply", three).code == 0
    assert world.run("rollback", "@demo").code == world.run("apply", "@demo").code == 0
    record = installed.record_of(world.device / ".ortdeploy", "demo")
    whole = json.loads(record.read_text())
    record.write_text(damage(record.read_text()))
    shown = world.run("bundle", "show", three)
    assert f"This writes it anew: ortdeploy status @demo --root={world.device}." in shown.err
    (world.device / "the state").symlink_to(".ortdeploy")
    shown = world.run("bundle", "show", three, "--state-dir", world.device / "the state")
    assert f"--root={world.device} '--state-dir={world.device}/the state'." in shown.err
    world.put("c", 0)
    done = world.run("apply", "@demo")
    assert (done.code, world.version, world.words()[4:]) == (0, 2, ["links", "links"]), done.err
    assert (
        "version 2 runs, with 1, 3 beside it; versions up to 3 are set aside, until rollback @demo --unpin." in done.err
    )
    again = json.loads(record.read_text())
    times = [one.pop("kept") for one in (*whole["versions"], *again["versions"])]
    assert (again["versions"], len(times)) == (whole["versions"], 6)
    assert world.run("status", "@demo").err == ""  # it is told once
    assert "was set aside by a rollback" in world.run("apply", three).err  # as before
    assert (world.run("rollback", "@demo").code, world.version) == (0, 1)


def test_a_record_that_another_process_has_mended_meanwhile_stays_as_it_is(
    upgraded: tuple[World, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, two = upgraded
    assert world.run("apply", two).code == 0
    state = world.device / ".ortdeploy"
    record = installed.record_of(state, "demo")
    whole = record.read_bytes()
    record.write_text("{")

    @contextmanager
    def other_first(*_: object) -> Iterator[None]:
        record.write_bytes(whole)
        yield

    monkeypatch.setattr(recovery, "installing", other_first)
    assert recovery.mend(state, "demo", "2026-01-01T00:00:00+00:00") is None
    assert record.read_bytes() == whole


def test_a_damaged_record_of_signed_versions_is_written_anew_and_trust_is_asked_again(world: World) -> None:
    signer = Signer()
    allow(signer.public)
    world.put("a", 0)
    bundle = sign(world, signer, 1)
    assert world.run("apply", bundle).code == 0
    record = installed.record_of(world.device / ".ortdeploy", "demo")
    record.write_text("")
    allow(Signer().public)
    assert "may not run any more" in world.run("apply", "@demo").err
    record.write_text("")
    allow(signer.public)
    world.put("b", 1)
    done = world.run("apply", "--last-good", bundle)
    assert (done.code, world.words()) == (0, ["left", "left", "right", "right"]), done.err


def test_without_a_document_that_says_what_ran_a_damaged_record_waits_for_the_bundle(world: World) -> None:
    world.put("a", 0)
    bundle = world.bundle(1)
    assert world.run("apply", bundle).code == 0
    shutil.rmtree(world.device / ".ortdeploy/status")
    installed.record_of(world.device / ".ortdeploy", "demo").write_text("")
    refused = world.run("apply", "@demo")
    assert (refused.code, "Nothing says which version ran; apply its bundle" in refused.err) == (1, True), refused.err
    assert (world.run("apply", bundle).code, world.version) == (0, 1)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"format_version": 1', '"format_version": 9', 1),
        lambda text: text.replace('"files": {', '"files": {"../../x": "0", '),
    ],
)
def test_a_record_of_a_newer_version_or_with_strange_names_is_told_in_words(
    world: World, damage: Callable[[str], str]
) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    record = installed.record_of(world.device / ".ortdeploy", "demo")
    record.write_text(damage(record.read_text()))
    for words in (["apply", "@demo"], ["status", "@demo"], ["rollback", "@demo"]):
        refused = world.run(*words)
        assert (refused.code, "bug" in refused.err) == (1, False), refused.err


def test_what_is_wrong_is_shown_in_the_text_that_was_signed(world: World) -> None:
    world.put("a", 0)
    spoil_plan(world)
    bundle = world.bundle(1)
    (world.device / "m.yaml").write_text("another\ntext\n" * 20)
    refused = world.run("apply", bundle)
    assert "argmax: z" in refused.err
    assert "another" not in refused.err


def test_a_bundle_that_is_gone_or_being_copied_does_not_stop_what_runs(world: World) -> None:
    world.put("a", 0)
    bundle = world.bundle(1)
    assert world.run("apply", bundle).code == 0
    raw = bundle.read_bytes()
    spoilt: list[Callable[[], object]] = [bundle.unlink, lambda: bundle.write_bytes(raw[: len(raw) // 2])]
    for number, spoil in enumerate(spoilt):
        spoil()
        world.put(f"b{number}", 1)
        assert world.run("apply", bundle).code == 1
        refused = world.run("apply", bundle, "--last-good")
        assert (refused.code, len(world.words())) == (1, 4 + 2 * number), refused.err
        assert "The version of demo that runs stays" in refused.err


def test_the_ledger_of_a_checkout_goes_on(world: World) -> None:
    bundle = world.bundle(1)
    shutil.copytree(world.home, world.device, dirs_exist_ok=True)
    world.put("a", 0)
    assert world.cli("apply", world.device / "m.yaml").code == 0
    for name in ("m.yaml", "labels.txt"):
        (world.device / name).unlink()
    shutil.rmtree(world.device / "models")
    world.put("b", 1)
    done = world.run("apply", bundle)
    assert (done.code, world.words()) == (0, ["left", "left", "right", "right"]), done.err


def test_versions_are_json_too(world: World) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1, "--label", "abc")).code == 0
    told = json.loads(world.run("status", "@demo", "--versions", "--format", "json").out)["versions"]
    assert [(one["number"], one["label"], one["state"]) for one in told["kept"]] == [(1, "abc", "current")]
    assert told["current"] == told["wanted"] == told["kept"][0]["bundle"]
    assert world.cli("status", world.home / "m.yaml", "--versions").code == 64


def test_a_saved_plan_runs_only_where_its_manifest_may(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.home)
    (world.home / "inbox").mkdir()
    np.save(world.home / "inbox/a.npy", np.zeros((2, 2), np.float32))
    assert world.cli("plan", "m.yaml", "--out", "p.json").code == 0
    allow(Signer().public, more=f"manifests: [{world.device}]\n")
    for words in (["p.json"], ["p.json", "--root", "."]):
        assert "in none of the folders" in world.cli("apply", *words).err
    shutil.copy("p.json", world.device)
    assert "in none of the folders" in world.cli("apply", world.device / "p.json", "--root", ".").err
    allow(Signer().public, more=f"manifests: [{world.home}]\n")
    assert world.cli("apply", "p.json").code == 0


def test_the_log_has_what_was_installed_refused_and_rolled_back(world: World, tmp_path: Path) -> None:
    world.put("a", 0)
    log = tmp_path / "log.jsonl"
    one = world.bundle(1)
    (world.home / "labels.txt").write_text("up\ndown\n")
    two = world.bundle(2)
    for bundle in (one, two):
        assert world.run("apply", bundle, "--log-file", log, "--log-format", "json").code == 0
    assert world.run("rollback", "@demo", "-q").out == ""
    assert world.run("apply", two, "--log-file", log, "--log-format", "json").code == 1
    events = [json.loads(line) for line in log.read_text().splitlines()]
    told = [(one["event"], one["version"]) for one in events if one["event"].startswith("bundle.")]
    assert told == [("bundle.installed", 1), ("bundle.installed", 2), ("bundle.refused", 2)]


@pytest.mark.process
@pytest.mark.skipif(not shutil.which("git") or not shutil.which("ssh-keygen"), reason="needs git and ssh-keygen")
def test_a_signed_commit_is_a_chain_of_trust_without_a_bundle(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(world.home)
    key = world.home.parent / "key"

    def call(*words: str | Path) -> int:
        return subprocess.run(list(map(str, words)), check=False, capture_output=True, timeout=60).returncode

    assert call("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key) == 0
    public = key.with_suffix(".pub").read_text()
    (world.home.parent / "allowed").write_text(f"ci@example.org {public}")
    ours = {
        "user.name": "ci", "user.email": "ci@example.org", "gpg.format": "ssh", "user.signingkey": str(key),
        "gpg.ssh.allowedSignersFile": str(world.home.parent / "allowed"), "commit.gpgsign": "true",
    }  # fmt: skip
    git = ["git", *(word for name, value in ours.items() for word in ("-c", f"{name}={value}"))]
    assert world.cli("lock", "m.yaml").code == 0
    (world.home / "inbox").mkdir()
    (world.home / ".gitignore").write_text("inbox\nout\n.ortdeploy\n")
    assert [call(*git, *words) for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"])] == [0, 0, 0]
    assert call(*git, "verify-commit", "HEAD") == 0
    allow(Signer().public, more=f"manifests: [{world.home}]\n")
    np.save(world.home / "inbox/a.npy", np.zeros((2, 2), np.float32))
    assert world.cli("apply", "m.yaml").code == 0
    world.change_model(5)  # not what was committed
    np.save(world.home / "inbox/b.npy", np.zeros((2, 2), np.float32))
    refused = world.cli("apply", "m.yaml")
    assert (refused.code, "digest-mismatch" in refused.out + refused.err) == (1, True)
    assert call(*git, "-c", "commit.gpgsign=false", "commit", "-qam", "two") == 0
    assert call(*git, "verify-commit", "HEAD") != 0


def test_the_status_document_names_the_version_and_how_far_the_wanted_one_came(world: World) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1, "--label", "abc")).code == 0
    spoil_plan(world)
    second = world.bundle(2)
    for more in ("--last-good", "-q"):
        assert world.run("apply", second, more).code == 1
        told = said(world)
        assert (told["version"]["number"], told["version"]["label"]) == (1, "abc")
        assert (told["wanted"]["same"], told["wanted"]["state_reached"]) == (False, "whole")
        assert (told["state"], told["refusal"]["summary"]) == ("refused", "Version 2 is not planned")
        assert told["jobs"][0]["committed"] == 2
    assert world.run("apply", world.device.parent / "demo-1.tar").code == 0
    assert (said(world)["state"], said(world)["wanted"]["same"]) == ("current", True)


def test_a_first_version_that_is_refused_is_no_idle_device(world: World) -> None:
    assert world.run("apply", world.bundle(1)).code == 1  # nothing to read is there
    told = said(world)
    assert (told["deployment"], told["state"], told["version"]["number"]) == ("demo", "refused", None)
    assert (told["refusal"]["summary"], told["refusal"]["rule"]) == ("Version 1 is not planned", "unmatched-input")
    assert told["jobs"] == []
    unknown = world.run("status", "@demo")
    assert (unknown.code, "Version 1 is not planned since" in unknown.err) == (1, True)
    world.put("a", 0)
    assert world.run("apply", world.device.parent / "demo-1.tar").code == 0
    assert (said(world)["state"], said(world)["refusal"]) == ("current", None)


def test_an_installed_version_that_a_policy_stops_is_refused_in_the_document_too(world: World) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    allow()
    refused = world.run("apply", "@demo")
    assert (refused.code, "may not run any more" in refused.err) == (1, True)
    told = said(world)
    assert (told["state"], told["refusal"]["summary"]) == ("refused", "What is installed may not run any more")
    assert told["wanted"]["state_reached"] == "described"
    assert (told["version"]["number"], told["jobs"][0]["committed"]) == (1, 2)
    Path(names.POLICY).unlink()
    assert world.run("apply", "@demo").code == 0
    assert said(world)["state"] == "current"


def test_a_bundle_holds_all_profiles_and_the_device_chooses(world: World) -> None:
    scale_model(world.home / "models/other.onnx", width=2, factor=-1.0)
    other = "{models: {scale: {path: models/other.onnx, checks: []}}"
    profiles = f"  here: {other}, when: {{cores: '>= 1'}}}}\n  never: {other}, when: {{cores: '>= 100000'}}}}\n"
    world.write(f"{MANIFEST}profiles:\n{profiles}  otherwise: base\n")
    bundle = world.bundle(1)
    with open_bundle(bundle) as opened:
        assert opened.description.profiles == ("here", "never")
    world.put("a", 0)
    done = world.run("apply", bundle)
    assert (done.code, world.words()) == (0, ["right", "right"]), done.err
    assert json.loads((world.device / "out/_run.json").read_text())["invocation"]["profile"] == "here"


@pytest.mark.parametrize("place", ["cache", "store/trees", "store/files"])
def test_a_model_that_was_swapped_on_the_device_is_not_opened_and_the_log_names_it(world: World, place: str) -> None:
    world.write(MANIFEST.replace("providers: [CPU]", "providers: [CPU], cache: true"))
    world.put("a", 0)
    bundle = world.bundle(1)
    assert world.run("apply", bundle).code == 0
    swapped = scale_model(world.home / "other.onnx", width=2, factor=-1.0).read_bytes()
    model = (world.home / "models/scale.onnx").read_bytes()
    names_ = ("model.onnx", "scale.onnx", hashlib.sha256(model).hexdigest())
    paths = [one for one in (world.device / ".ortdeploy" / place).rglob("*") if one.name in names_]
    assert paths
    for path in paths:
        path.unlink()
        path.write_bytes(swapped)
    world.put("b", 1)
    done = world.run("apply", "@demo")
    if place == "store/files":
        assert (done.code, names_[-1][:12] in done.err) == (1, True), done.err
        done = world.run("apply", bundle)
    assert (done.code, world.words()) == (0, ["left", "left", "right", "right"]), done.err
    if place == "cache":
        report = json.loads((world.device / "out/_run.json").read_text())
        assert report["sessions"][0]["cache"] == "made anew: model.onnx in it is not what was kept"


def test_a_part_names_the_bundle_that_it_was_made_from(upgraded: tuple[World, Path]) -> None:
    world, bundle = upgraded
    first = world.home.parent / "demo-1.tar"
    assert world.run("apply", bundle).code == 0
    report = json.loads((world.device / "out/_run.json").read_text())
    ids = []
    for one in (first, bundle):
        with open_bundle(one) as opened:
            ids.append(opened.id)
    assert [report["provenance"][part["provenance"]]["bundle"] for part in report["parts"]] == ids


def test_a_version_whose_rows_are_not_as_expected_goes_back_by_itself(
    world: World, shell_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{shell_program}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY))
    expect = "    expect: {word: {share: {left: '>= 10%'}}}\n"
    back = json.dumps({"command": ["ortdeploy", "rollback", "@demo", "--root", str(world.device)], "when": ["failed"]})
    world.write(f"{MANIFEST}{expect}on_end: {back}\n")
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    (world.home / "labels.txt").write_text("links\nrechts\n")
    new = world.bundle(2)
    world.put("b", 0)
    failed = world.run("apply", "--last-good", new)
    assert (failed.code, world.version, world.words()) == (1, 1, ["left", "left"]), failed.err
    assert world.run("apply", "--last-good", new).code == 0  # as watch does
    assert (world.version, world.words()) == (1, ["left"] * 4)
    assert "not as expected" not in world.run("status", "@demo").words


def test_a_rollback_leaves_out_what_never_ran(world: World) -> None:
    world.put("a", 0)
    for number, command in ((1, "apply"), (2, "plan"), (3, "apply")):
        (world.home / "labels.txt").write_text(f"left{number}\nright{number}\n")
        assert world.run(command, world.bundle(number)).code == 0
    assert "those that are: 1" in world.run("rollback", "@demo", "--to", "2").err
    assert (world.run("rollback", "@demo").code, world.version) == (0, 1)


def test_a_rollback_to_what_is_not_whole_any_more_keeps_the_version_that_runs(upgraded: tuple[World, Path]) -> None:
    world, bundle = upgraded
    assert world.run("apply", bundle).code == 0
    first = next(
        one for one in installed.load_installed(world.device / ".ortdeploy", "demo").versions if one.number == 1
    )
    (world.device / ".ortdeploy/store/files" / first.files["labels.txt"]).unlink()
    refused = world.run("rollback", "@demo")
    assert (refused.code, world.version) == (1, 2)
    assert "demo 1 is not whole any more: " in refused.err
    assert world.run("apply", "@demo").code == world.run("apply", bundle).code == 0


def test_a_rollback_to_what_would_not_run_keeps_the_version_that_runs_unless_it_is_forced(world: World) -> None:
    world.write(MANIFEST.replace(", on_upgrade: continue", ""))
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    world.write(MANIFEST)
    world.change_model(-1)
    world.put("b", 0)
    assert world.run("apply", world.bundle(2)).code == 0
    world.put("c", 0)
    refused = world.run("rollback", "@demo")
    assert (refused.code, world.version) == (1, 2)
    assert "demo 1 would not run here as it is now: not planned: finished-output: " in refused.err
    assert "The version that runs stays; --force goes back all the same." in refused.err
    forced = world.run("rollback", "@demo", "--force")
    assert (forced.code, world.version) == (0, 1)
    assert "demo 1 would not run here as it is now" in forced.err
    done = world.run("apply", "@demo", "--new-run")
    assert (done.code, world.words()) == (0, ["left"] * 6), done.err


def test_a_rollback_checks_a_version_again_if_the_device_is_another(
    upgraded: tuple[World, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    world, bundle = upgraded
    assert world.run("apply", bundle).code == 0

    def fails(*_: object) -> None:
        raise RefusedError("checked", "golden check failed")

    with monkeypatch.context() as patch:
        patch.setattr(Place, "try_checks", fails)
        patch.setattr(Place, "facts_key", lambda *_: "others")
        refused = world.run("rollback", "@demo")
    assert (refused.code, world.version) == (1, 2)
    assert "would not run here as it is now: not checked: golden check failed" in refused.err
    assert (world.run("rollback", "@demo").code, world.version) == (0, 1)


def test_a_plan_that_refuses_a_bundle_is_made_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.put("a", 0)
    spoil_plan(world)
    bundle = world.bundle(1)
    monkeypatch.setattr(Place, "plan", lambda *_: pytest.fail("it is planned again"))
    refused = world.run("plan", bundle)
    assert (refused.code, "is not planned: unknown-output-column: " in refused.err) == (1, True)


def test_a_refusal_is_told_once_by_whoever_looks_again_and_again(world: World) -> None:
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    spoil_plan(world)
    bundle = world.bundle(2)
    look = ("apply", "--last-good", "--every", "1h", bundle)
    first, again, by_hand = world.run(*look), world.run(*look), world.run("apply", bundle)
    assert [one.code for one in (first, again, by_hand)] == [1, 1, 1]
    assert [one.err.count("is not planned: ") for one in (first, again, by_hand)] == [1, 0, 1]
    assert [one.err.count("argmax: z") for one in (first, again, by_hand)] == [1, 0, 1]
    (world.device / "inbox/a.npy").unlink()
    assert "is not planned: " in world.run(*look).err  # for another reason


@pytest.mark.parametrize("part", range(effort(2, 20)))
@pytest.mark.parametrize("command", ["plan", "rollback"])
def test_a_kill_within_a_plan_or_a_rollback_leaves_a_version_that_runs(
    upgraded: tuple[World, Path], command: str, part: int
) -> None:
    world, bundle = upgraded
    if command == "rollback":
        assert world.run("apply", bundle).code == 0
    for event in (1 + 3 * part, 3 + 3 * part):
        with burning_everywhere(event), suppress(Killed):
            world.run(command, "@demo" if command == "rollback" else bundle)
        assert world.version in ({1} if command == "plan" else {1, 2})
    assert world.run("status", "@demo", "--versions").code == 0
    assert world.run("rollback", "@demo", "--unpin").code == 0
    done = world.run("apply", bundle)
    assert (done.code, world.version) == (0, 2), done.err
