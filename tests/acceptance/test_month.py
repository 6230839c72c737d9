"""Weeks of a job that recurs, with nobody there: what arrived is committed once or a dead letter, on every day.

The clock is the test's, the rest is real: pictures arrive, some half-copied or corrupt, names come back with other
content, parts are carried away, applies are killed at their durable steps, the disk is full, the clock jumps, and
commits change the manifest, the model or both; some of them are refused until the next one. Some cameras also put
parts together, forget what is old, pause, get commits while a job runs, or have a second job that reads the first. To
some, commits come as signed bundles: copies are cut off or damaged, versions are rolled back, and a key is taken out.
"""

import io
import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.bundle_worlds import allow
from support.bundles import Signer
from support.carriers import CARRIERS, delivered, rows_of
from support.effort import effort
from support.forks import CAN_FORK, Fork
from support.models import save_model

from ortdeploy.bundles.description import parse
from ortdeploy.cli.main import run
from ortdeploy.files import names
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.parts.part_writer import PartWriter
from ortdeploy.planning.versions.installed import running_version
from ortdeploy.sources import file_selection

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="kills are of forks")

DAY = 24 * 3600 * 10**9
MANIFEST = """
version: 1
name: camera
models: {scale: {path: scale.onnx, providers: [CPU], session: {intra_op_num_threads: 1}}SAME}
jobs:
  run:
    model: scale
    input: {path: inbox/*.png, columns: {x: pixels}, key: [path], on_empty: done, on_change: CHANGE, stable_for: 5s}
    prepare: {x: [{grayscale: true}, {layout: NCHW}, {cast: float32}]}
    batch: {size: BATCH}
    POSTPROCESS
    output: {path: out, format: jsonl, removable: true, on_upgrade: continue, rows_per_part: 4KEEP}
    errors: {max_failed: 1000000, attempts: 100}
    PAUSE
"""
READER = """
  reader:
    model: same
    input: {job: run, columns: {x: y}, key: [path]}
    output: {path: read, format: jsonl, removable: true, on_upgrade: continue, rows_per_part: 4}
"""
FULL = "pause: {below: {free_disk: 100000GiB}}"
"""What pauses the job on any machine."""

COMMITS: dict[int, dict[str, Any]] = {
    4: {"batch": 3},
    9: {"factor": 3},
    13: {"broken": "jobs: ["},
    14: {"broken": None},
    20: {"postprocess": "postprocess: [{argmax: y, as: largest}]"},
    22: {"postprocess": ""},
    27: {"factor": 5, "batch": 2},
    33: {"truncated": True, "factor": 4},
    34: {"truncated": False},
    41: {"batch": 7},
    48: {"factor": 2},
}
REFUSED = {13, 20, 21, 33}
SET_BACK = {24: ["rollback", "@camera"], 25: ["rollback", "@camera", "--unpin"]}
"""What somebody says to a camera with bundles, whose newest version then waits for the second day."""
REVOKED = 29
"""The day on which the key of a camera with bundles is taken out; the next version has another one."""
CLOCK_JUMPS = {6: -3 * 3600 * 10**9, 17: -90 * DAY, 18: 90 * DAY, 31: 30 * DAY}
DAYS = effort(35, 60)
"""All that is above but two commits of a known kind is within five weeks."""


@dataclass
class Camera:
    """A folder in which everything happens, and what must come of it.

    `settled` are good contents by name that an apply must have committed; `waiting` those that are not settled yet;
    `corrupt` are the names whose content cannot be read, `unread` those that no apply has seen as they are, `leaving`
    those that were taken away since, and `gone` those that an apply has seen gone: rows of these are `final`.
    """

    folder: Path
    random: random.Random
    now: int = field(default_factory=lambda: time.time_ns() + 100 * DAY)
    uptime: int = 0
    shots: int = 0
    settled: Counter[tuple[str, int]] = field(default_factory=Counter)
    waiting: dict[str, int] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    faults: Counter[int] = field(default_factory=Counter)
    pulled: int = 0
    leaving: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    final: set[tuple[str, int]] = field(default_factory=set)
    on_change: str = "append"
    habits: frozenset[str] = frozenset()
    state: dict[str, Any] = field(default_factory=lambda: {"batch": 2, "postprocess": "", "factor": 2})
    versions: list[bytes] = field(default_factory=list)
    signer: Signer = field(default_factory=Signer)

    @property
    def flags(self) -> list[str]:
        """The flags of each apply."""
        return ["--last-good"] if "last-good" in self.habits else []

    @property
    def home(self) -> Path:
        """The folder of the manifest and its models."""
        return self.folder / "home" if "bundles" in self.habits else self.folder

    @property
    def named(self) -> list[str]:
        """What an apply is told to apply, and where."""
        is_bundled = "bundles" in self.habits
        return [str(self.folder / "camera.tar"), f"--root={self.folder}"] if is_bundled else [str(self.home / "m.yaml")]

    @property
    def known(self) -> list[str]:
        """How other commands name what runs."""
        return ["@camera", f"--root={self.folder}"] if "bundles" in self.habits else self.named

    def commit(self, day: int) -> None:
        """What `git pull` brings on a day."""
        self.state.update(COMMITS.get(day, {}))
        self.pull()

    def pull(self) -> None:
        """Write manifest and models as the last commit has them."""
        text = MANIFEST.replace("BATCH", str(self.state["batch"])).replace("POSTPROCESS", self.state["postprocess"])
        text = text.replace("CHANGE", self.on_change).replace("PAUSE", self.state.get("pause", ""))
        text = text.replace("KEEP", ", keep: 110d" if "keep" in self.habits else "")
        reads = "reader" in self.habits
        text = text.replace("SAME", ", same: {path: same.onnx, providers: [CPU]}" if reads else "")
        text += READER if reads else ""
        is_bundled = "bundles" in self.habits  # whose copies break
        (self.home / "m.yaml").write_text((not is_bundled and self.state.get("broken")) or text, encoding="utf-8")
        self._save_model()

    def _save_model(self) -> None:
        path, new = self.home / "scale.onnx", self.home / "new.onnx"
        save_model(
            new,
            [helper.make_node("Mul", ["x", "factor"], ["y"])],
            {"x": (TensorProto.FLOAT, ["batch", 1, 2, 2])},
            {"y": (TensorProto.FLOAT, ["batch", 1, 2, 2])},
            {"factor": np.array(self.state["factor"], dtype=np.float32)},
        )
        if self.state.get("truncated") and "bundles" not in self.habits:
            new.write_bytes(new.read_bytes()[:-20])
        if not path.exists() or path.read_bytes() != new.read_bytes():
            new.replace(path)

    def deliver(self, cli: Cli) -> None:
        """Let the bundle of the last commit arrive: whole, cut off if it is broken, or with a byte that changed."""
        made = self.home / "made.tar"
        held = b"".join((self.home / name).read_bytes() for name in ("m.yaml", "scale.onnx")) + self.signer.public
        if self.versions[-1:] != [held]:
            self.versions.append(held)
            files, signature, number = self.home / "files", self.home / "model.sig", f"--version={len(self.versions)}"
            shutil.rmtree(files, ignore_errors=True)
            assert cli("bundle", self.home / "m.yaml", "--files", files, number).code == 0
            signature.write_bytes(self.signer.sign(parse((files / "deployment.json").read_bytes())))
            signed = ("-o", made, "--signature", signature, number)
            assert cli("bundle", self.home / "m.yaml", *signed).code == 0
        raw = made.read_bytes()
        model = (self.home / "scale.onnx").read_bytes()
        if self.state.get("broken"):
            raw = raw[: len(raw) // 2]
        elif self.state.get("truncated"):
            raw = raw.replace(model, model[:-1] + bytes([model[-1] ^ 1]))
        (self.folder / "new.tar").write_bytes(raw)
        (self.folder / "new.tar").replace(self.folder / "camera.tar")

    def picture(self) -> tuple[int, bytes]:
        """A picture that no other is like: its number, and the bytes of its file."""
        self.shots += 1
        pixels = np.array([[self.shots % 256, self.shots // 256], [1, 7]], dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(pixels).save(file, format="png")
        return self.shots, file.getvalue()

    def write(self, name: str, content: bytes, age: int) -> None:
        self.unread.add(name)
        path = self.folder / "inbox" / name
        path.write_bytes(content)
        os.utime(path, ns=(self.now - age, self.now - age))
        if not age:  # no apply looks at it before it is settled
            return
        if self.on_change == "rerun" and name not in self.gone:  # its old rows are replaced
            for shot in [one for one in self.settled if one[0] == name and one not in self.final]:
                del self.settled[shot]
        self.gone.discard(name)

    def arrive(self) -> None:
        """Let pictures arrive: new ones, under names of older ones too, half-copied and corrupt ones."""
        for _ in range(self.random.randint(0, 5)):
            name = f"IMG_{self.random.randint(0, 40):04}.png"
            if name in self.waiting or name in self.corrupt or name in self.unread:
                continue
            number, content = self.picture()
            match self.random.choice(["good", "good", "good", "half", "corrupt"]):
                case "good":
                    self.write(name, content, DAY // 24)
                    self.settled[name, number] += 1
                case "half":
                    self.write(name, content[:30], 0)
                    self.waiting[name] = number
                case "corrupt":
                    self.write(name, content[:40], DAY // 24)
                    self.corrupt[name] = number

    def go_on(self, time: int) -> None:
        """Let some time go by, in which copies that have begun go on."""
        self.now, self.uptime = self.now + time, self.uptime + time
        for name in self.waiting:
            os.utime(self.folder / "inbox" / name, ns=(self.now, self.now))

    def complete_copies(self) -> None:
        """Let the copies of yesterday come to their end."""
        for name in list(self.waiting):
            del self.waiting[name]
            number, content = self.picture()
            self.write(name, content, DAY // 24)
            self.settled[name, number] += 1

    def repair(self) -> None:
        """Let some corrupt pictures be replaced by good ones."""
        for name in list(self.corrupt):
            if self.random.random() < 0.3:
                del self.corrupt[name]
                number, content = self.picture()
                self.write(name, content, DAY // 24)
                self.settled[name, number] += 1

    def clean(self) -> None:
        """Take pictures away that were read long ago."""
        for path in (self.folder / "inbox").iterdir():
            if path.name not in {*self.corrupt, *self.waiting, *self.unread} and self.random.random() < 0.1:
                path.unlink()
                self.leaving.add(path.name)

    def readers_rows(self) -> Counter[tuple[str, int]]:
        """What the job that reads the first one has committed."""
        places = [place for place in (self.folder / "read", self.folder / "away-read") if place.exists()]
        return Counter(map(picture_of, rows_of(delivered(*places)).values()))

    def factors(self) -> dict[int, int]:
        """The factor of the model that made each row that is committed, by its number."""
        places = [place for place in (self.folder / "out", self.folder / "away") if place.exists()]
        return {number: row["y"][0][1][0] for number, row in rows_of(delivered(*places)).items()}

    def seen(self) -> None:
        """Note what an apply has seen: files that are gone, whose rows stay whatever comes under their names."""
        self.unread &= self.waiting.keys()
        for name in self.leaving - {path.name for path in (self.folder / "inbox").iterdir()}:
            self.gone.add(name)
            self.final.update(one for one in self.settled if one[0] == name)
        self.leaving.clear()

    def copy_again(self) -> None:
        """Let pictures be copied once more that are there and were read: each has a new time and its old content."""
        for path in (self.folder / "inbox").iterdir():
            if path.name not in {*self.corrupt, *self.waiting, *self.unread} and self.random.random() < 0.1:
                os.utime(path, ns=(self.now - DAY // 24, self.now - DAY // 24))

    def carry(self, day: int) -> None:
        for output, away in (("out", "away"), ("read", "away-read")):
            carrier = CARRIERS[self.random.choice(list(CARRIERS))]
            if (self.folder / output).exists():
                carrier(self.folder / output, self.folder / away / f"{day}-{self.random.random()}")

    def committed(self) -> Counter[tuple[str, int]]:
        """What is in parts, wherever they are, without rows that have failed since: names and numbers of pictures."""
        failed = {line["row"] for line in self.dead_letters()}
        places = [place for place in (self.folder / "out", self.folder / "away") if place.exists()]
        found: Counter[tuple[str, int]] = Counter()
        found.update(picture_of(row) for number, row in rows_of(delivered(*places)).items() if number not in failed)
        return found

    def check(self) -> None:
        """Every picture that was settled is committed once, and what cannot be read is a dead letter."""
        found = self.committed()
        assert found == self.settled, {"missing": self.settled - found, "too many": found - self.settled}
        assert {Path(line["path"]).name for line in self.dead_letters()} >= set(self.corrupt)
        if "reader" in self.habits:
            assert self.readers_rows() == self.settled

    def has_forgotten(self) -> bool:
        with read_ledger(self.folder / ".ortdeploy") as ledger:
            record = None if ledger is None else ledger.output("../out")
        return record is not None and record.forgotten.parts > 0

    def dead_letters(self) -> list[dict[str, Any]]:
        with read_ledger(self.folder / ".ortdeploy") as ledger:
            return [] if ledger is None else [json.loads(line) for line in ledger.failures("../out")]


def picture_of(row: dict[str, Any]) -> tuple[str, int]:
    """The name and the number of the picture from which a row was made."""
    ((low, high), (factor, _)) = row["y"][0]
    return Path(row["path"]).name, round(low / factor) + 256 * round(high / factor)


@dataclass
class Steps:
    """The steps of a process that change the disk. Before the one with the number `at` it is killed, or a commit comes."""

    camera: Camera
    at: int
    fault: str
    taken: int = 0

    def step(self) -> None:
        self.taken += 1
        if self.taken == self.at:
            if self.fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.fault == "pull":
                self.camera.pull()

    def before(self, act: Callable[..., Any]) -> Callable[..., Any]:
        def stepped(*arguments: Any, **more: Any) -> Any:
            self.step()
            return act(*arguments, **more)

        return stepped

    def around(self, transaction: Callable[[Ledger], Any]) -> Callable[[Ledger], Any]:
        @contextmanager
        def stepping(ledger: Ledger) -> Iterator[Any]:
            self.step()
            with transaction(ledger) as db:
                yield db
            self.step()

        return stepping


def disturbed_apply(camera: Camera, at: int, fault: str) -> None:
    """Apply in a process that is killed, gets a commit while it runs, or has a full disk."""

    def full(*_: Any, **__: Any) -> Any:
        raise OSError(28, "No space left on device")

    def program() -> None:
        steps, patch = Steps(camera, at, fault), pytest.MonkeyPatch()  # of a process that ends with it
        for name in ("fsync", "replace", "rename", "unlink", "mkdir"):
            patch.setattr(os, name, steps.before(getattr(os, name)))
        patch.setattr(Ledger, "_transaction", steps.around(Ledger._transaction))  # noqa: SLF001  a durable step
        if fault == "disk":
            patch.setattr(PartWriter, "write_file", full)
        sys.argv = ["ortdeploy", "apply", *camera.named, "-q", *camera.flags]
        run()

    with Fork(program, stdout=-3, stderr=-3) as process:
        code = process.wait()
    camera.faults[code] += 1


def pull_within(camera: Camera) -> None:
    """Let a commit with another model arrive while a job runs: all that the run makes is of one model."""
    before = camera.factors()
    camera.state.update(factor=camera.random.randint(2, 9), batch=camera.random.randint(2, 7))
    manifest = camera.folder / "m.yaml"
    old = manifest.read_text(encoding="utf-8")
    disturbed_apply(camera, camera.random.randint(1, 60), "pull")
    camera.pulled += manifest.read_text(encoding="utf-8") != old
    made = {factor for number, factor in camera.factors().items() if number not in before}
    assert len(made) <= 1, made
    camera.pull()


def pause(camera: Camera, cli: Cli) -> None:
    """Let there be no room on the disk, as the manifest understands it, for one apply."""
    camera.state["pause"] = FULL
    camera.pull()
    code = cli("apply", camera.folder / "m.yaml", *camera.flags).code
    assert code in {0, 5}
    camera.faults[code] += 1
    camera.state["pause"] = ""
    camera.pull()


def a_day(camera: Camera, day: int, cli: Cli) -> None:
    camera.go_on(DAY)
    camera.now += CLOCK_JUMPS.get(day, 0)
    camera.commit(day)
    is_bundled = "bundles" in camera.habits
    if is_bundled:
        set_back(camera, day, cli)
        before_that = running_version(camera.folder / ".ortdeploy", "camera")
    happenings: list[Callable[[], None]] = [camera.complete_copies, camera.arrive, camera.repair, camera.clean]
    happenings.append(camera.copy_again)
    for happening in happenings:
        happening()
    is_refused = day in REFUSED or (is_bundled and day in {min(SET_BACK), REVOKED})
    if (is_refused and not camera.flags) or (is_bundled and day == REVOKED):
        before = camera.committed()
        assert cli("apply", *camera.named, *camera.flags).code == 1
        assert camera.committed() == before
        return
    if not is_refused:
        disturb(camera, day, cli)
    applied = [cli("apply", *camera.named, *camera.flags)]
    for _ in range(2 if day in CLOCK_JUMPS else 0):
        camera.go_on(6 * 10**9)
        applied.append(cli("apply", *camera.named, *camera.flags))
    is_told = is_refused and day not in SET_BACK  # a version that was set aside is passed over without a word
    assert {one.code for one in applied} == {int(is_told)}, applied  # 1 also if the last good version runs
    if is_bundled:
        runs = running_version(camera.folder / ".ortdeploy", "camera")
        assert runs == before_that if is_refused else runs and runs.number == len(camera.versions)
    camera.check()
    camera.seen()
    if is_refused:
        return
    if day % 5 == 0:
        assert cli("retry", *camera.known, "--job", "run").code == 0
        assert cli("apply", *camera.named, *camera.flags).code == 0
        camera.check()
    if day % 7 == 0 and "compact" in camera.habits:
        assert cli("compact", *camera.known, "--job", "run").code == 0
        camera.check()
    camera.carry(day)


def set_back(camera: Camera, day: int, cli: Cli) -> None:
    """Let the bundle of a day arrive at a camera, and somebody roll it back, or take a key out of its policy."""
    if day == REVOKED:
        camera.signer = Signer()
        allow(camera.signer.public, name="camera")
    else:
        camera.deliver(cli)
    if day in SET_BACK:
        assert cli(*SET_BACK[day], f"--root={camera.folder}").code == 0


def disturb(camera: Camera, day: int, cli: Cli) -> None:
    """Let applies of a day be killed or have no disk, pause, or get a commit while they run."""
    for _ in range(camera.random.randint(0, 2)):
        disturbed_apply(camera, camera.random.randint(1, 50), camera.random.choice(["kill", "kill", "kill", "disk"]))
        if "reader" not in camera.habits and camera.random.random() < 0.3:  # else a part may go before it was read
            camera.carry(day)
    if "pause" in camera.habits and camera.random.random() < 0.3:
        pause(camera, cli)
    if "pull" in camera.habits and camera.random.random() < 0.3:
        pull_within(camera)


@pytest.mark.parametrize(
    ("days", "seed", "on_change", "habits"),
    [
        (4, 1, "append", ""),
        pytest.param(DAYS, 2, "append", "last-good pull pause", marks=pytest.mark.slow),
        pytest.param(DAYS, 3, "append", "reader last-good", marks=pytest.mark.slow),
        pytest.param(DAYS, 4, "rerun", "keep compact pause", marks=pytest.mark.slow),
        pytest.param(DAYS, 5, "rerun", "pull last-good", marks=pytest.mark.slow),
        pytest.param(DAYS, 6, "append", "keep compact pull", marks=pytest.mark.slow),
        pytest.param(DAYS, 7, "append", "bundles last-good compact", marks=pytest.mark.slow),
        pytest.param(DAYS, 8, "rerun", "bundles last-good keep", marks=pytest.mark.slow),
    ],
)
@pytest.mark.process
def test_a_camera_runs_for_months_without_anybody(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, seed: int, on_change: str, habits: str
) -> None:
    chance = random.Random(seed)  # noqa: S311  a schedule
    camera = Camera(folder=tmp_path, random=chance, on_change=on_change, habits=frozenset(habits.split()))
    if "reader" in habits:
        save_model(
            tmp_path / "same.onnx",
            [helper.make_node("Identity", ["x"], ["y"])],
            {"x": (TensorProto.FLOAT, ["batch", 1, 2, 2])},
            {"y": (TensorProto.FLOAT, ["batch", 1, 2, 2])},
        )
    (tmp_path / "inbox").mkdir()
    if "bundles" in habits:
        camera.home.mkdir()
        monkeypatch.setattr(names, "POLICY", str(tmp_path / "etc/policy.yaml"))
        allow(camera.signer.public, name="camera")
    monkeypatch.setattr(time, "time_ns", lambda: camera.now)
    monkeypatch.setattr(time, "time", lambda: camera.now / 1e9)
    monkeypatch.setattr(file_selection, "_ticks", lambda: camera.uptime)
    for day in range(1, days + 1):
        a_day(camera, day, cli)
    assert sum(camera.settled.values()) > days
    assert camera.faults[-signal.SIGKILL] > days / 6
    assert camera.faults[5] or "pause" not in camera.habits
    assert camera.pulled or "pull" not in camera.habits
    assert camera.has_forgotten() or "keep" not in camera.habits
