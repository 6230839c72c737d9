"""Outputs as the ortdeploy left them that wrote ledger version 7, in every state that a kill or a failure leaves.

`python tests/support/ledger_v7.py CHECKOUT` makes `tests/data/ledger-v7.tar.xz` with a checkout of that ortdeploy (commit
c1fe6d7c). Each state is a folder with a manifest, its input files, the output and the state directory. `truth.json` says
what its files hold. Each row is a number x that no other row has, so it can be found in any output; a negative one fails.
"""

import fnmatch
import json
import os
import platform
import shutil
import signal
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper

ARCHIVE = Path(__file__).parents[1] / "data/ledger-v7.tar.xz"
STATE_DIR = ".ortdeploy"
_TIMES = "times.json"
_TRUTH = "truth.json"
_NOT_KEPT = ("store", "graphs", "locks", "cache", "live", "choices.json", "opened-models.json")
"""What a state directory remembers of models and of this machine, and makes again."""

MANIFEST = """\
version: 1
name: old
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, key: [path, row], on_change: rerun, on_empty: done}
    batch: {size: 2}
    output: {path: out, format: FORMAT, rows_per_part: 4, OUTPUT}
    errors: {max_failed: 99, on_nan: ON_NAN}
"""

LISTENING = """\
version: 1
name: old
models: {sum: {path: sum.onnx, providers: [CPU]}}
pipelines:
  listen:
    steps:
      - {run: sum, in: {x: $x, h: $h}, out: {y: y, h_after: h_after}}
    outputs: {y: $y}
    state: {h: $h_after}
jobs:
  run:
    pipeline: listen
    input: {path: inbox/*.npy, columns: {x: array}, key: [path, row], on_empty: done}
    batch: {size: 2}
    output: {path: out, format: FORMAT, rows_per_part: 4, OUTPUT}
    errors: {max_failed: 99, on_nan: ON_NAN}
"""
"""The result of a row is the sum of all rows before it and its own."""


@dataclass
class Truth:
    """What the files of an inbox hold, and what an output must hold of it.

    `gone` are rows of files that were taken away: their failures are forgotten. `elsewhere` are those that another machine has. Without `heals`, negative
    rows fail; with it, retry gives a result for them.
    """

    files: dict[str, list[float]] = field(default_factory=dict)
    gone: list[float] = field(default_factory=list)
    elsewhere: list[float] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    heals: bool = False
    sums: bool = False
    clock: int = 1_700_000_000

    @property
    def rows(self) -> list[float]:
        """The rows that the output must account for."""
        there = [value for values in self.files.values() for value in values]
        return sorted({*there, *(value for value in self.gone if value > 0)} - {*self.elsewhere})


class Site:
    """A folder with a manifest, its inbox, and what was done there. Commands are called as methods of a subclass."""

    def __init__(self, folder: Path, truth: Truth | None = None) -> None:
        self.folder = folder
        self.truth = truth or Truth()

    @property
    def out(self) -> Path:
        """The output folder."""
        return self.folder / "out"

    @property
    def away(self) -> Path:
        """Where parts are carried."""
        return self.folder / "away"

    def write(self, kind: str = "jsonl", output: str = "on_upgrade: refuse", text: str = MANIFEST) -> None:
        """Write the manifest."""
        on_nan = "keep" if self.truth.heals else "fail"
        filled = text.replace("FORMAT", kind).replace("OUTPUT", output).replace("ON_NAN", on_nan)
        (self.folder / "m.yaml").write_text(filled, encoding="utf-8")

    def heal(self) -> None:
        """Let negative rows have results from now on."""
        self.truth.heals = True
        path = self.folder / "m.yaml"
        path.write_text(path.read_text(encoding="utf-8").replace("on_nan: fail", "on_nan: keep"), encoding="utf-8")

    def put(self, name: str, *values: float) -> None:
        """Write a file, or change it."""
        array = np.array([[value] * 4 for value in values], dtype=np.float32).reshape(-1, 4)
        array[array[:, 0] < 0, 1] = np.nan
        self.truth.files[name] = list(values)
        self.truth.unreadable = [one for one in self.truth.unreadable if one != name]
        self._put(name, array)

    def spoil(self, name: str) -> None:
        """Write a file that cannot be read."""
        self.truth.files[name] = []
        self.truth.unreadable.append(name)
        self._put(name, None)

    def _put(self, name: str, array: "np.ndarray | None") -> None:
        path = self.folder / "inbox" / f"{name}.npy"
        path.parent.mkdir(parents=True, exist_ok=True)
        if array is None:
            path.write_bytes(b"not an array")
        else:
            np.save(path, array)
        self.truth.clock += 10
        os.utime(path, (self.truth.clock, self.truth.clock))

    def take(self, name: str) -> None:
        """Take a file away; its rows stay."""
        (self.folder / "inbox" / f"{name}.npy").unlink()
        self.truth.gone += self.truth.files.pop(name)

    def carry(self) -> None:
        """Carry the parts away."""
        self.away.mkdir(exist_ok=True)
        for path in self.out.glob("part-*"):
            path.rename(self.away / path.name)


@dataclass
class Death:
    """A kill before or after (`when`) an event on files, or a stop of the model at rows above `limit`.

    `name` is a pattern of what the event names: a rename both names, with a space between them.
    """

    event: str = ""
    name: str = ""
    when: str = "before"
    limit: float | None = None

    def lie_in_wait(self) -> None:
        """Kill this process when it comes to it."""
        if self.limit is not None:
            self._stop_the_model(self.limit)
        passed: list[str] = []

        def look(event: str, arguments: tuple[Any, ...]) -> None:
            if passed and event != "os.kill":
                os.kill(os.getpid(), signal.SIGKILL)
            names = [Path(os.fsdecode(one)).name for one in arguments[:2] if isinstance(one, str | bytes | Path)]
            if event == self.event and fnmatch.fnmatch(" ".join(names), self.name):
                if self.when == "before":
                    os.kill(os.getpid(), signal.SIGKILL)
                passed.append(event)

        sys.addaudithook(look)

    @staticmethod
    def _stop_the_model(limit: float) -> None:
        from ortdeploy.diagnostics import ProviderFailedError  # noqa: PLC0415  of the checkout
        from ortdeploy.runtime.session import OrtSession  # noqa: PLC0415

        run = OrtSession.run

        def stopping(self: Any, fetch: Any, feeds: Mapping[str, Any], *more: Any) -> Any:
            if np.nanmax(np.abs(feeds["x"])) > limit:
                raise ProviderFailedError("the device is gone")
            return run(self, fetch, feeds, *more)

        OrtSession.run = stopping  # type: ignore[method-assign,assignment]


class Maker(Site):
    """Makes states with the ortdeploy of the checkout, each command in a process of its own."""

    def run(self, *arguments: str, death: Death | None = None, code: int = 0, at: Path | None = None) -> None:
        """Call the program in a process; it is killed if `death` says where, else ends with `code`."""
        child = os.fork()
        if child == 0:
            self._run(arguments, death, at or self.folder)
        _, status = os.waitpid(child, 0)
        ended = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        wanted = -signal.SIGKILL if death is not None and death.event else code
        assert ended == wanted, (arguments, death, ended, (self.folder / "said.txt").read_text())

    def _run(self, arguments: Sequence[str], death: Death | None, at: Path) -> None:
        os.chdir(at)
        said = os.open(self.folder / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(said, stream)
        platform.node, platform.platform = lambda: "board", lambda *_, **__: "Linux"
        from ortdeploy.cli.main import main  # noqa: PLC0415  of the checkout

        if death is not None:
            death.lie_in_wait()
        code = 70
        try:
            code = main(list(arguments))
        finally:
            os._exit(code)

    def apply(self, **asked: Any) -> None:
        """Apply the manifest."""
        self.run("apply", "m.yaml", **asked)

    def retry(self, *more: str, **asked: Any) -> None:
        """Retry its failed rows."""
        self.run("retry", "m.yaml", "--job", "run", *more, **asked)

    def compact(self, **asked: Any) -> None:
        """Put its small parts together."""
        self.run("compact", "m.yaml", "--job", "run", **asked)

    def finish_making(self) -> None:
        """Delete what is made again, and note what is true."""
        state = self.folder / STATE_DIR
        for name in _NOT_KEPT:
            shutil.rmtree(state / name) if (state / name).is_dir() else (state / name).unlink(missing_ok=True)
        journal = state / "state.db-journal"
        assert not journal.exists() or not any(journal.read_bytes()[:8]), "a transaction is underway"
        journal.unlink(missing_ok=True)
        (self.folder / "said.txt").unlink()
        (self.folder / _TRUTH).write_text(json.dumps(asdict(self.truth)), encoding="utf-8")


STATES: dict[str, Callable[[Maker], None]] = {}
REMOVABLE = "removable: true"
FORMATS = ("arrow", "csv", "jsonl", "npz", "parquet")
TEN = (1.0, -2.0, 3.0, 4.0, 5.0, 6.0, -7.0, 8.0, 9.0, 10.0)
OTHERS = (21.0, -22.0, 23.0, 24.0, 25.0, 26.0, 27.0, 28.0, 29.0, 30.0)
FIRST = (11.0, 12.0)
FEWER = (41.0, 42.0, -43.0)


def _state(name: str) -> Callable[[Callable[[Maker], None]], Callable[[Maker], None]]:
    def note(make: Callable[[Maker], None]) -> Callable[[Maker], None]:
        STATES[name] = make
        return make

    return note


def _kept(kind: str) -> Callable[[Maker], None]:
    def make(site: Maker) -> None:
        site.write(kind)
        site.put("a", *TEN)
        site.apply(death=Death(limit=6), code=1)
        assert list(site.out.glob(".part-*.begun"))

    return make


for _kind in FORMATS:
    STATES[f"kept-{_kind}"] = _kept(_kind)


@_state("kept-state")
def _kept_state(site: Maker) -> None:
    """The recurrent state after the last kept row is part of what is kept."""
    site.truth.sums = True
    site.write(text=LISTENING)
    nodes = [
        helper.make_node("Unsqueeze", ["x", "first"], ["whole"]),
        helper.make_node("Add", ["whole", "h"], ["h_after"]),
        helper.make_node("Squeeze", ["h_after", "first"], ["y"]),
    ]
    whole: list[Any] = [1, "batch", 4]
    row: list[Any] = ["batch", 4]
    takes, makes = {"x": (TensorProto.FLOAT, row), "h": (TensorProto.FLOAT, whole)}, ["y", "h_after"]
    gives = {makes[0]: (TensorProto.FLOAT, row), makes[1]: (TensorProto.FLOAT, whole)}
    from support.models import save_model  # noqa: PLC0415  found by `main`

    save_model(site.folder / "sum.onnx", nodes, takes, gives, {"first": np.array([0], dtype=np.int64)})
    site.put("a", *map(abs, TEN))
    site.apply(death=Death(limit=6), code=1)


def _killed(
    do: str, event: str, name: str, when: str, output: str, before: Callable[[Maker], None]
) -> Callable[[Maker], None]:
    """Return what applies ten rows, does something `before`, then kills a command at an event."""

    def make(site: Maker) -> None:
        site.write(output=output)
        site.put("0", *FIRST)
        site.put("a", *TEN)
        if before is not _nothing:
            site.apply()
            before(site)
        getattr(site, do)(death=Death(event, name, when))

    return make


def _nothing(_: Maker) -> None:
    """Nothing was applied before."""


def _change(site: Maker) -> None:
    site.put("a", *OTHERS)


def _shorten(site: Maker) -> None:
    site.put("a", *FEWER)


def _grow(site: Maker) -> None:
    """Leave many small parts: the first apply has left three already."""
    for number, name in enumerate("bcd"):
        site.put(name, 60.0 + number)
        site.apply()


_PLAIN = "on_upgrade: refuse"
for _when in ("before", "after"):
    STATES |= {
        f"named-{_when}": _killed("apply", "os.rename", "* part-00000001.jsonl", _when, REMOVABLE, _nothing),
        f"merge-{_when}": _killed("retry", "os.rename", "*.merged part-*", _when, _PLAIN, Maker.heal),
        f"merge-beside-{_when}": _killed("retry", "os.rename", "*.merged part-*", _when, REMOVABLE, Maker.heal),
        f"replaced-{_when}": _killed("apply", "os.rename", "*.replaced part-*", _when, _PLAIN, _change),
        f"replaced-beside-{_when}": _killed("apply", "os.rename", "*.replaced part-*", _when, REMOVABLE, _change),
        f"leaving-{_when}": _killed("apply", "os.rename", "*.replaced part-*", _when, _PLAIN, _shorten),
        f"compacted-{_when}": _killed("compact", "os.rename", "*.replaced part-*", _when, _PLAIN, _grow),
    }
STATES |= {
    "leaving-removing": _killed("apply", "os.remove", "part-*", "after", _PLAIN, _shorten),
    "compacted-removing": _killed("compact", "os.remove", "part-*", "after", _PLAIN, _grow),
    "midway": _killed("apply", "open", ".part-00000001*.replaced*", "before", _PLAIN, _change),
    "leaving": _killed("apply", "open", ".part-00000000*.replaced*", "before", _PLAIN, _shorten),
}


@_state("unreadable")
def _unreadable(site: Maker) -> None:
    site.write()
    site.put("a", *TEN[:5])
    site.spoil("b")
    site.apply()
    site.put("b", *OTHERS[:3])


@_state("adopted")
def _adopted(site: Maker) -> None:
    """Failed rows of a file that this machine has not run."""
    site.write()
    site.put("a", *TEN[:5])
    site.apply()
    there = site.folder / "there"
    shutil.copytree(site.folder, there, ignore=lambda *_: ["out", STATE_DIR, "inbox", "there"])
    site.put("c", *FEWER)
    shutil.copytree(site.folder / "inbox", there / "inbox")
    (there / "inbox/a.npy").unlink()
    site.run("apply", "m.yaml", at=there)
    (there / "out/_failed.jsonl").rename(site.folder / "letters.jsonl")
    shutil.rmtree(there)
    site.truth.elsewhere = [value for value in FEWER if value > 0]
    site.retry("--from", "letters.jsonl")


@_state("forgotten")
def _forgotten(site: Maker) -> None:
    site.write(output="removable: true, keep: 0.0000001min")
    site.put("a", *TEN[:5])
    site.apply()
    site.carry()
    site.take("a")
    site.put("b", *OTHERS[:5])
    site.apply()
    site.carry()


@_state("no-longer-removable")
def _no_longer_removable(site: Maker) -> None:
    """Later files beside their parts, which nobody carries away any more."""
    site.write(output=REMOVABLE)
    site.put("a", *TEN)
    site.apply()
    site.heal()
    site.retry()
    site.write(output=_PLAIN)


@_state("upgraded")
def _upgraded(site: Maker) -> None:
    """New rows of a part that another deployment has made lie beside it."""
    site.write(output="on_upgrade: continue")
    site.put("a", *TEN)
    site.apply()
    path = site.folder / "m.yaml"
    path.write_text(path.read_text().replace("size: 2", "size: 3"))
    site.heal()
    site.retry()
    site.put("b", *OTHERS[:3])


def _planned(site: Maker) -> None:
    """One machine has made parts before shards do."""
    site.write()
    site.put("0", *FIRST)
    site.apply()
    site.put("a", *TEN)
    site.run("plan", "m.yaml", "--out", "plan.json")


@_state("shards-closed")
def _shards_closed(site: Maker) -> None:
    """One machine has gone on where shards were through, with a copy of the ledger beside the parts."""
    _planned(site)
    for index in range(2):
        site.run("apply", "plan.json", "--shard", f"{index}/2")
    site.run("finish", "plan.json")
    site.put("b", *OTHERS[:3])
    site.apply()
    assert list(site.out.glob("_parts/*.db")), sorted(site.out.rglob("*"))


@_state("shards-finishing")
def _shards_finishing(site: Maker) -> None:
    """All parts are made, and the ledger knows some of them."""
    _planned(site)
    for index in range(2):
        site.run("apply", "plan.json", "--shard", f"{index}/2")
    site.run("finish", "plan.json", death=Death("open", "._failed.jsonl.*partial*"))


@_state("shards-open")
def _shards_open(site: Maker) -> None:
    """One of two shards is through."""
    _planned(site)
    site.run("apply", "plan.json", "--shard", "0/2")


@_state("backup")
def _backup(site: Maker) -> None:
    """A copy of the ledger, of before the last file was run."""
    site.write()
    site.put("a", *TEN)
    site.apply()
    site.run("state", "backup", "copy.zip")
    site.put("b", *OTHERS[:3])
    site.apply()


def make(folder: Path, names: Iterable[str] = STATES) -> None:
    """Make states, each in a folder of its name."""
    from support.models import scale_model  # noqa: PLC0415  found by `main`

    for name in names:
        site = Maker(folder / name)
        site.folder.mkdir()
        scale_model(site.folder / "double.onnx")
        STATES[name](site)
        site.finish_making()


def pack(folder: Path) -> None:
    """Write the archive, with the times of files to the nanosecond, which the ledger knows."""
    paths = sorted(path for path in folder.rglob("*"))
    times = {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in paths if path.is_file()}
    (folder / _TIMES).write_text(json.dumps(times), encoding="utf-8")
    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        for path in [*paths, folder / _TIMES]:
            archive.add(path, path.relative_to(folder), recursive=False, filter=_without_owner)


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def unpack(folder: Path) -> None:
    """Unpack all states into a folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    times: dict[str, int] = json.loads((folder / _TIMES).read_text(encoding="utf-8"))
    for name, time in times.items():
        os.utime(folder / name, ns=(time, time))


def truth_of(folder: Path) -> Truth:
    """Return what is true of a state."""
    return Truth(**json.loads((folder / _TRUTH).read_text(encoding="utf-8")))


def main() -> None:
    """Make the archive with the checkout that the command line names."""
    sys.path[:0] = [sys.argv[1], str(Path(__file__).parents[1])]
    with tempfile.TemporaryDirectory() as name:
        make(Path(name))
        pack(Path(name))
    sys.stdout.write(f"{len(STATES)} states, {ARCHIVE.stat().st_size} bytes\n")


if __name__ == "__main__":
    main()
