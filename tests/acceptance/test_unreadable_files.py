"""A file of many rows that cannot be read: it is one failed row, the others run, and its rows run once when it is mended."""

import io
import json
import os
import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from support.carriers import CARRIERS, delivered, rows_of
from support.effort import effort
from support.jobs import Killed
from support.upstream_jobs import killing

from ortdeploy.files import numpy_files
from ortdeploy.ledger.ledger import Ledger

MANIFEST = """
version: 1
name: unread
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.SUFFIX, key: [path, row], on_empty: done, INPUT}
    batch: {size: 2}
    output: {path: out, format: jsonl, rows_per_part: 4, removable: REMOVABLE}
    errors: {max_failed: MOST, ERRORS}
"""

Write = Callable[..., Path]


@pytest.fixture
def manifest(deployment: Path) -> Write:
    """Write the manifest with what its input, output and errors say."""
    (deployment / "inbox").mkdir()

    def write(
        said: str = "on_change: refuse",
        most: str = "3",
        removable: str = "false",
        suffix: str = "npy",
        errors: str = "retries: 0",
    ) -> Path:
        path = deployment / "m.yaml"
        text = MANIFEST.replace("INPUT", said).replace("MOST", most).replace("REMOVABLE", removable)
        path.write_text(text.replace("SUFFIX", suffix).replace("ERRORS", errors), encoding="utf-8")
        return path

    return write


def content(*values: float, suffix: str = "npy") -> bytes:
    """Return a file with a row for each value."""
    array, file = np.array([[value] * 4 for value in values], dtype=np.float32), io.BytesIO()
    if suffix == "npy":
        np.save(file, array)
    elif suffix == "npz":
        np.savez(file, x=array)
    elif suffix == "jsonl":
        return b"".join(json.dumps({"x": row}).encode() + b"\n" for row in array.tolist())
    else:
        import pyarrow as pa  # noqa: PLC0415  an extra
        import pyarrow.parquet as pq  # noqa: PLC0415

        pq.write_table(pa.table({"x": pa.array(array.tolist(), pa.list_(pa.float32(), 4))}), file)
    return file.getvalue()


def put(folder: Path, name: str, data: bytes) -> None:
    """Write a file of the inbox at a time that no other one has."""
    put.clock += 1_000_000_000  # type: ignore[attr-defined]
    path = folder / "inbox" / name
    path.write_bytes(data)
    os.utime(path, ns=(put.clock, put.clock))  # type: ignore[attr-defined]


put.clock = 1_700_000_000_000_000_000  # type: ignore[attr-defined]


def apply(cli: Cli, path: Path) -> str:
    result = cli("apply", path)
    assert result.code == 0, result.words
    return result.words


def values(folder: Path, *away: Path) -> list[float]:
    """The values whose rows are committed, and that no part has lost since; none may be there twice."""
    lost = [
        row
        for part in json.loads((folder / "out/_run.json").read_text())["parts"]
        for first, count in part.get("withdrawn", ())
        for row in range(first, first + count)
    ]
    found = rows_of(delivered(folder / "out", *away))
    return sorted(line["y"][0] / 2 for row, line in found.items() if row not in lost)


def letters(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "out/_failed.jsonl").read_text().splitlines()]


WHOLE = content(20, 21, 22)


@pytest.mark.quick("jsonl", "parquet")
@pytest.mark.parametrize("suffix", ["npy", "npz", "jsonl", "parquet"])
def test_it_is_one_failed_row_and_the_others_run(cli: Cli, deployment: Path, manifest: Write, suffix: str) -> None:
    path, broken = manifest(suffix=suffix), content(20, 21, suffix=suffix)[:-40]
    broken = "{}".encode("utf-16") if suffix == "jsonl" else broken
    put(deployment, f"a.{suffix}", broken)
    put(deployment, f"b.{suffix}", content(10, 11, suffix=suffix))
    assert f"inbox/a.{suffix}" in cli("plan", path).words
    apply(cli, path)
    assert values(deployment) == [10, 11]
    (letter,) = letters(deployment)
    assert (letter["path"], letter["row"], letter["row_in_file"]) == (f"inbox/a.{suffix}", 2, None)
    assert letter["code"] == "unreadable-file"
    assert letter["sha256"]
    assert "nothing to do" in apply(cli, path)
    (job,) = cli("status", path, "--format", "json").json["jobs"]
    assert (job["committed"], job["failed"]) == (2, 1)
    put(deployment, f"a.{suffix}", content(20, 21, suffix=suffix))
    apply(cli, path)
    assert values(deployment) == [10, 11, 20, 21]
    assert letters(deployment) == []
    assert "nothing to do" in apply(cli, path)
    assert cli("verify", path).code == 0


@pytest.mark.parametrize("rows", [(20.0,), (20.0, 21.0, 22.0)], ids=["one row", "many rows"])
@pytest.mark.parametrize("said", ["on_change: refuse", "on_change: append", "on_change: rerun", "on_remove: refuse"])
@pytest.mark.parametrize("removable", ["false", "true"], ids=["stays", "removable"])
@pytest.mark.slow
def test_a_mended_file_runs_once_whatever_the_input_says_of_changes(
    cli: Cli, deployment: Path, manifest: Write, said: str, rows: tuple[float, ...], removable: str
) -> None:
    path = manifest(said, removable=removable)
    away = deployment / "away"
    put(deployment, "a.npy", content(10, 11, 12))
    apply(cli, path)
    put(deployment, "b.npy", WHOLE[:-5])
    apply(cli, path)
    assert len(letters(deployment)) == 1
    if removable == "true":
        CARRIERS["parts"](deployment / "out", away / "1")
    put(deployment, "c.npy", content(30))
    put(deployment, "b.npy", WHOLE[:-9])
    apply(cli, path)
    assert len(letters(deployment)) == 1
    put(deployment, "b.npy", content(*rows))
    put(deployment, "d.npy", content(40))
    apply(cli, path)
    assert values(deployment, away) == [10, 11, 12, *rows, 30, 40]
    assert letters(deployment) == []
    put(deployment, "e.npy", content(50))
    apply(cli, path)
    assert values(deployment, away) == [10, 11, 12, *rows, 30, 40, 50]
    assert cli("verify", path).code == 0


def test_a_process_of_its_own_is_told_of_it(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest(errors="run_timeout: 60s")
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    apply(cli, path)
    assert [one["path"] for one in letters(deployment)] == ["inbox/b.npy"]


def test_a_saved_plan_is_refused_with_it(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    result = cli("plan", path, "--out", deployment / "plan.json")
    assert result.code == 1
    assert "b.npy" in result.words


def test_a_file_that_broke_again_in_another_way_says_why_now(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    apply(cli, path)
    (before,) = letters(deployment)
    put(deployment, "b.npy", b"")
    apply(cli, path)
    (now,) = letters(deployment)
    assert now["row"] == before["row"]
    assert now["message"] != before["message"]
    assert now["sha256"] != before["sha256"]
    assert "nothing to do" in apply(cli, path)


@pytest.mark.slow
def test_it_counts_against_the_budget(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest(most="1")
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    put(deployment, "c.npy", WHOLE[:-6])
    result = cli("apply", path)
    assert result.code == 1
    assert "2 rows failed and errors: {max_failed: 1} allows 1" in result.words
    assert cli("apply", path).code == 1
    assert values(deployment) == [10]
    put(deployment, "c.npy", content(30))
    apply(cli, path)
    assert values(deployment) == [10, 30]
    assert [one["path"] for one in letters(deployment)] == ["inbox/b.npy"]
    put(deployment, "b.npy", content(20))
    apply(cli, path)
    assert values(deployment) == [10, 20, 30]


def test_a_job_that_allows_no_failure_waits_and_says_what_would_let_it_run(
    cli: Cli, deployment: Path, manifest: Write
) -> None:
    path = manifest(most="0")
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    result = cli("apply", path)
    assert result.code == 1
    assert "inbox/b.npy" in result.words
    assert "errors: {max_failed: 1}" in result.words
    assert not (deployment / "out").exists()


def test_a_file_that_the_system_does_not_let_us_read_is_not_set_aside(
    cli: Cli, deployment: Path, manifest: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = manifest()
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", content(20))
    read = numpy_files.map_npy

    def refuse(name: str) -> Any:
        if name.endswith("b.npy"):
            raise PermissionError(13, "Permission denied", name)
        return read(name)

    monkeypatch.setattr("ortdeploy.sources.npy.map_npy", refuse)
    assert "Permission denied" in cli("apply", path).words
    assert not (deployment / "out").exists()
    monkeypatch.undo()
    apply(cli, path)
    assert values(deployment) == [10, 20]


def test_an_inbox_with_nothing_else_says_so(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "b.npy", WHOLE[:-5])
    assert cli("apply", path).code == 1
    put(deployment, "a.npy", content(10))
    apply(cli, path)
    (deployment / "inbox/a.npy").unlink()
    assert "inbox/b.npy could not be read" in apply(cli, path)
    put(deployment, "b.npy", content(20))
    apply(cli, path)
    assert values(deployment) == [10, 20]


@pytest.mark.slow
def test_a_file_that_goes_stays_a_failed_row_and_is_new_when_it_comes_back(
    cli: Cli, deployment: Path, manifest: Write
) -> None:
    path = manifest()
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    apply(cli, path)
    (deployment / "inbox/b.npy").unlink()
    apply(cli, path)
    assert len(letters(deployment)) == 1
    put(deployment, "b.npy", content(20, 21))
    apply(cli, path)
    assert values(deployment) == [10, 20, 21]
    assert letters(deployment) == []


@pytest.mark.slow
@pytest.mark.parametrize("back", [WHOLE[:-9], content(20)], ids=["unreadable", "one row"])
def test_a_file_that_came_back_is_there_and_its_change_replaces_its_rows(
    cli: Cli, deployment: Path, manifest: Write, back: bytes
) -> None:
    path = manifest("on_change: rerun")
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    apply(cli, path)
    (deployment / "inbox/b.npy").unlink()
    apply(cli, path)
    for data in (back, content(20), content(21)):
        put(deployment, "b.npy", data)
        apply(cli, path)
    assert values(deployment) == [10, 21]


def test_a_retry_leaves_it_to_apply(cli: Cli, deployment: Path, manifest: Write) -> None:
    path = manifest()
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    apply(cli, path)
    assert "apply runs its rows once it has changed" in cli("retry", path, "--job", "run").words
    put(deployment, "b.npy", WHOLE)
    cli("retry", path, "--job", "run")
    assert values(deployment) == [10]
    letter = (deployment / "out/_failed.jsonl").read_text()
    assert len(letter.splitlines()) == 1
    (deployment / "letters.jsonl").write_text(letter)
    assert (
        "the file could not be read there"
        in cli("retry", path, "--job", "run", "--from", deployment / "letters.jsonl").words
    )
    apply(cli, path)
    assert values(deployment) == [10, 20, 21, 22]


@pytest.mark.parametrize("at", [pytest.param(at, marks=() if at == 5 else pytest.mark.slow) for at in range(10)])
def test_a_kill_at_any_step_loses_and_doubles_nothing(cli: Cli, deployment: Path, manifest: Write, at: int) -> None:
    path = manifest()
    put(deployment, "a.npy", content(10, 11, 12))
    put(deployment, "b.npy", WHOLE[:-5])
    with killing(at), suppress(Killed):
        cli("apply", path)
    put(deployment, "c.npy", content(30))
    apply(cli, path)
    assert values(deployment) == [10, 11, 12, 30]
    assert [one["path"] for one in letters(deployment)] == ["inbox/b.npy"]
    put(deployment, "b.npy", content(20, 21) if at % 2 else content(20))
    with killing(at), suppress(Killed):
        cli("apply", path)
    apply(cli, path)
    assert values(deployment) == ([10, 11, 12, 20, 21, 30] if at % 2 else [10, 11, 12, 20, 30])
    assert letters(deployment) == []
    assert cli("verify", path).code == 0


@pytest.mark.parametrize("said", ["on_change: refuse", "on_change: append", "on_change: rerun"])
@pytest.mark.parametrize("seed", range(effort(1, 4)))
@pytest.mark.slow
def test_weeks_of_tables_that_break_and_are_mended(
    cli: Cli, deployment: Path, manifest: Write, said: str, seed: int
) -> None:
    """Each day some tables come, whole or truncated, some are mended or break anew, some go, and applies are killed."""
    chance, path, away = random.Random(seed), manifest(said, most="50%", removable="true"), deployment / "away"  # noqa: S311  a schedule
    put(deployment, "first.npy", content(*range(1, 1001)))
    expected = [*map(float, range(1, 1001))]
    broken: dict[str, bytes] = {}
    for day in range(1, 15):
        for number in range(chance.randint(0, 3)):
            name, fresh = (
                f"{day}-{number}.npy",
                [1000.0 * day + 10 * number + row for row in range(chance.randint(1, 6))],
            )
            if chance.random() < 0.5:
                broken[name] = content(*fresh)
                put(deployment, name, broken[name][: chance.randint(0, len(broken[name]) - 1)])
            else:
                put(deployment, name, content(*fresh))
                expected += fresh
        for name in list(broken):
            match chance.choice(["mend", "break", "go", "stay", "stay"]):
                case "mend":
                    whole = broken.pop(name)
                    put(deployment, name, whole)
                    expected += np.load(io.BytesIO(whole))[:, 0].tolist()
                case "break":
                    put(deployment, name, broken[name][: chance.randint(0, len(broken[name]) - 1)])
                case "go" if not any(one["path"].endswith(name) for one in letters_or_none(deployment)):
                    del broken[name]
                    (deployment / "inbox" / name).unlink()
        with killing(chance.randint(0, 12)), suppress(Killed):
            cli("apply", path)
        apply(cli, path)
        assert values(deployment, away) == sorted(expected), day
        noted = [Path(one["path"]).name for one in letters(deployment)]
        assert len(noted) == len({*noted})
        assert {*broken} <= {*noted}
        assert "nothing to do" in apply(cli, path)
        if chance.random() < 0.3:
            assert cli("compact", path, "--job", "run").code == 0
        if chance.random() < 0.3:
            CARRIERS["parts"](deployment / "out", away / str(day))
    assert cli("verify", path).code == 0


@pytest.mark.slow
def test_a_file_that_is_noted_shows_no_columns(cli: Cli, deployment: Path, manifest: Write) -> None:
    """Only b is new, and it is unreadable: of the others, c says which columns there are, and a does not."""
    path = manifest()
    put(deployment, "a.npy", WHOLE[:-5])
    put(deployment, "c.npy", content(30))
    apply(cli, path)
    put(deployment, "b.npy", WHOLE[:-6])
    apply(cli, path)
    assert [one["path"] for one in letters(deployment)] == ["inbox/a.npy", "inbox/b.npy"]


def test_a_kill_behind_the_note_leaves_no_old_report(
    cli: Cli, deployment: Path, manifest: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = manifest()
    put(deployment, "a.npy", content(10))
    put(deployment, "b.npy", WHOLE[:-5])
    do = Ledger.set_aside

    def killed(*arguments: Any) -> None:
        do(*arguments)
        raise Killed

    with monkeypatch.context() as patch, suppress(Killed):
        patch.setattr(Ledger, "set_aside", killed)
        cli("apply", path)
    apply(cli, path)
    assert [one["path"] for one in letters(deployment)] == ["inbox/b.npy"]
    assert json.loads((deployment / "out/_run.json").read_text())["rows"]["failed"] == 1


def letters_or_none(folder: Path) -> list[dict[str, Any]]:
    return letters(folder) if (folder / "out/_failed.jsonl").exists() else []
