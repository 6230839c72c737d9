"""Bundles on a bad day: a policy that changes meanwhile, two applies at once, no room, and a stick that is pulled out."""

import argparse
import errno
import io
import json
import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

import jsonschema
import numpy as np
import pytest
from conftest import REPOSITORY, Cli, Result, read_rows, run_fork
from support.bundle_worlds import MANIFEST, World, allow, sign
from support.bundles import Signer
from support.forks import CAN_FORK, Fork, be_the_program
from support.jobs import Killed

from ortdeploy.bundles.description import BundledFile
from ortdeploy.bundles.layout import Bundle
from ortdeploy.cli.bundles import arriving_bundle
from ortdeploy.cli.bundles.bundle_place import Place
from ortdeploy.cli.children import check as children_check
from ortdeploy.cli.commands import check, watch
from ortdeploy.cli.exit_codes import EXIT_LOCKED
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files import names
from ortdeploy.fleet.document import Clock
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.versions import installed, taking_in
from ortdeploy.planning.versions.version import Version
from ortdeploy.schemas import load_schema
from ortdeploy.state.looks import moment_of


@pytest.fixture
def world(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> World:
    """A checkout and a device without a policy, on which a version runs that nobody has signed."""
    monkeypatch.setattr(names, "POLICY", str(tmp_path / "etc/policy.yaml"))
    return World(tmp_path, cli)


def upgrade(world: World) -> None:
    """Let version 1 run, and change what the next one holds."""
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    (world.home / "labels.txt").write_text("links\nrechts\n")
    world.put("b", 1)


def after_copying(monkeypatch: pytest.MonkeyPatch, do: Callable[[], object]) -> None:
    """Let something happen when a bundle's files have just been copied."""
    real = taking_in.take_in

    def take_in(*words: Any) -> Any:
        done = real(*words)
        do()
        return done

    monkeypatch.setattr(taking_in, "take_in", take_in)


def test_a_policy_that_changes_while_a_bundle_is_taken_in_counts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    signer = Signer()
    allow(signer.public)
    world.put("a", 0)
    assert world.run("apply", sign(world, signer, 1)).code == 0
    (world.home / "labels.txt").write_text("links\nrechts\n")
    world.put("b", 1)
    signed = sign(world, signer, 2)
    after_copying(monkeypatch, lambda: allow(Signer().public))
    refused = world.run("apply", signed, "--last-good")
    assert (refused.code, world.version, world.words()) == (1, 1, ["left", "left"])  # nor does the old one run
    assert "is not trusted: a policy was changed meanwhile: " in refused.err
    assert "may not run any more" in refused.err


@pytest.mark.skipif(not CAN_FORK, reason="the second apply is a fork")
def test_of_two_applies_at_once_one_waits_for_its_next_turn(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(world)
    two = world.bundle(2)
    (world.home / "labels.txt").write_text("up\ndown\n")
    three = world.bundle(3)
    codes: list[int] = []

    def other() -> None:
        codes.extend(run_fork([word, three, "--root", world.device], cwd=world.home).code for word in ("apply", "plan"))

    with monkeypatch.context() as patch:
        after_copying(patch, other)
        done = world.run("apply", two)
    assert (done.code, world.version) == (0, 2), done.err
    assert codes == [EXIT_LOCKED, EXIT_LOCKED]
    assert world.words() == ["left", "left", "rechts", "rechts"]
    assert (world.run("apply", three).code, world.version) == (0, 3)


@pytest.mark.skipif(not CAN_FORK, reason="the limit is of a fork")
def test_a_file_system_that_takes_no_file_of_that_size_keeps_the_version_that_runs(world: World) -> None:
    import resource  # noqa: PLC0415  which Windows does not have

    upgrade(world)
    (world.home / "labels.txt").write_text("links\nrechts\n" + "x\n" * 200_000)
    two = world.bundle(2)
    before = sorted((world.device / ".ortdeploy/store/files").iterdir())

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        be_the_program(["apply", str(two), "--root", str(world.device), "--last-good", "-q"])

    log = world.home.parent / "log"
    with log.open("wb") as err, Fork(limited, stdout=err, stderr=err) as process:
        assert process.wait() == 1
    assert f"is not whole: there is no room for it: {world.device / '.ortdeploy'}" in log.read_text()
    assert ": File too large. So version 1 stays." in log.read_text()
    assert world.words() == ["left", "left", "right", "right"]
    assert sorted((world.device / ".ortdeploy/store/files").iterdir()) == before
    assert (world.run("apply", two).code, world.version) == (0, 2)


class Pulled(io.RawIOBase):
    """A file on a stick that is pulled out after its first bytes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._left = 10

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if not self._left:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._left = 0
        return self._file.read(10)


def test_a_stick_that_is_pulled_out_while_it_is_copied_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(world)
    two = world.bundle(2)
    before = sorted((world.device / ".ortdeploy/store/files").iterdir())
    real = Bundle.opened

    def opened(bundle: Bundle, file: BundledFile) -> Any:
        return Pulled(real(bundle, file))

    with monkeypatch.context() as patch:
        patch.setattr(Bundle, "opened", opened)
        refused = world.run("apply", two, "--last-good")
    assert f"is not whole: {two} cannot be copied: Input/output error. So version 1 stays." in refused.err
    assert (refused.code, world.words()) == (1, ["left", "left", "right", "right"])
    assert sorted((world.device / ".ortdeploy/store/files").iterdir()) == before
    assert (world.run("apply", two).code, world.version) == (0, 2)


def test_the_version_that_came_from_a_stick_runs_while_the_stick_is_away(world: World) -> None:
    stick = world.home.parent / "stick"
    stick.mkdir()
    made = world.cli("bundle", world.home / "m.yaml", "-o", stick / "demo", "--version", "1")
    assert made.code == 0, made.err
    world.put("a", 0)
    assert world.run("apply", stick / "demo").code == 0
    shutil.rmtree(stick)
    world.put("b", 1)
    assert world.run("plan", stick / "demo").code == 1
    done = world.run("apply", stick / "demo", "--last-good")
    assert (done.code, world.words()) == (1, ["left", "left", "right", "right"])
    assert "cannot be read: No such file or directory. The version of demo that runs stays." in done.err


def test_a_signed_bundle_of_another_deployment_does_not_take_the_place_of_what_runs(world: World) -> None:
    signer = Signer()
    allow(signer.public)
    world.put("a", 0)
    path = world.home.parent / "current.tar"
    sign(world, signer, 1).replace(path)
    assert world.run("apply", path).code == 0
    allow(signer.public, name="demo: {keys: [0.pub]}, other")
    world.write(MANIFEST.replace("name: demo", "name: other").replace("path: out", "path: elsewhere"))
    sign(world, signer, 7).replace(path)
    world.put("b", 1)
    assert world.run("plan", path).code == 1
    refused = world.run("apply", path, "--last-good")
    assert (refused.code, world.words()) == (1, ["left", "left", "right", "right"])
    assert f"{path} is a bundle of other, and demo came from there and runs. Give other another path" in refused.err
    assert not (world.device / "elsewhere").exists()
    moved = path.rename(world.home.parent / "other.tar")
    assert world.run("apply", moved).code == 0


def test_under_a_policy_a_deployment_does_not_write_into_the_output_of_another_one(world: World) -> None:
    signer = Signer()
    world.put("a", 0)
    allow(signer.public)
    assert world.run("apply", sign(world, signer, 1)).code == 0
    before = world.words()
    world.write(MANIFEST.replace("name: demo", "name: other"))
    other = sign(world, signer, 1).rename(world.home.parent / "other.tar")
    allow(signer.public, name="demo: {keys: [0.pub]}, other")
    world.put("b", 1)
    for command in ("plan", "apply"):
        refused = world.run(command, other)
        assert (refused.code, world.words()) == (1, before)
        assert "output out is that of demo, which is installed here too, and keys speak for one" in refused.err
    allow(signer.public, name="other")  # demo is called so from now on
    done = world.run("apply", other)
    assert (done.code, len(world.words())) == (0, 4), done.err


def test_a_bundle_that_is_signed_anew_is_taken_by_whoever_runs_it(world: World) -> None:
    old, new = Signer(), Signer()
    allow(old.public)
    world.put("a", 0)
    path = world.home.parent / "current.tar"
    sign(world, old, 1).replace(path)
    assert world.run("apply", path).code == 0
    allow(new.public)
    assert "may not run any more" in world.run("apply", path).err
    sign(world, new, 1).replace(path)
    world.put("b", 1)
    done = world.run("apply", path)
    assert (done.code, world.words()) == (0, ["left", "left", "right", "right"]), done.err
    assert (world.run("apply", "@demo").code, world.version) == (0, 1)


@pytest.mark.parametrize("lost", ["statement", "signature"])
def test_a_statement_or_signature_that_is_lost_comes_again_with_the_bundle(world: World, lost: str) -> None:
    signer, state = Signer(), world.device / ".ortdeploy"
    allow(signer.public)
    world.put("a", 0)
    bundle = sign(world, signer, 1)
    assert world.run("apply", bundle).code == 0
    record = installed.load_installed(state, "demo")
    (signature,) = record.signatures[str(record.current)].values()
    (state / "store/files" / (signature if lost == "signature" else str(record.current))).unlink()
    assert "is gone from the store. Apply the bundle again" in world.run("apply", "@demo").err
    world.put("b", 1)
    done = world.run("apply", bundle)
    assert (done.code, world.words()) == (0, ["left", "left", "right", "right"]), done.err


def test_a_version_that_was_gone_back_to_comes_again_with_its_bundle(world: World) -> None:
    upgrade(world)
    assert world.run("apply", world.bundle(2)).code == 0
    assert (world.run("rollback", "@demo").code, world.version) == (0, 1)
    shutil.rmtree(world.device / ".ortdeploy/store")
    done = world.run("apply", world.home.parent / "demo-1.tar")
    assert (done.code, world.version) == (0, 1), done.err


def test_a_version_that_was_set_aside_is_none_that_arrives(world: World) -> None:
    upgrade(world)
    bundle = world.bundle(2)
    assert world.run("apply", bundle).code == 0
    assert world.run("rollback", "@demo").code == 0
    world.put("c", 0)
    done = world.run("apply", "--last-good", bundle)
    assert (done.code, world.words()[4:]) == (0, ["left", "left"]), done.err
    (document,) = (world.device / ".ortdeploy/status").glob("*.json")
    assert json.loads(document.read_text())["state"] == "current"
    assert "version 2 was set aside by a rollback" in world.run("apply", bundle).err  # who asks for it is told


def test_what_a_command_line_says_lets_a_refused_version_run(world: World) -> None:
    world.write(MANIFEST.replace(", on_upgrade: continue", ""))
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    world.change_model(-1)
    bundle = world.bundle(2)
    assert "Apply with --new-run to start over" in world.run("apply", bundle).err
    done = world.run("apply", "--new-run", bundle)
    assert (done.code, world.version, world.words()) == (0, 2, ["right", "right"]), done.err


def test_golden_checks_are_those_of_the_profile_that_holds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(world.home / "checks/scale", world.home / "checks/other")
    np.savez(world.home / "checks/other/outputs.npz", y=np.full((1, 2), 9, np.float32))
    other = "b: {when: {labels: {line: b}}, models: {scale: {checks: [checks/other]}}}"
    more = "  more: {model: scale, input: {path: more/*.npy, on_empty: done}, output: {path: elsewhere}}"
    profiles = f"profiles:\n  a: {{when: {{labels: {{line: a}}}}}}\n  {other}\n  otherwise: refuse\n"
    world.write(f"{MANIFEST}{more}\n{profiles}")
    (world.device / "more").mkdir()
    world.put("a", 0)
    bundle = world.bundle(1)
    assert "is not planned: no-profile: " in world.run("apply", bundle).err
    assert world.run("apply", bundle, "--label", "line=a").code == 0
    state = world.device / ".ortdeploy"
    passed = installed.load_installed(state, "demo").passed
    monkeypatch.setenv("ORTDEPLOY_DEVICE", "another")  # as each container has another name
    assert world.run("apply", "@demo", "--label", "line=a").code == 0
    assert installed.load_installed(state, "demo").passed == passed
    world.put("b", 0)
    refused = world.run("apply", "@demo", "--label", "line=b")
    assert (refused.code, len(world.words())) == (1, 2)
    assert "golden check checks/other of model scale" in refused.err
    np.save(world.device / "more/bad.npy", np.zeros((1, 3), np.float32))  # of another job, which cannot be planned
    assert world.run("apply", "@demo", "--label", "line=b", "--job", "run").err == refused.err


def test_pruning_keeps_which_profile_an_installed_version_was_chosen_for(world: World) -> None:
    world.write(f"{MANIFEST}profiles:\n  big: {{when: {{cores: '>= 1'}}}}\n  otherwise: base\n")
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    (note,) = (world.device / ".ortdeploy/told").glob("*.profile")
    assert world.run("cache", "prune", "@demo").code == 0
    assert note.is_file()
    shutil.rmtree(world.device / ".ortdeploy/bundles")
    assert world.cli("cache", "prune", world.home / "m.yaml", "--state-dir", world.device / ".ortdeploy").code == 0
    assert not note.exists()


def test_golden_checks_that_have_refused_a_version_do_not_run_again_by_themselves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(world)
    np.savez(world.home / "checks/scale/outputs.npz", y=np.full((1, 2), 9, np.float32))
    bundle = world.bundle(2)
    assert "is not checked: golden check " in world.run("apply", bundle).err
    with monkeypatch.context() as patch:
        patch.setattr(Place, "try_checks", lambda *_: pytest.fail("they run again"))
        assert "is not checked: golden check " in world.run("apply", "--last-good", bundle).err
    monkeypatch.setattr(Place, "try_checks", lambda *_: None)
    assert (world.run("apply", bundle).code, world.version) == (0, 2)  # whoever applies it asks for them


def test_a_policy_that_cannot_be_used_is_told_in_the_document(world: World) -> None:
    upgrade(world)
    Path(names.POLICY).parent.mkdir()
    Path(names.POLICY).write_text("keys: [")
    (document,) = (world.device / ".ortdeploy/status").glob("*.json")
    for path in ("@demo", world.home.parent / "demo-1.tar"):
        document.write_text(document.read_text().replace('"refused"', '"current"'))
        assert "the policy cannot be used, so nothing runs" in world.run("apply", path).err
        said = json.loads(document.read_text())
        assert (said["state"], said["refusal"]["summary"]) == ("refused", "The policy cannot be used")


NOBODY = 65534
only_root = pytest.mark.skipif(
    not CAN_FORK or os.geteuid() != 0 or not shutil.which("su"), reason="only root can be another user"
)


@pytest.fixture
def open_world(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A world that other users may look into."""
    with tempfile.TemporaryDirectory(prefix="ortdeploy-tests-") as folder:
        Path(folder).chmod(0o755)
        monkeypatch.setattr(names, "POLICY", f"{folder}/etc/policy.yaml")
        yield World(Path(folder), cli)


def run_as_nobody(world: World, *words: str | Path) -> tuple[int, str]:
    """Run a command on the device as a user who owns nothing there."""

    def begin() -> None:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
        be_the_program([*map(str, words), "--root", str(world.device)])

    with Fork(begin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        said, _ = process.communicate()
        return process.returncode, said


@only_root
def test_a_user_who_cannot_read_what_root_brought_in_is_told_who_can(open_world: World) -> None:
    world = open_world
    world.put("a", 0)
    assert world.run("apply", world.bundle(1)).code == 0
    for command in ("apply", "status", "plan"):
        code, said = run_as_nobody(world, command, "@demo")
        assert (code, "belongs to root, and nobody may not read it. Run ortdeploy as root, or give" in said) == (
            1,
            True,
        ), said
        assert f"chown -R nobody {world.device}/.ortdeploy." in said
        assert "gone" not in said
    assert world.run("apply", "@demo").code == 0  # all of it is still there


@only_root
def test_root_is_told_that_the_owner_of_the_folder_cannot_run_what_it_brings_in(open_world: World) -> None:
    world = open_world
    world.put("a", 0)
    os.chown(world.device, NOBODY, NOBODY)
    done = world.run("apply", world.bundle(1))
    assert (done.code, "belongs to nobody, and this is root, whose files nobody cannot read" in done.err) == (0, True)
    assert "this is root" not in world.run("apply", world.home.parent / "demo-1.tar").err  # which brings nothing in


@only_root
@pytest.mark.process
def test_mender_which_is_root_plans_as_the_owner_of_the_folder(open_world: World) -> None:
    world, theirs = open_world, open_world.home.parent / "mender"
    (theirs / "files").mkdir(parents=True)
    (theirs / "files/demo.tar").write_bytes(b"")
    (theirs / "files/demo.tar").chmod(0o600)
    (theirs / "ortdeploy").write_text('#!/bin/sh\necho "$(id -un) $*"; head -c 1 "$2"\n')
    (theirs / "runuser").write_text("#!/bin/sh\nexit 127\n")  # as on a board with busybox
    for one in ("ortdeploy", "runuser"):
        (theirs / one).chmod(0o755)
    os.chown(world.device, NOBODY, NOBODY)
    env = {**os.environ, "PATH": f"{theirs}:{os.environ['PATH']}", "ORTDEPLOY_ROOT": str(world.device)}
    module = REPOSITORY / "deployments/fleet/mender-module"
    done = subprocess.run(
        [module, "ArtifactInstall", theirs], env=env, check=False, capture_output=True, text=True, umask=0o077
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"nobody plan {world.device}/bundles/.next.tar --root {world.device} -q\n"


def test_a_layout_is_taken_from_within_and_an_empty_one_is_none(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made = world.home.parent / "made"
    assert world.cli("bundle", world.home / "m.yaml", "-o", made).code == 0
    world.put("a", 0)
    monkeypatch.chdir(made)
    for name in ("index.json", "oci-layout"):  # to which a copy has not come
        (made / name).rename(made.with_name(name))
    assert ". is no bundle: there is no index.json" in world.run("apply", ".").err
    for name in ("index.json", "oci-layout"):
        made.with_name(name).rename(made / name)
    done = world.run("apply", ".")
    assert (done.code, world.version) == (0, 1), done.err
    (made / "x.tar").mkdir()
    assert "x.tar is no bundle: there is no index.json" in world.run("apply", "x.tar").err


def test_without_a_policy_the_deployment_that_came_last_from_a_path_runs_while_that_is_away(world: World) -> None:
    stick = world.home.parent / "stick.tar"
    world.put("a", 0)
    world.bundle(1).replace(stick)
    assert world.run("apply", stick).code == 0
    text = MANIFEST.replace("path: out", "path: elsewhere")
    for name in ("other", "third", "fourth"):  # whichever record comes first
        world.write(text.replace("name: demo", f"name: {name}").replace("elsewhere", name))
        world.bundle(1).replace(stick)
        assert world.run("apply", stick).code == 0
    stick.unlink()
    world.put("b", 0)
    assert world.run("apply", "--last-good", stick).code == 1
    assert [len(read_rows(world.device / name)) for name in ("out", "other", "third", "fourth")] == [2, 2, 2, 4]


def test_a_bundle_that_cannot_be_read_is_told_until_it_can_be(world: World) -> None:
    upgrade(world)
    bundle = world.home.parent / "demo-1.tar"
    whole = bundle.read_bytes()
    (document,) = (world.device / ".ortdeploy/status").glob("*.json")
    bundle.write_bytes(whole[:-2000])
    done = world.run("apply", "--last-good", bundle)
    assert (done.code, world.version, len(world.words())) == (1, 1, 4)
    said = json.loads(document.read_text())
    assert (said["state"], said["version"]["number"], said["wanted"]["same"]) == ("refused", 1, False)
    assert said["refusal"]["summary"] == "What lies in the place of the bundle is not described"
    jsonschema.validate(said, load_schema("status"))
    assert "demo bundle is refused since " in world.run("status", "@demo").words
    assert "that runs stays" not in world.run("apply", "--last-good", "--every", "1h", bundle).err  # as was said
    bundle.write_bytes(bytes(1024))
    assert "that runs stays" in world.run("apply", "--last-good", "--every", "1h", bundle).err
    bundle.rename(bundle.with_suffix(".away"))  # as with a stick
    assert world.run("apply", "--last-good", bundle).code == 1
    bundle.write_bytes(whole)
    assert world.run("apply", "--last-good", bundle).code == 0
    assert json.loads(document.read_text())["state"] == "current"
    assert "demo bundle" not in world.run("status", "@demo", "--versions").out


def test_an_apply_of_ones_own_tells_too_that_a_bundle_cannot_be_read(world: World) -> None:
    upgrade(world)
    bundle = world.home.parent / "demo-1.tar"
    bundle.write_bytes(bundle.read_bytes()[:-2000])
    done = world.run("apply", bundle)
    assert (done.code, len(world.words())) == (1, 2)  # it runs nothing else
    assert "the copy was cut off. Copy it again. The version of demo that runs stays." in done.words
    said = world.run("status", "@demo").words
    assert "demo bundle is refused since " in said
    assert said.endswith("; version 1 runs in its place")
    (document,) = (world.device / ".ortdeploy/status").glob("*.json")
    assert json.loads(document.read_text())["state"] == "refused"


@pytest.mark.parametrize("facts", ["same", "others"])
def test_while_another_process_brings_a_version_in_the_one_before_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, facts: str
) -> None:
    upgrade(world)
    two = world.bundle(2)
    if facts == "others":  # so that golden checks run before the jobs
        monkeypatch.setattr(Place, "facts_key", lambda *_: "others")
    with installed.installing(world.device / ".ortdeploy", "demo"):  # for as long as it may hang there
        assert world.run("apply", two).code == EXIT_LOCKED
        done = world.run("apply", "--last-good", two)
    assert (done.code, world.version, world.words()[2:]) == (EXIT_LOCKED, 1, ["right", "right"])
    assert "is held by a live run" in done.err
    assert (world.run("apply", two).code, world.version) == (0, 2)


def test_numbers_go_on_from_a_copy_of_the_ledger(world: World) -> None:
    upgrade(world)
    two = world.bundle(2)
    assert world.run("apply", two).code == 0
    state, copy = world.device / ".ortdeploy", world.home.parent / "copy.zip"
    assert world.cli("state", "backup", copy, "--state-dir", state).code == 0
    shutil.rmtree(state)
    assert world.cli("state", "restore", copy, "--state-dir", state).code == 0
    assert "version 2 is not whole here any more: " in world.run("apply", "@demo").err
    assert "version 2 ran here before, and 1 is older" in world.run("apply", world.home.parent / "demo-1.tar").err
    assert (world.run("apply", two).code, world.version, len(world.words())) == (0, 2, 4)


@pytest.mark.parametrize("kills", ["plan", "try_checks"])  # as a model does that takes all memory when it is opened
def test_golden_checks_that_hang_end_and_what_resets_the_device_is_begun_three_times(
    world: World, monkeypatch: pytest.MonkeyPatch, kills: str
) -> None:
    upgrade(world)
    bundle = world.bundle(2)

    def reset(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Place, kills, reset)
        for _ in range(3):
            with suppress(Killed):
                world.run("apply", "--last-good", bundle)
        done = world.run("apply", "--last-good", bundle)
    assert "planning or checking it was begun 3 times, and each time killed, or this device was reset" in done.err
    assert (done.code, world.version, world.words()) == (1, 1, ["left", "left", "right", "right"])
    assert (world.run("apply", bundle).code, world.version) == (0, 2)
    monkeypatch.setattr(check, "UNATTENDED", 0.1)
    monkeypatch.setattr(children_check, "run_check", lambda *_: threading.Event().wait())
    (world.home / "labels.txt").write_text("up\ndown\n")
    done = world.run("apply", "--last-good", world.bundle(3))
    assert "error: the process that ran it was ended after 0 seconds. So version 2 stays" in done.err
    assert done.code == 1


@pytest.mark.skipif(not CAN_FORK, reason="the signal is for a fork")
@pytest.mark.parametrize("ended", ["plan", "try_checks"])
def test_a_stop_by_a_signal_is_no_kill(world: World, monkeypatch: pytest.MonkeyPatch, ended: str) -> None:
    upgrade(world)
    bundle = world.bundle(2)

    def stop(*_: object) -> None:
        try:
            os.kill(os.getpid(), signal.SIGTERM)  # of systemd
        finally:
            os.kill(os.getpid(), signal.SIGTERM)  # of watch

    with monkeypatch.context() as patch:
        patch.setattr(Place, ended, stop)
        for _ in range(4):
            with Fork(
                lambda: be_the_program(["apply", "--last-good", str(bundle), "--root", str(world.device)])
            ) as one:
                assert one.wait() == -signal.SIGTERM
    assert (world.run("apply", "--last-good", bundle).code, world.version) == (0, 2)


@pytest.mark.parametrize(("days", "hours", "tries"), [(0.5, 5, 0), (1, 0.5, 0), (1, 5, 1), (-60 * 365, 5, 1)])
def test_what_was_killed_each_time_is_tried_once_a_day(
    world: World, monkeypatch: pytest.MonkeyPatch, days: float, hours: float, tries: int
) -> None:
    upgrade(world)
    bundle, begun = world.bundle(2), []

    def reset(*_: object) -> None:
        begun.append(1)
        raise Killed

    def look() -> Result | None:
        with suppress(Killed):
            return world.run("apply", "--last-good", bundle)
        return None

    def later(now: float) -> Clock:
        return Clock(now=moment_of(now + days * 86_400), synchronised=None, uptime=hours * 3600, boot=None)

    with monkeypatch.context() as patch:
        patch.setattr(Place, "plan", reset)
        for _ in range(4):
            done = look()
        assert done is not None
        assert "watch tries it again in a day" in done.words
        patch.setattr(arriving_bundle, "this_clock", later)
        look()
        assert len(begun) == 3 + tries
        patch.undo()
        patch.setattr(Place, "plan", reset)
        assert look() is not None  # the day begins anew
        assert len(begun) == 3 + tries
    monkeypatch.setattr(arriving_bundle, "this_clock", later)
    assert (world.run("apply", "--last-good", bundle).code, world.version) == (1 - tries, 1 + tries)


def test_what_refuses_a_version_three_times_for_now_has_not_killed_its_plan(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(world)
    bundle = world.bundle(2)

    def fail(*_: object) -> None:
        raise OrtdeployError("no space left on the device")

    with monkeypatch.context() as patch:
        patch.setattr(Place, "plan", fail)
        for _ in range(4):
            assert "no space left on the device" in world.run("apply", "--last-good", bundle).err
    assert (world.run("apply", "--last-good", bundle).code, world.version) == (0, 2)


def test_watch_looks_at_the_inputs_of_what_runs_while_its_bundle_is_away(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(world)
    (world.home.parent / "demo-1.tar").unlink()
    seen: list[tuple[str, ...]] = []

    def apply_once(arguments: argparse.Namespace, *_: object) -> bool:
        before = arguments.taken.arrivals.look()
        world.put("c", 0)
        seen.append((*arguments.taken.arrivals.jobs, str(arguments.taken.arrivals.look() != before)))
        return True

    monkeypatch.setattr(watch, "apply_once", apply_once)
    assert world.run("watch", world.home.parent / "demo-1.tar").code == 0
    assert seen == [("run", "True")]


def test_watch_notices_a_rollback_and_its_end_at_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    upgrade(world)
    bundle = world.bundle(2)
    assert world.run("apply", bundle).code == 0
    seen = list[str]()

    def apply_once(arguments: argparse.Namespace, *_: object) -> bool:
        look = arguments.taken.arrivals.look
        seen.append(look())
        for words in (["rollback"], ["rollback", "--unpin"]):
            assert world.run(*words, "@demo").code == 0
            seen.append(look())
        return True

    with monkeypatch.context() as patch:
        patch.setattr(watch, "apply_once", apply_once)
        assert world.run("watch", bundle).code == 0
    assert seen[0] != seen[1] != seen[2]


def test_a_refused_version_of_other_profiles_has_the_old_one_checked_no_more_often(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    upgrade(world)
    np.savez(world.home / "checks/scale/outputs.npz", y=np.full((1, 2), 9, np.float32))
    world.write(f"{MANIFEST}profiles:\n  a: {{when: {{labels: {{line: a}}}}}}\n  otherwise: refuse\n")
    bundle, real, tried = world.bundle(2), Place.try_checks, list[int | None]()

    def try_checks(place: Place, version: Version, planned: Planned) -> None:
        tried.append(version.number)
        real(place, version, planned)

    monkeypatch.setattr(Place, "try_checks", try_checks)
    assert world.run("apply", "--last-good", bundle, "--label", "line=a").code == 1
    assert tried == [2]
