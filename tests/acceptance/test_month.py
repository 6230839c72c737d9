"""Sixty days of a job that recurs, with nobody there: what arrived is committed once or a dead letter, on every day.

The clock is the test's, the rest is real: pictures arrive, some half-copied or corrupt, names come back with other
content, parts are carried away, applies are killed at their durable steps, the disk is full, the clock jumps, and
commits change the manifest, the model or both; some of them are refused until the next one.
"""

import io
import json
import os
import random
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
from support.carriers import CARRIERS, delivered, rows_of
from support.forks import CAN_FORK, Fork
from support.models import save_model

from ortdeploy.cli.main import run
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import read_ledger
from ortdeploy.running.part_writer import PartWriter

Image = pytest.importorskip("PIL.Image")

pytestmark = pytest.mark.skipif(not CAN_FORK, reason="kills are of forks")

DAY = 24 * 3600 * 10**9
MANIFEST = """
version: 1
name: camera
models: {scale: {path: scale.onnx, providers: [CPU], session: {intra_op_num_threads: 1}}}
jobs:
  run:
    model: scale
    input: {path: inbox/*.png, columns: {x: pixels}, key: [path], on_empty: done, on_change: CHANGE, stable_for: 5s}
    prepare: {x: [{grayscale: true}, {layout: NCHW}, {cast: float32}]}
    batch: {size: BATCH}
    POSTPROCESS
    output: {path: out, format: jsonl, removable: true, on_upgrade: continue, rows_per_part: 4}
    errors: {max_failed: 1000000, attempts: 100}
"""

COMMITS: dict[int, dict[str, Any]] = {
    4: {"batch": 3},
    9: {"factor": 3},
    13: {"broken": "jobs: ["},
    14: {"broken": None},
    20: {"postprocess": "postprocess: [{argmax: y, as: largest}]"},
    22: {"postprocess": ""},
    27: {"factor": 5, "batch": 2},
    33: {"truncated": True},
    34: {"truncated": False},
    41: {"batch": 7},
    48: {"factor": 2},
}
REFUSED = {13, 20, 21, 33}
CLOCK_JUMPS = {6: -3 * 3600 * 10**9, 17: -90 * DAY, 18: 90 * DAY, 39: 30 * DAY}


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
    shots: int = 0
    settled: Counter[tuple[str, int]] = field(default_factory=Counter)
    waiting: dict[str, int] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)
    faults: Counter[int] = field(default_factory=Counter)
    leaving: set[str] = field(default_factory=set)
    gone: set[str] = field(default_factory=set)
    final: set[tuple[str, int]] = field(default_factory=set)
    on_change: str = "append"
    state: dict[str, Any] = field(default_factory=lambda: {"batch": 2, "postprocess": "", "factor": 2})

    def commit(self, day: int) -> None:
        """What `git pull` brings on a day."""
        self.state.update(COMMITS.get(day, {}))
        text = MANIFEST.replace("BATCH", str(self.state["batch"])).replace("POSTPROCESS", self.state["postprocess"])
        text = text.replace("CHANGE", self.on_change)
        (self.folder / "m.yaml").write_text(self.state.get("broken") or text, encoding="utf-8")
        self._save_model()

    def _save_model(self) -> None:
        path, new = self.folder / "scale.onnx", self.folder / "new.onnx"
        save_model(
            new,
            [helper.make_node("Mul", ["x", "factor"], ["y"])],
            {"x": (TensorProto.FLOAT, ["batch", 1, 2, 2])},
            {"y": (TensorProto.FLOAT, ["batch", 1, 2, 2])},
            {"factor": np.array(self.state["factor"], dtype=np.float32)},
        )
        if self.state.get("truncated"):
            new.write_bytes(new.read_bytes()[:-20])
        if not path.exists() or path.read_bytes() != new.read_bytes():
            new.replace(path)

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
        carrier = CARRIERS[self.random.choice(list(CARRIERS))]
        if (self.folder / "out").exists():
            carrier(self.folder / "out", self.folder / "away" / f"{day}-{self.random.random()}")

    def committed(self) -> Counter[tuple[str, int]]:
        """What is in parts, wherever they are, without rows that have failed since: names and numbers of pictures."""
        failed = {line["row"] for line in self.dead_letters()}
        places = [place for place in (self.folder / "out", self.folder / "away") if place.exists()]
        found: Counter[tuple[str, int]] = Counter()
        for row in (one for number, one in rows_of(delivered(*places)).items() if number not in failed):
            ((low, high), (factor, _)) = row["y"][0]
            found[Path(row["path"]).name, round(low / factor) + 256 * round(high / factor)] += 1
        return found

    def check(self) -> None:
        """Every picture that was settled is committed once, and what cannot be read is a dead letter."""
        found = self.committed()
        assert found == self.settled, {"missing": self.settled - found, "too many": found - self.settled}
        assert {Path(line["path"]).name for line in self.dead_letters()} >= set(self.corrupt)

    def dead_letters(self) -> list[dict[str, Any]]:
        with read_ledger(self.folder / ".ortdeploy") as ledger:
            return [] if ledger is None else [json.loads(line) for line in ledger.failures("../out")]


def killed_apply(camera: Camera, at: int, fault: str) -> None:
    """Apply in a process that is killed before its step number `at` that makes something durable, or has no disk."""

    def program() -> None:
        steps = iter(range(10_000))
        sync, transaction = os.fsync, Ledger._transaction  # noqa: SLF001

        def step() -> None:
            if next(steps) == at and fault == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

        def fsync(descriptor: int) -> None:
            step()
            sync(descriptor)

        @contextmanager
        def stepping(ledger: Ledger) -> Iterator[Any]:
            step()
            with transaction(ledger) as db:
                yield db
            step()

        def full(*_: Any, **__: Any) -> Any:
            raise OSError(28, "No space left on device")

        patch = pytest.MonkeyPatch()  # of a process that ends with it
        patch.setattr(os, "fsync", fsync)
        patch.setattr(Ledger, "_transaction", stepping)
        if fault == "disk":
            patch.setattr(PartWriter, "write_file", full)
        sys.argv = ["ortdeploy", "apply", str(camera.folder / "m.yaml"), "-q"]
        run()

    with Fork(program, stdout=-3, stderr=-3) as process:
        code = process.wait()
    camera.faults[code] += 1


def a_day(camera: Camera, day: int, cli: Cli) -> None:
    manifest = camera.folder / "m.yaml"
    camera.now += DAY + CLOCK_JUMPS.get(day, 0)
    camera.commit(day)
    happenings: list[Callable[[], None]] = [camera.complete_copies, camera.arrive, camera.repair, camera.clean]
    happenings.append(camera.copy_again)
    for happening in happenings:
        happening()
    if day in REFUSED:
        before = camera.committed()
        assert cli("apply", manifest).code == 1
        assert camera.committed() == before
        return
    for _ in range(camera.random.randint(0, 2)):
        killed_apply(camera, camera.random.randint(0, 18), camera.random.choice(["kill", "kill", "kill", "disk"]))
        camera.carry(day) if camera.random.random() < 0.3 else None
    applied = [cli("apply", manifest) for _ in range(3 if day in CLOCK_JUMPS else 1)]
    assert [one.code for one in applied] == [0] * len(applied), applied
    camera.check()
    camera.seen()
    if day % 5 == 0:
        assert cli("retry", manifest, "--job", "run").code == 0
        camera.check()
    camera.carry(day)


@pytest.mark.parametrize(
    ("days", "seed", "on_change"),
    [
        (7, 1, "append"),
        pytest.param(60, 2, "append", marks=pytest.mark.slow),
        pytest.param(60, 3, "append", marks=pytest.mark.slow),
        pytest.param(60, 4, "rerun", marks=pytest.mark.slow),
        pytest.param(60, 5, "rerun", marks=pytest.mark.slow),
    ],
)
@pytest.mark.process
def test_a_camera_runs_for_months_without_anybody(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, days: int, seed: int, on_change: str
) -> None:
    camera = Camera(folder=tmp_path, random=random.Random(seed), on_change=on_change)  # noqa: S311  a schedule
    (tmp_path / "inbox").mkdir()
    monkeypatch.setattr(time, "time_ns", lambda: camera.now)
    monkeypatch.setattr(time, "time", lambda: camera.now / 1e9)
    for day in range(1, days + 1):
        a_day(camera, day, cli)
    assert sum(camera.settled.values()) > days
    assert camera.faults[-signal.SIGKILL] > days / 4
