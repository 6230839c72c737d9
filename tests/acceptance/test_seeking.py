"""Shards and interrupted jobs go to their rows in tables of text, and leave what one machine leaves at once."""

import base64
import gzip
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import MANIFEST, Cli

from ortdeploy.files import in_place
from ortdeploy.process import child
from ortdeploy.sources import csv, row_counts, row_index

TABLE = MANIFEST.replace("key: [row]", "columns: {x: [a, b, c, d]}, key: [row]").replace(
    "jsonl", "jsonl, rows_per_part: 400"
)


def parts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "outbox/run").glob("part-*")}


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows at which files are begun to be read, of which an index is kept however new they are."""
    monkeypatch.setattr(row_index, "_RACY_NS", -(10**18))
    found = []
    real = csv.read_rows

    def watched(path: str, mark: row_index.Mark, **more: Any) -> Iterator[Any]:
        found.append(mark.row)
        return real(path, mark, **more)

    monkeypatch.setattr(csv, "read_rows", watched)
    return found


CSV_ROWS = 3000


def as_csv(folder: Path, name: str = "data.csv", bad: int | None = None) -> None:
    """Write a table whose rows have line ends within cells, long settled; it is large enough for marks."""
    values = ["x" if row == bad else str(row) for row in range(CSV_ROWS)]
    lines = [f'{value},{row},1,2,"{"note " * 200}\n{row}"\n' for row, value in enumerate(values)]
    content = "".join(["a,b,c,d,note\n", *lines]).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    os.utime(folder / name, (1e9, 1e9))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["data.csv", "data.csv.gz"])
def test_a_shard_of_a_table_of_text_makes_the_parts_of_one_machine(
    cli: Cli, deployment: Path, name: str, begun: list[int]
) -> None:
    as_csv(deployment, name)
    (deployment / "m.yaml").write_text(TABLE.replace("data.npy", name))
    alone = Path(shutil.copytree(deployment, deployment.parent / f"alone-{name}"))
    assert cli("apply", alone / "m.yaml").code == 0
    planned = cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json")
    assert (planned.code, "3,000 rows" in planned.out) == (0, True)
    assert ("unseekable-input" in planned.words) == (name == "data.csv.gz")
    begun.clear()
    for index in (7, 0, 1, 2, 3, 4, 5, 6):
        assert cli("apply", deployment / "plan.json", "--shard", f"{index}/8").code == 0
    assert cli("finish", deployment / "plan.json").code == 0
    assert parts(deployment) == parts(alone)
    assert (max(begun) > 1900) == (name == "data.csv")


@pytest.mark.slow
def test_a_job_that_failed_goes_on_where_it_was(cli: Cli, deployment: Path, begun: list[int]) -> None:
    as_csv(deployment, bad=2500)
    manifest = deployment / "m.yaml"
    manifest.write_text(TABLE.replace("data.npy", "data.csv"))
    assert cli("apply", manifest).code == 1
    assert len(parts(deployment)) == 6
    manifest.write_text(manifest.read_text() + "    errors: {max_failed: 1}\n")
    begun.clear()
    assert cli("apply", manifest).code == 0
    assert max(begun) > 1900
    assert len(parts(deployment)) == 8
    assert (deployment / "outbox/run/_failed.jsonl").read_text().count("data.csv:5002") == 1  # where the record begins
    begun.clear()
    assert cli("retry", manifest, "--job", "run").code == 0
    assert min(begun) > 1900


def test_several_tables_are_counted_in_several_processes(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_counts, "WORTH_A_PROCESS", 1024)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    counted = []

    def watched(module: str, request: Any) -> child.Answer:
        answer = child.ask(module, request)
        counted.append([message["rows"] for message in answer.messages])
        return answer

    monkeypatch.setattr(row_counts, "ask", watched)
    for number in range(3):
        as_csv(deployment, f"data-{number}.csv")
    (deployment / "m.yaml").write_text(TABLE.replace("data.npy", "data-*.csv"))
    planned = cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json")
    assert (planned.code, "9,000 rows" in planned.out) == (0, True)
    assert sorted(counted) == [[3000], [3000, 3000]]


def test_a_table_that_cannot_be_counted_refuses_the_plan(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(row_counts, "WORTH_A_PROCESS", 1024)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})
    for number in range(2):
        as_csv(deployment, f"data-{number}.csv.gz")
    torn = (deployment / "data-1.csv.gz").read_bytes()[:-2000]
    (deployment / "data-1.csv.gz").write_bytes(torn)
    (deployment / "m.yaml").write_text(TABLE.replace("data.npy", "data-*.csv.gz"))
    refused = cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json")
    assert refused.code == 1
    assert "data-1.csv.gz cannot be decompressed" in refused.words


def on_store(folder: Path, store: Any, kind: str, name: str) -> Path:
    """Put a table of text on the store, with an output there too; return the manifest."""
    as_csv(folder)
    text = (folder / "data.csv").read_text()
    if kind != "csv":
        rows = ({"x": [row, row, 1, 2], "text": "note " * 200} for row in range(CSV_ROWS))
        text = "".join(json.dumps(row) + "\n" for row in rows)
    content = text.encode()
    store.pipe_file(f"/in/{name}", gzip.compress(content) if name.endswith(".gz") else content)
    (folder / "data.csv").unlink()
    manifest = (TABLE if kind == "csv" else TABLE.replace("columns: {x: [a, b, c, d]}, ", "")).replace(
        "data.npy", f'"memory://in/{name}"'
    )
    (folder / "m.yaml").write_text(manifest.replace("outbox/run", '"memory://out"'))
    return folder / "m.yaml"


def values(store: Any) -> list[tuple[int, float]]:
    names = sorted(one for one in store.ls("/out", detail=False) if "/part-" in one)
    rows = [json.loads(line) for name in names for line in store.cat_file(name).splitlines()]
    return [(row["row"], row["y"][0]) for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("csv", "data.csv"), ("jsonl", "data.jsonl"), ("csv", "data.csv.gz")])
def test_a_machine_that_has_only_the_plan_goes_to_its_rows_on_a_store(
    cli: Cli, deployment: Path, store: Any, monkeypatch: pytest.MonkeyPatch, kind: str, name: str
) -> None:
    manifest = on_store(deployment, store, kind, name)
    here = {path.name for path in deployment.iterdir()}
    planned = cli("plan", manifest, "--out", deployment / "plan.json")
    assert (planned.code, "3,000 rows" in planned.out) == (0, True), planned.words
    elsewhere = deployment.parent / f"elsewhere-{name}"
    elsewhere.mkdir()
    for one in (*here, "plan.json"):
        shutil.copy(deployment / one, elsewhere)
    size, read = store.size(f"/in/{name}"), []
    ranges = in_place._Ranges.readinto  # noqa: SLF001  what is asked of the store

    def counted(self: Any, buffer: Any) -> int:
        read.append(ranges(self, buffer))
        return read[-1]

    monkeypatch.setattr(in_place._Ranges, "readinto", counted)  # noqa: SLF001  as above
    last = cli("apply", elsewhere / "plan.json", "--shard", "7/8")
    assert last.code == 0, last.words
    assert values(store) == [(row, 2.0 * row) for row in range(2800, 3000)]
    assert (sum(read) < size) == (kind != "csv" or name == "data.csv")
    for index in range(7):
        assert cli("apply", elsewhere / "plan.json", "--shard", f"{index}/8").code == 0
    assert cli("finish", elsewhere / "plan.json").code == 0
    assert values(store) == [(row, 2.0 * row) for row in range(CSV_ROWS)]


def test_places_that_a_plan_tells_count_for_its_shards_alone_and_damaged_ones_for_nobody(
    cli: Cli, deployment: Path, store: Any
) -> None:
    manifest = on_store(deployment, store, "csv", "data.csv")
    plan = deployment / "plan.json"
    assert cli("plan", manifest, "--out", plan).code == 0
    saved = json.loads(plan.read_text())
    (of_plan,) = saved["plans"]
    told = [json.loads(line) for line in gzip.decompress(base64.b64decode(of_plan["rows"]["run"])).splitlines()]
    assert (told[0][0], 0 < len(told[0][1]) < 8) == (CSV_ROWS, True)

    def tell(rows: Any) -> None:
        lines = rows if isinstance(rows, str) else "".join(json.dumps(one) + "\n" for one in rows)
        text = rows if isinstance(rows, str) else base64.b64encode(gzip.compress(lines.encode())).decode()
        of_plan["rows"]["run"] = text
        plan.write_text(json.dumps(saved))
        shutil.rmtree(deployment / ".ortdeploy", ignore_errors=True)

    for damaged in ([], [[3000, [[5, 5, 5, 0], [4, 9, 9, 0]]]], [[-1, []]], [["x", []]], [3], "AAAA"):
        tell(damaged)
        refused = cli("apply", plan, "--shard", "0/8")
        assert (refused.code, "rows of job run: they are damaged" in refused.words) == (64, True), refused.words
    tell([[2999, []]])
    believed = cli("apply", plan, "--shard", "0/8")
    assert (believed.code, "2,999 rows" in believed.out) == (0, True), believed.words
    noticed = cli("apply", plan, "--shard", "7/8")
    assert (noticed.code, "data.csv has more than 2,999 rows, and its index says 2,999" in noticed.words) == (1, True)
    assert [row for row, _ in values(store)] == list(range(400)), "a part of the rows that are known was made"
    assert "3,000 rows" in cli("plan", manifest, "--out", plan).out
