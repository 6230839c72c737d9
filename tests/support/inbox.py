"""A job over an inbox of small files that come, change and go, without a manifest: what each apply finds, and what is left."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from ortdeploy.facts.data import ArrivalPolicy, FileState, FileStates, KnownFiles
from ortdeploy.ledger.check import find_contradiction
from ortdeploy.ledger.integrity import committed_rows
from ortdeploy.ledger.opening import open_ledger, read_ledger
from ortdeploy.ledger.records import OutputRecord
from ortdeploy.parts.compaction import CompactionTarget
from ortdeploy.plan.steps import Plan, PlannedFiles
from ortdeploy.results.results import Status
from ortdeploy.sources.file_selection import Arrivals, KnownContents, Progress, sort_arrivals
from ortdeploy.sources.files import file_states
from support.carriers import delivered, rows_of
from support.fakes import FakeRuntime, refuse_negative
from support.jobs import changed, plan_for, retrying
from support.power_loss import EVERY, STATE, Event, execute_there, failures_after


@dataclass
class Inbox:
    """Files of rows; a row's two cells are its value, and a negative one fails. `at` is the folder of `work` and `state`.

    `was_replaced`: a name was used again, and the rows of the file before it stay. `heals`: retries may recover rows.
    """

    at: Path
    removable: bool = False
    keep: float | None = None
    on_change: str = "rerun"
    clock: int = 0
    files: dict[str, list[float]] = field(default_factory=dict)
    removed: set[str] = field(default_factory=set)
    was_replaced: bool = False
    heals: bool = False

    def make(self) -> "Inbox":
        """Make the folders."""
        for folder in ("work/inbox", "state"):
            (self.at / folder).mkdir(parents=True)
        return self

    def put(self, name: str, values: Sequence[float]) -> None:
        """Write a file, or change it, at a time of its own."""
        self.clock += 1
        is_another = name in self.removed or (self.on_change == "append" and name in self.files)
        self.was_replaced = self.was_replaced or is_another
        path = self.at / "work/inbox" / f"{name}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, np.array([[value, value] for value in values], dtype=np.float32).reshape(-1, 2))
        os.utime(path, (self.clock, self.clock))
        self.files[name] = list(values)

    def touch(self, name: str) -> None:
        """Give a file another time."""
        self.clock += 1
        os.utime(self.at / "work/inbox" / f"{name}.npy", (self.clock, self.clock))

    def remove(self, name: str) -> None:
        """Take a file away."""
        (self.at / "work/inbox" / f"{name}.npy").unlink()
        del self.files[name]
        self.removed.add(name)

    def copied_to(self, folder: Path) -> "Inbox":
        """Return this inbox in another place, whose other folders are there already."""
        shutil.copytree(self.at / "work/inbox", folder / "work/inbox")
        return dataclasses.replace(self, at=folder, files={**self.files})

    @property
    def out(self) -> Path:
        """Where the parts are."""
        return self.at / "work/out"

    def record(self) -> OutputRecord:
        """What the ledger knows of the output."""
        with read_ledger(self.at / STATE) as ledger:
            assert ledger is not None
            found = ledger.output(ledger.key(self.out))
        assert found is not None
        return found

    def states(self) -> FileStates:
        """Return how the files are now."""
        work = self.at / "work"
        return file_states(sorted(map(str, (work / "inbox").rglob("*.npy"))), str(work))

    def known(self) -> KnownFiles:
        """Return what the ledger knows of files."""
        with open_ledger(self.at / STATE) as ledger:
            return ledger.inputs(ledger.key(self.out))

    def look(self) -> Arrivals:
        """Return what an apply would read now."""
        known = self.known()
        with open_ledger(self.at / STATE) as ledger:
            key = ledger.key(self.out)
            record = ledger.output(key)
            assert record is None or find_contradiction(record) is None
        rows = 0 if record is None else committed_rows(record, self.out)
        progress = Progress() if record is None else Progress(first_row=record.first_row, rows=rows)
        policy = ArrivalPolicy(on_change=self.on_change)
        same = KnownContents(str(self.at / "work"), self._contents).are_in
        return sort_arrivals(self.states(), known, policy, holds_the_same=same, progress=progress)

    def _contents(self) -> Mapping[FileState, bytes]:
        with open_ledger(self.at / STATE) as ledger:
            return ledger.contents(ledger.key(self.out))

    def plan(self, max_failed: int | str = 999) -> Plan:
        """Return what an apply would do now."""
        arrivals = self.look()
        assert not arrivals.changed
        source = {
            "files": arrivals.read,
            "gone": arrivals.gone,
            "rerun": arrivals.rerun,
            "first_row": arrivals.first_row,
            "rows_before": arrivals.rows_before,
            "rows": None,
            "on_change": self.on_change,
        }
        plan = plan_for(self.at / "work", 1, size=2, rows_per_part=4, max_failed=max_failed)
        plan = replace(plan, inputs=(PlannedFiles(job="run", files=self.states()),))
        return changed(plan, input=source, output={"removable": self.removable, "keep": self.keep})

    def apply(self, ends: Sequence[Status] = (Status.DONE, Status.NOTHING_TO_DO), plan: Plan | None = None) -> Status:
        """Run what is new and what has changed, or what an earlier plan says."""
        return execute_there(self.at, plan or self.plan(), FakeRuntime(refuse_negative), ends=ends)

    def retry(self) -> Status:
        """Run failed rows once more."""
        return execute_there(self.at, retrying(self.plan()), FakeRuntime(refuse_negative))

    def compact(self, rows_per_part: int = 4) -> tuple[int, int]:
        """Put small parts together, if there are any."""
        if not self.out.is_dir():
            return 0, 0
        with open_ledger(self.at / STATE) as ledger:
            small = CompactionTarget(
                ledger=ledger,
                output=ledger.key(self.out),
                folder=self.out,
                shown="out",
                format="jsonl",
                rows_per_part=rows_per_part,
                removable=self.removable,
                exploded=False,
                has_row=True,
            )
            return small.compact()

    def found(self, record: OutputRecord, failed: Mapping[int, str], *away: Path) -> dict[int, float]:
        """Return the value of each row that counts, by its number."""
        gone = {row for part in record.parts for first, count in part.withdrawn for row in range(first, first + count)}
        return {
            row: line["y"][0] / 2
            for row, line in rows_of(delivered(self.out, *away)).items()
            if row not in gone and row not in failed
        }

    def check(self, *away: Path) -> None:
        """Raise AssertionError unless every row that is there now is committed once or failed, and no other is."""
        record = self.record()
        with read_ledger(self.at / STATE) as ledger:
            assert ledger is not None
            known = {Path(one.state.path).stem: one for one in ledger.inputs(record.output)}
            letters = [json.loads(line) for line in ledger.failures(record.output)]
        assert (record.status, record.reruns, record.leaving, record.rewrites) == ("done", (), (), ())
        failed = {letter["row"]: letter["path"] for letter in letters}
        found = self.found(record, failed, *away)
        taken: set[int] = set()
        for name, values in self.files.items():
            span = known[name].span
            assert span is not None, name
            assert span[1] == len(values), (name, span, values)
            numbers = range(span[0], sum(span))
            assert taken.isdisjoint(numbers)
            taken.update(numbers)
            for number, value in zip(numbers, values, strict=True):
                if value < 0 and not (self.heals and number not in failed):
                    assert failed[number] == f"inbox/{name}.npy"
                else:
                    assert found[number] == value, (name, number)
        of_gone_files = {
            number
            for name, one in known.items()
            if name not in self.files and one.span is not None
            for number in range(one.span[0], sum(one.span))
        }
        others = {row for row in (*found, *failed) if row >= record.forgotten.rows}
        assert others - of_gone_files <= taken or self.was_replaced
        remembered = [row for row in found if row >= record.forgotten.rows]
        counted = sum(part.committed for part in record.parts)
        assert counted == len(remembered), (counted, sorted(found))
        assert not self.out.is_dir() or not [path for path in self.out.iterdir() if path.name.startswith(".")]


def failures_of(
    inbox: Inbox,
    recorded: Sequence[Event],
    begin: int,
    folder: Path,
    go_on: Callable[[Inbox], object],
    *,
    kills: bool,
    every: int = EVERY,
) -> Iterator[tuple[str, str]]:
    """Yield what went wrong from each state of an inbox, as `failures_after` does; `go_on` gets it in such a state."""

    def continued(left: Path) -> None:
        go_on(inbox.copied_to(left))

    return failures_after(recorded, folder, continued, begin=begin, kills=kills, every=every)
