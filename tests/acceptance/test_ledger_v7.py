"""What an ortdeploy of ledger version 7 has left goes on with this one: every row is there once, or failed, and nothing else.

`support/ledger_v7.py` makes the states. Here commands are run on each, and what they leave is compared with what its
input files hold, without a look into the ledger.
"""

import csv
import json
import shutil
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from conftest import Cli
from pyarrow import parquet
from support.effort import effort
from support.ledger_v7 import REMOVABLE, STATES, Site, truth_of, unpack

from ortdeploy.jobs import environment_check

WITH_SHARDS = {"shards-open", "shards-finishing"}
"""A plan of shards is open, which one machine does not go on with."""


@pytest.fixture(name="all_states", scope="module")
def unpack_all(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("v7")
    unpack(folder)
    return folder


class Now(Site):
    """A state, on which the commands of now run."""

    def __init__(self, cli: Cli, folder: Path) -> None:
        super().__init__(folder, truth_of(folder))
        self.cli = cli

    @property
    def manifest(self) -> Path:
        return self.folder / "m.yaml"

    def run(self, *arguments: str | Path, code: int = 0) -> str:
        done = self.cli(*arguments)
        assert done.code == code, done.words
        return done.words

    def apply(self) -> None:
        self.run("apply", self.manifest)

    def retry(self) -> None:
        self.run("retry", self.manifest, "--job", "run")

    def heal_and_retry(self) -> None:
        self.heal()
        self.retry()

    def compact(self) -> None:
        self.run("compact", self.manifest, "--job", "run")

    def look(self) -> None:
        """Look, which changes nothing."""
        before = state_of(self.folder)
        self.run("status", self.manifest)
        assert self.cli("verify", self.manifest).code in {0, 1}
        self.run("plan", self.manifest)
        assert state_of(self.folder) == before

    @property
    def last(self) -> str:
        """The last file whose rows are all run here."""
        return max(name for name, rows in self.truth.files.items() if {*rows}.isdisjoint(self.truth.elsewhere))

    def change(self) -> None:
        """Give a file other rows, as many as before."""
        name = self.last
        self.put(name, *(abs(value) + 200 for value in self.truth.files[name]))

    def change_and_apply(self) -> None:
        self.change()
        self.apply()

    def shorten_and_apply(self) -> None:
        """Give a file fewer rows."""
        self.put(self.last, 301.0, -302.0)
        self.apply()

    def arrive_and_apply(self) -> None:
        self.put("z", 401.0, -402.0, 403.0)
        self.apply()

    def finish(self) -> None:
        """Let shards make what is left of their plan."""
        if (self.folder / "plan.json").exists():
            self.run("apply", self.folder / "plan.json", "--shard", "0/1")
            self.run("finish", self.folder / "plan.json")

    @property
    def expected(self) -> list[float]:
        return [*accumulate(self.truth.rows)] if self.truth.sums else self.truth.rows

    def found(self) -> dict[int, float]:
        """Return the rows of all parts by number, as a reader has them. Of an output in place, none is there twice.

        Where parts may be carried away, old rows of changed files stay in them, and the report says which these are.
        """
        lines = [
            (int(line["row"]), line["y"][0] / (1 if self.truth.sums else 2))
            for path in sorted([*self.out.glob("part-*"), *self.away.glob("part-*")], key=_order)
            for line in read(path)
        ]
        if REMOVABLE not in self.manifest.read_text() and not self._has_later_files():
            assert max(Counter(row for row, _ in lines).values(), default=1) == 1
            return dict(lines)
        withdrawn = [
            span for part in json.loads((self.out / "_run.json").read_text())["parts"] for span in part["withdrawn"]
        ]
        return {
            row: value for row, value in lines if not any(first <= row < first + count for first, count in withdrawn)
        }

    def _has_later_files(self) -> bool:
        return any(".r" in path.name for path in self.out.glob("part-*"))

    def failed(self) -> list[float]:
        """Return the rows that are noted as failed."""
        letters = [json.loads(line) for line in (self.out / "_failed.jsonl").read_text().splitlines()]
        return [self.truth.files[Path(letter["path"]).stem][letter["row_in_file"]] for letter in letters]

    def check(self) -> None:
        """Every row is there once, or failed, and is said to be; nothing hidden is left. Failed rows that are forgotten count."""
        found, failed = self.found(), self.failed()
        assert sorted([*found.values(), *failed]) == self.expected
        assert all(value < 0 for value in failed)
        assert self.truth.heals or not any(value < 0 for value in found.values())
        assert not [path for path in self.out.iterdir() if path.name.startswith(".")]
        (status,) = json.loads(self.cli("status", self.manifest, "--format", "json").out)["jobs"]
        all_failed = len(failed) + json.loads((self.out / "_run.json").read_text())["forgotten"]["failed"]
        assert (status["status"], status["committed"], status["failed"]) == ("done", len(found), all_failed)
        self.run("verify", self.manifest)
        assert "nothing to do" in self.run("apply", self.manifest)


def _order(path: Path) -> tuple[int, int]:
    number, _, later = path.name.removeprefix("part-").partition(".")
    return int(number), int(later[1:].partition(".")[0]) if later.startswith("r") else 0


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """Yield the rows of a part."""
    match path.suffix:
        case ".csv":
            with path.open(newline="") as file:
                for row in csv.DictReader(file):
                    yield {"row": row["row"], "y": [float(row["y.0"])]}
        case ".npz":
            with np.load(path) as arrays:
                yield from ({"row": row, "y": y} for row, y in zip(arrays["row"], arrays["y"], strict=True))
        case ".parquet":
            yield from parquet.read_table(path).to_pylist()
        case ".arrow":
            yield from pa.ipc.open_file(path).read_all().to_pylist()
        case _:
            yield from map(json.loads, path.read_text().splitlines())


def state_of(folder: Path) -> dict[str, bytes]:
    """Return every file of a site that commands must not change when they look."""
    paths = [*(folder / "out").rglob("*"), folder / ".ortdeploy/state.db"]
    return {str(path): path.read_bytes() for path in paths if path.is_file()}


WAYS: Mapping[str, Sequence[Callable[[Now], None]]] = {
    "apply": [Now.look, Now.apply],
    "retry": [Now.retry, Now.apply],
    "healed": [Now.heal_and_retry, Now.apply],
    "compact": [Now.compact, Now.apply],
    "compacted twice": [Now.apply, Now.compact, Now.heal_and_retry, Now.compact, Now.apply],
    "changed": [Now.change_and_apply, Now.heal_and_retry],
    "shortened": [Now.shorten_and_apply, Now.compact],
    "arrived": [Now.arrive_and_apply, Now.retry],
}


OTHER_WAYS = sorted({*WAYS} - {"apply"})


@pytest.mark.parametrize("name", sorted({*STATES} - WITH_SHARDS))
def test_what_version_7_has_left_goes_on(cli: Cli, all_states: Path, tmp_path: Path, name: str) -> None:
    go_on(Now(cli, Path(shutil.copytree(all_states / name, tmp_path / name))), "apply")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "way"),
    [
        (name, way)
        for number, name in enumerate(sorted({*STATES} - WITH_SHARDS))
        for way in [*OTHER_WAYS[number % len(OTHER_WAYS) :], *OTHER_WAYS][: effort(2, len(OTHER_WAYS))]
        if not (name == "kept-state" and way != "compact")  # of rows with a state, none runs again by itself
        and (name, way) != ("forgotten", "shortened")  # nothing tells any more which rows of forgotten parts count
    ],
)
def test_what_version_7_has_left_goes_on_in_every_way(
    cli: Cli, all_states: Path, tmp_path: Path, name: str, way: str
) -> None:
    go_on(Now(cli, Path(shutil.copytree(all_states / name, tmp_path / name))), way)


def go_on(site: Now, way: str) -> None:
    """Go a way with a state, and compare the rows; a ledger of before is kept."""
    ledger = site.folder / ".ortdeploy/state.db"
    if site.folder.name == "backup":
        shutil.rmtree(ledger.parent)
        site.run("state", "restore", site.folder / "copy.zip", "--state-dir", ledger.parent)
    before = ledger.read_bytes()
    for do in WAYS[way]:
        do(site)
    site.check()
    with closing(sqlite3.connect(ledger)) as db:
        (version,) = db.execute("PRAGMA user_version").fetchone()
    kept = ledger.with_name("state-v7.db")
    assert kept.exists() if version > 7 else ledger.read_bytes() == before


@pytest.mark.parametrize("name", sorted(WITH_SHARDS))
def test_the_shards_of_a_plan_of_version_7_come_to_their_end(
    cli: Cli, all_states: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(
        environment_check, "why_refused", lambda _ours, _theirs: None
    )  # as if all versions were those of then
    site = Now(cli, Path(shutil.copytree(all_states / name, tmp_path / name)))
    assert "error[unfinished-shards]" in cli("apply", site.manifest).words
    site.finish()
    site.check()
