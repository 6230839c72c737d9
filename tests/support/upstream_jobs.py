"""Four jobs of which three read the rows of another: a feeds b and c, and d reads b. Planned for a device that is not here.

Plans are made by the program, from real files; the models run in a function. A row is one number, which every job hands
on, so it can be followed through all outputs.
"""

import csv
import itertools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import yaml
from msgspec.structs import replace
from onnx import TensorProto, helper
from pyarrow import parquet

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.facts import Facts
from ortdeploy.facts.host import HostFacts
from ortdeploy.jobs.executor import Execution
from ortdeploy.ledger.changes import rows_in
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.ledger.opening import open_ledger, read_ledger
from ortdeploy.ledger.published_files import deliveries, reader_of, unread
from ortdeploy.ledger.records import OutputRecord, Part, Revision
from ortdeploy.manifest.loader import LoadOptions
from ortdeploy.manifest.spec import Spec
from ortdeploy.parts.compaction import CompactionTarget
from ortdeploy.plan.steps import OpenSession, Plan, PlannedSession
from ortdeploy.planning.planned import Planned
from ortdeploy.planning.probing import probe
from ortdeploy.planning.probing.scope import Scope
from ortdeploy.planning.workflow import plan_manifests
from ortdeploy.results.results import JobResult
from ortdeploy.runtime.protocol import Session
from ortdeploy.sources.files import file_states
from ortdeploy.tensors.columns import Array
from support.fakes import Counter, FakeRuntime, FakeSession, without_row_checks
from support.fuse import burning
from support.jobs import Killed
from support.models import save_model

JOBS = ("a", "b", "c", "d")
"""In the order of their dependencies. In the manifest they stand the other way round."""

COMPACTED = {"c": "npz", "d": "csv"}
"""The jobs whose rows no other one reads, and their formats."""

TREE = """\
version: 1
models:
  a: {path: a.onnx}
  b: {path: b.onnx}
  c: {path: c.onnx}
  d: {path: d.onnx}
jobs:
  d:
    model: d
    input: {job: b, columns: {x: y}, key: [path, row_of_b]}
    output: {path: out/d, format: csv, on_upgrade: UPGRADE}
    batch: {size: 2}
    errors: {max_failed: 100%}
  c:
    model: c
    input: {job: a, columns: {x: y}, key: [row]}
    output: {path: out/c, format: npz, on_upgrade: UPGRADE}
    batch: {size: 2}
    errors: {max_failed: 100%}
  b:
    model: b
    input: {job: a, columns: {x: y}, key: [path, row_of_a]}
    output: {path: out/b, format: jsonl, removable: true, rows_per_part: 4, on_upgrade: UPGRADE}
    batch: {size: 2}
    errors: {max_failed: 100%}
  a:
    model: a
    input: {path: inbox/*.npy, key: [path, row], on_empty: done, on_change: rerun}
    output: {path: out/a, format: parquet, rows_per_part: 4, on_upgrade: UPGRADE}
    batch: {size: 2}
    errors: {max_failed: 100%}
"""

_DEVICE = {
    "device_version": 1, "name": "board", "source": "captured", "devices": [], "kernels": {},
    "runtime": {
        "version": "1.31.1", "providers": ["CPUExecutionProvider"], "max_ir_version": 13,
        "max_opsets": {"ai.onnx": 26}, "packages": ["pyarrow"],
    },
    "machine": {
        "system": "Linux", "architecture": "aarch64", "python": "3.12", "cores": 4, "memory_bytes": 8_000_000_000,
    },
}  # fmt: skip


def save_version(path: Path, version: int) -> None:
    """y = x, and v = the version."""
    save_model(
        path,
        [
            helper.make_node("Identity", ["x"], ["y"]),
            helper.make_node("Mul", ["x", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "version"], ["v"]),
        ],
        {"x": (TensorProto.FLOAT, ["batch", 1])},
        {"y": (TensorProto.FLOAT, ["batch", 1]), "v": (TensorProto.FLOAT, ["batch", 1])},
        {"zero": np.array(0, np.float32), "version": np.array(version, np.float32)},
    )


_probe = probe.probe


def _probe_here(spec: Spec, state_dir: Path, host: HostFacts, scope: Scope) -> Facts:
    """Look at what is there, though the machine is another one: so no model is opened to see whether that can be done."""
    return _probe(spec, state_dir, host, replace(scope, elsewhere=False))


@dataclass
class Runtime(FakeRuntime):
    """Runs the models of a site, each in a function of its own."""

    site: "Site | None" = None

    def open_session(self, step: OpenSession, candidate: PlannedSession) -> Session:
        assert self.site is not None
        self.opened.append(step.model)
        return FakeSession(partial(self.site.run_model, step.model))


@dataclass
class Site:
    """A folder with a manifest, what arrives there, and what its models refuse."""

    folder: Path
    manifest: str = TREE.replace("UPGRADE", "continue")
    arrived: int = 0
    files_of: dict[str, list[int]] = field(default_factory=dict)
    refused: set[tuple[str, int]] = field(default_factory=set)
    versions: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 0))
    seen: dict[str, list[int]] = field(default_factory=lambda: {job: [] for job in JOBS})
    forgotten: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {job: [] for job in JOBS})
    taken_away: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        (self.folder / "inbox").mkdir(parents=True)
        (self.folder / "device.yaml").write_text(yaml.safe_dump(_DEVICE))
        (self.folder / "m.yaml").write_text(self.manifest)
        for job in JOBS:
            save_version(self.folder / f"{job}.onnx", 0)

    def put(self, rows: int) -> None:
        """Let a file arrive with rows that were never there."""
        self._write(f"{self.arrived:04}", rows)

    def change(self, which: int, rows: int | None = None) -> None:
        """Let a file hold other rows, which were never there; as many as before if nothing is said."""
        if not self.files_of:
            return
        name = list(self.files_of)[which % len(self.files_of)]
        self._write(name, len(self.files_of[name]) if rows is None else rows)

    def _write(self, name: str, rows: int) -> None:
        numbers = range(self.arrived, self.arrived + rows)
        path = self.folder / "inbox" / f"{name}.npy"
        np.save(path, np.array(numbers, dtype=np.float32).reshape(rows, 1))
        os.utime(path, ns=(next(_TIMES), next(_TIMES)))
        self.files_of[name] = [*numbers]
        self.arrived += rows

    @property
    def ran(self) -> dict[str, list[int]]:
        """The numbers that each job's model has seen, sorted: several threads run batches."""
        return {job: sorted(numbers) for job, numbers in self.seen.items()}

    @property
    def numbers_now(self) -> list[int]:
        """The numbers that input files hold now, and those of files that were taken away, in order."""
        return sorted([*(number for numbers in self.files_of.values() for number in numbers), *self.taken_away])

    def upgrade(self, job: str) -> None:
        """Let another model arrive."""
        self.versions[job] += 1
        save_version(self.folder / f"{job}.onnx", self.versions[job])

    def keep(self, *jobs: str) -> None:
        """Let what is carried away of jobs be forgotten when they run next."""
        document = yaml.safe_load((self.folder / "m.yaml").read_text())
        for job in jobs:
            document["jobs"][job]["output"] |= {"removable": True, "keep": "0.0000001min"}
        (self.folder / "m.yaml").write_text(yaml.safe_dump(document))

    def run_model(self, model: str, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run a batch; it is refused whole for one row in it."""
        numbers = [int(number) for number in feeds["x"][:, 0]]
        if any((model, number) in self.refused for number in numbers):
            raise OrtdeployError("refused")
        self.seen[model] += numbers
        return {"y": feeds["x"], "v": np.full_like(feeds["x"], self.versions[model])}

    def plan(self, *, jobs: Sequence[str] | None = None, retry: bool = False, new_run: bool = False) -> Planned:
        """Plan for the device of the site, whose ledger and outputs are here."""
        with patch.object(probe, "probe", _probe_here):
            return plan_manifests(
                [str(self.folder / "m.yaml")],
                LoadOptions(),
                state_dir=None,
                jobs=jobs,
                device=str(self.folder / "device.yaml"),
                retry=retry,
                new_run=new_run,
            )

    def apply(self, *, kill_at: int | None = None, **asked: Any) -> dict[str, JobResult]:
        """Plan and run, as the command does; or be killed before the n-th thing that lasts. Return each job's result."""
        planned = self.plan(**asked)
        assert planned.plans, planned.diagnostics
        results: dict[str, JobResult] = {}
        with suppress(Killed), killing(kill_at):
            results = self.run(planned.plans[0])
        return results

    def run(self, plan: Plan) -> dict[str, JobResult]:
        """Run a plan."""
        forget = patch.object(Ledger, "forget_parts", self._remembering(Ledger.forget_parts))
        with forget, open_ledger(self.state_dir) as ledger:
            execution = Execution(
                plan=without_row_checks(plan),
                run_id=f"run{next(_RUNS)}",
                runtime=Runtime(double_is_not_called, site=self),
                ledger=ledger,
                observer=Counter(),
                stop=lambda: False,
            )
            return {result.job: result for result in execution.run()}

    def _remembering(self, forget: Callable[..., None]) -> Callable[..., None]:
        """Return `forget_parts` of the ledger, which first remembers the rows of the parts for this site."""

        def remember(ledger: Ledger, output: str, parts: Sequence[Part], files: Iterable[str]) -> None:
            job, numbers = output[-1], {row for part in parts for row in range(part.start, part.end)}
            rows = [row for row in self.rows(job) if int(row["row"]) in numbers]
            forget(ledger, output, parts, files)
            self.forgotten[job] += rows

        return remember

    @property
    def state_dir(self) -> Path:
        return self.folder / ".ortdeploy"

    def record(self, job: str) -> OutputRecord | None:
        """What the ledger knows of a job."""
        with read_ledger(self.state_dir) as ledger:
            return ledger.output(ledger.key(self.folder / "out" / job)) if ledger else None

    def files(self, job: str) -> list[Path]:
        """The committed files of a job, in the order of their rows; those that were carried away lie elsewhere.

        A kill may come after a folder was put aside, and before the ledger knows its new name; or after a file was
        deleted of which all rows leave, and before the ledger knows that.
        """
        record = self.record(job)
        found = [file for part in record.parts for file in part.files] if record else []
        leaving = {name for one in record.rewrites for name in one.removed} if record else set()
        here = (file for file in found if file.file not in leaving or (self.folder / "out" / job / file.file).exists())
        return [self._place(job, file) for file in here]

    def _place(self, job: str, file: Part | Revision) -> Path:
        place = self.folder / "out" / job / str(file.file)
        others = [self.folder / "away" / f"{file.sha256}{place.suffix}"]
        others += sorted(self.folder.glob(f"out/{job}.*/{file.file}"), reverse=True)
        return next(path for path in (place, *others) if path.exists())

    def lines(self, job: str) -> list[dict[str, Any]]:
        """The lines of a job's committed files, with those that have run again since, or count no more."""
        return [*self.forgotten[job], *(row for path in self.files(job) for row in READ[path.suffix](path))]

    def rows(self, job: str) -> list[dict[str, Any]]:
        """The committed rows of a job. Later files of one that is read replace rows of equal number."""
        if job not in {"a", "b"}:
            return self.lines(job)
        rows = {int(row["row"]): row for row in self.lines(job)}
        record = self.record(job)
        for part in record.parts if record else ():
            for row in rows_in(part.withdrawn, part.start, part.end):
                rows.pop(row, None)
        for letter in self.failed(job):
            rows.pop(letter["row"], None)
        return list(rows.values())

    def numbers(self, job: str) -> list[int]:
        """The numbers that a job has committed."""
        return [number_of(row) for row in self.rows(job)]

    def failed(self, job: str) -> list[dict[str, Any]]:
        """The dead letters of a job, as the ledger has them."""
        with read_ledger(self.state_dir) as ledger:
            return (
                [json.loads(line) for line in ledger.failures(ledger.key(self.folder / "out" / job))] if ledger else []
            )

    def has_started_over(self, job: str, reader: str) -> bool:
        """Whether a job has begun anew since another one has read its rows."""
        with read_ledger(self.state_dir) as ledger:
            known = ledger.inputs(ledger.key(self.folder / "out" / reader)) if ledger else ()
        record = self.record(job)
        return unread(deliveries(record, f"out/{job}"), known, record.forgotten.parts if record else 0).restarted

    def carry(self) -> int:
        """Carry those files of b away that nobody needs any more; return how many these were."""
        with read_ledger(self.state_dir) as ledger:
            reader = reader_of(ledger, "../out/d", "d")
        return self._carry("b", [one.file for one in deliveries(self.record("b"), "out/b") if not reader.needs(one)])

    def carry_all(self, job: str) -> int:
        """Carry all files of a job away, also those that a reader needs; return how many these were."""
        return self._carry(job, [one.file for one in deliveries(self.record(job), f"out/{job}")])

    def _carry(self, job: str, files: Sequence[Part | Revision]) -> int:
        (self.folder / "away").mkdir(exist_ok=True)
        places = {self.folder / "out" / job / str(one.file): one for one in files}
        here = [path for path in places if path.exists()]
        for path in here:
            path.rename(self.folder / "away" / f"{places[path].sha256}{path.suffix}")
        return len(here)

    def take_away(self) -> None:
        """Take those input files away whose rows a has committed, as they are now."""
        record, failed = self.record("a"), {letter["path"] for letter in self.failed("a")}
        if record is None or record.status != "done" or record.reruns or record.leaving:
            return
        with read_ledger(self.state_dir) as ledger:
            done = {one.state for one in ledger.inputs("../out/a") if one.done} if ledger else set()
        paths = [path for path in self.folder.glob("inbox/*.npy") if f"inbox/{path.name}" not in failed]
        for state in file_states(sorted(map(str, paths)), str(self.folder)):
            if state in done:
                (self.folder / state.path).unlink()
                self.taken_away += self.files_of.pop(Path(state.path).stem)

    def compact(self, job: str, *, kill_at: int | None = None) -> None:
        """Put the small parts of a job together that no other one reads, as the command does; or be killed."""
        if self.record(job) is None or not (self.folder / "out" / job).is_dir():
            return
        with open_ledger(self.state_dir) as ledger, suppress(Killed), killing(kill_at):
            CompactionTarget(
                ledger=ledger,
                output=ledger.key(self.folder / "out" / job),
                folder=self.folder / "out" / job,
                shown="out",
                format=COMPACTED[job],
                rows_per_part=8,
                removable=False,
                exploded=False,
                has_row=job == "c",
            ).compact()

    def bring_back(self) -> None:
        """Bring back what was carried away of a and b, and is not forgotten."""
        for job in ("a", "b"):
            for one in deliveries(self.record(job), f"out/{job}"):
                place = self.folder / "out" / job / str(one.file.file)
                away = self.folder / "away" / f"{one.file.sha256}{place.suffix}"
                if away.exists():
                    away.rename(place)


_RUNS = itertools.count()
_TIMES = itertools.count(1_700_000_000_000_000_000, 1_000_000_000)


def double_is_not_called(_: Mapping[str, Array]) -> Mapping[str, Array]:
    raise AssertionError("every model has a function of its own")


def number_of(row: Mapping[str, Any]) -> int:
    """The number that a row hands on."""
    return int(float(row["y.0"] if "y.0" in row else np.ravel(row["y"])[0]))


def _npz(path: Path) -> list[dict[str, Any]]:
    with np.load(path) as arrays:
        return [
            dict(zip(arrays.files, row, strict=True)) for row in zip(*(arrays[n] for n in arrays.files), strict=True)
        ]


def _csv(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


READ: Mapping[str, Callable[[Path], list[dict[str, Any]]]] = {
    ".csv": _csv,
    ".jsonl": lambda path: [json.loads(line) for line in path.read_text().splitlines()],
    ".npz": _npz,
    ".parquet": lambda path: parquet.read_table(path).to_pylist(),
}


@contextmanager
def killing(at: int | None) -> Iterator[None]:
    """Kill before the n-th event that lasts, from 0 on; None: let it live."""
    with burning(None if at is None else at + 1):
        yield
