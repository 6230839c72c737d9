"""deployments/fleet/pull-signed.sh: a device runs what a trusted key has signed, or keeps what it has and says so."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, REPOSITORY, Cli, deploy
from support.models import scale_model

SCRIPT = REPOSITORY / "deployments/fleet/pull-signed.sh"
GIT = ("-c", "user.name=me", "-c", "user.email=me@example.org", "-c", "gpg.format=ssh", "-c", "init.defaultBranch=main")

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        not all(map(shutil.which, ("git", "ssh-keygen", "flock"))), reason="needs git, ssh-keygen and flock of Linux"
    ),
]


class Line:
    """A repository, a clone of it on a device, and two keys, of which the device trusts one."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.device = folder, folder / "device"
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "PATH": f"{program}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(folder),
            "GIT_CONFIG_NOSYSTEM": "1",
        }
        for key in ("trusted", "other"):
            self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / key)
        public = (folder / "trusted.pub").read_text()
        (folder / "signers").write_text(f'release@example.org namespaces="git" {public}')
        self.git(folder, "init", "-q", "--bare", "origin")
        self.work = folder / "work"
        self.git(folder, "clone", "-q", "origin", "work")
        deploy(self.work)
        (self.work / "data.npy").unlink()
        (self.work / ".gitignore").write_text("inbox/\noutbox/\n.ortdeploy/\n")
        self.manifest = MANIFEST.replace("data.npy", "inbox/*.npy")
        (self.work / "m.yaml").write_text(self.manifest)
        self.run(program / "ortdeploy", "lock", "m.yaml", cwd=self.work)
        self.locked = (self.work / "m.yaml").read_text()
        self.first = self.commit("trusted")
        self.git(folder, "clone", "-q", "-b", "main", "origin", "device")
        (self.device / "inbox").mkdir()
        np.save(self.device / "inbox/a.npy", np.ones((4, 4), np.float32))

    def run(self, *command: Any, cwd: Path | None = None) -> str:
        done = subprocess.run(
            [str(one) for one in command],
            cwd=cwd or self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def git(self, folder: Path, *words: Any) -> str:
        return self.run("git", *GIT, *words, cwd=folder)

    def commit(self, key: str | None, *flags: str) -> str:
        """Commit what is in the working tree, signed with a key, and push it; return the commit."""
        self.git(self.work, "add", "-A")
        sign = ("--no-gpg-sign",) if key is None else (f"-S{self.folder / key}",)
        self.git(self.work, "commit", "-q", "--allow-empty", "-m", "change", *sign, *flags)
        self.git(self.work, "push", "-q", "-f", "origin", "HEAD:main")
        return self.git(self.work, "rev-parse", "HEAD")

    def write(self, text: str) -> None:
        (self.work / "m.yaml").write_text(text)

    def pull(self) -> tuple[int, str]:
        """Return the exit code of the script, and its last line."""
        done = subprocess.run(
            [SCRIPT, self.device, self.folder / "signers", "main", "m.yaml"],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, (done.stderr.splitlines() or [""])[-1]

    @property
    def head(self) -> str:
        return self.git(self.device, "rev-parse", "HEAD")

    def said(self) -> dict[str, Any]:
        (path,) = (self.device / ".ortdeploy/status").glob("*.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found


@pytest.fixture
def line(tmp_path: Path, shell_program: Path) -> Line:
    return Line(tmp_path, shell_program)


def test_a_signed_commit_is_pulled_and_applied(line: Line, cli: Cli) -> None:
    assert line.pull() == (0, ""), "there is nothing new"
    assert cli("apply", line.device / "m.yaml", "--last-good").code == 0
    line.write(line.locked.replace("size: 8", "size: 4"))
    new = line.commit("trusted")
    assert line.pull() == (0, "")
    assert line.head == new
    assert cli("apply", line.device / "m.yaml", "--last-good", "--new-run").code == 0
    assert (line.said()["version"]["commit"], line.said()["state"]) == (new, "current")


@pytest.mark.quick("other")
@pytest.mark.parametrize("key", ["other", None])
def test_a_commit_by_the_wrong_key_or_by_none_stays_outside(line: Line, key: str | None) -> None:
    line.write(line.locked.replace("size: 8", "size: 4"))
    new = line.commit(key)
    code, why = line.pull()
    assert (code, line.head) == (1, line.first)
    assert why == f"refused: {new} is not signed by a trusted key; {line.first[:12]} stays"
    assert "size: 8" in (line.device / "m.yaml").read_text()
    signed = line.commit("trusted")  # on top of it: what runs is what the last commit holds
    assert line.pull() == (0, "")
    assert line.head == signed


def test_what_plan_refuses_is_pulled_and_the_last_good_version_goes_on(line: Line, cli: Cli) -> None:
    manifest = line.device / "m.yaml"
    assert cli("apply", manifest, "--last-good").code == 0
    scale_model(line.work / "double.onnx", width=3)
    line.run(shutil.which("ortdeploy", path=line.environment["PATH"]), "lock", "m.yaml", cwd=line.work)
    new = line.commit("trusted")
    assert line.pull() == (0, "")
    np.save(line.device / "inbox/b.npy", np.ones((4, 4), np.float32))
    assert cli("apply", manifest, "--last-good").code == 1
    found = line.said()
    assert (found["state"], found["jobs"][0]["committed"]) == ("refused", 8)
    assert (found["version"]["commit"], found["wanted"]["commit"]) == (line.first, new)
    done = cli("fleet", line.device / ".ortdeploy/status", "--wanted", new, "--format", "json")
    assert done.json["rows"][0]["wrong"] == ["refused", "behind"]


def test_a_model_without_its_digest_stays_outside(line: Line) -> None:
    line.write(line.manifest)
    line.commit("trusted")
    code, why = line.pull()
    assert (code, line.head) == (1, line.first)
    assert "has a model without its digest" in why
    assert line.git(line.device, "worktree", "list").count("\n") == 0, "what was tried is gone"


@pytest.mark.quick("True")
@pytest.mark.parametrize("goes_back", [True, False])
def test_a_force_push_stays_outside_though_it_is_signed(line: Line, *, goes_back: bool) -> None:
    line.write(line.locked.replace("size: 8", "size: 4"))
    second = line.commit("trusted")
    assert line.pull() == (0, "")
    line.git(line.work, "reset", "-q", "--hard", line.first)
    if goes_back:
        line.git(line.work, "push", "-q", "-f", "origin", "HEAD:main")
    else:
        line.write(line.locked.replace("size: 8", "size: 2"))
        line.commit("trusted")
    code, why = line.pull()
    assert (code, line.head) == (1, second)
    assert "the branch was rewritten, or goes back" in why


@pytest.mark.quick("True")
@pytest.mark.parametrize("noted", [True, False])
def test_a_killed_pull_is_completed_by_the_next_one(line: Line, *, noted: bool) -> None:
    line.write(line.locked.replace("size: 8", "size: 4"))
    (line.work / "new.txt").write_text("new\n")
    new = line.commit("trusted")
    git = line.device / ".git"
    line.git(line.device, "fetch", "-q")
    (git / "ortdeploy-pull").write_text(f"{new}\n" if noted else "")
    if noted:  # what is there when git is killed in the middle of its work
        (git / "index.lock").write_bytes(b"")
        (line.device / "m.yaml").write_text("version: 1\nname: de")
        (line.device / "new.txt").write_text("new\n")
    assert line.pull() == (0, "")
    assert line.head == new
    assert "size: 4" in (line.device / "m.yaml").read_text()
    assert not (git / "ortdeploy-pull").exists()


def test_edits_in_the_checkout_are_kept_and_named(line: Line) -> None:
    (line.device / "m.yaml").write_text(line.locked.replace("size: 8", "size: 2"))
    line.commit("trusted")
    code, why = line.pull()
    assert (code, line.head) == (1, line.first)
    assert "files were edited here (m.yaml)" in why
    assert "size: 2" in (line.device / "m.yaml").read_text()
    line.git(line.device, "stash", "-q")
    assert line.pull() == (0, "")


def test_a_branch_that_is_gone_or_another_one_changes_nothing(line: Line) -> None:
    line.git(line.device, "checkout", "-q", "-b", "mine")
    assert "not on the branch main" in line.pull()[1]
    line.git(line.device, "checkout", "-q", "main")
    shutil.rmtree(line.folder / "origin")
    assert line.pull() == (1, f"refused: the branch cannot be fetched; {line.first[:12]} stays")
