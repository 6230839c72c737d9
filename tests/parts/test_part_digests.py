"""Digests of parts: taken while they are written, told in ledger and report, held against the files before they are used."""

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.fakes import FakeRuntime, double, refuse_negative
from support.jobs import READ, execute, plan_for, report, retrying, rows, save, written_as
from support.ledgers import merging

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.files import atomic as part_files
from ortdeploy.files.atomic import Hashing
from ortdeploy.ledger.integrity import find_damage
from ortdeploy.ledger.opening import read_outputs
from ortdeploy.results.results import Status


def flip(path: Path) -> None:
    """Change one bit of a file, and nothing else but its time."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, (1, 1))


def first_part(folder: Path) -> Path:
    return min((folder / "out").glob("part-*"))


@pytest.mark.parametrize("kind", READ)
def test_every_format_notes_the_digest_of_each_part_also_after_a_retry(tmp_path: Path, kind: str) -> None:
    save(tmp_path, [0, -1, 2, 3, *[-4] * 8, 12, 13])
    plan = written_as(plan_for(tmp_path, 14, max_failed=20), kind)
    for one, function in ((plan, refuse_negative), (retrying(plan), double)):
        execute(tmp_path, one, FakeRuntime(function))
        (record,) = read_outputs(tmp_path / ".ortdeploy")
        found = {part.file: (part.sha256, part.bytes) for part in record.parts if part.file}
        assert found == {
            path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_size)
            for path in (tmp_path / "out").glob("part-*")
        }
        assert [part["sha256"] for part in report(tmp_path)["parts"]] == [part.sha256 for part in record.parts]


@pytest.mark.slow
def test_a_part_is_not_read_again_for_its_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: Path) -> str:
        raise AssertionError("read again")

    monkeypatch.setattr(part_files, "file_digest", refuse)
    for kind in ("arrow", "csv", "jsonl", "parquet"):
        (tmp_path / kind).mkdir()
        save(tmp_path / kind, range(20))
        plan = written_as(plan_for(tmp_path / kind, 20), kind)
        assert execute(tmp_path / kind, plan, FakeRuntime(double)).status is Status.DONE


@pytest.mark.parametrize("rewrites", [False, True])
def test_what_is_written_over_counts_as_it_is_at_the_end(tmp_path: Path, *, rewrites: bool) -> None:
    with (tmp_path / "file").open("wb") as file:
        hashing = Hashing(file)
        hashing.write(b"abc")
        if rewrites:
            hashing.seek(0)
            hashing.write(b"A")
            hashing.seek(0, 2)
        hashing.writelines([b"d", memoryview(b"ef")])
        written = hashing.written()
    content = (tmp_path / "file").read_bytes()
    assert content == (b"Abcdef" if rewrites else b"abcdef")
    assert (written.sha256, written.bytes) == (hashlib.sha256(content).hexdigest(), 6)


def interrupted(folder: Path) -> Any:
    """Run a job of which some rows fail, up to its second part; return its plan."""
    save(folder, [0, -1, *range(2, 20)])
    plan = plan_for(folder, 20, max_failed=5)

    def fail_late(feeds: Mapping[str, np.ndarray]) -> Mapping[str, np.ndarray]:
        if (feeds["x"] > 16).any():
            raise ProviderFailedError("the device is gone")
        return refuse_negative(feeds)

    assert execute(folder, plan, FakeRuntime(fail_late)).status is Status.FAILED
    return plan


def test_a_flipped_bit_is_found_by_the_next_apply_and_by_retry(tmp_path: Path) -> None:
    plan = interrupted(tmp_path)
    path = first_part(tmp_path)
    flip(path)
    before = path.read_bytes()
    for one in (plan, retrying(plan)):
        result = execute(tmp_path, one, FakeRuntime(double))
        assert result.status is Status.FAILED
        assert f"out/{path.name} was committed and holds other bytes than were written" in (result.reason or "")
        assert path.read_bytes() == before


def test_a_part_of_other_time_and_the_same_bytes_is_as_good(tmp_path: Path) -> None:
    plan = interrupted(tmp_path)
    path = first_part(tmp_path)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    os.utime(path, (1, 1))
    assert execute(tmp_path, plan, FakeRuntime(refuse_negative)).status is Status.DONE
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == 20
    assert [row for row, _ in rows(tmp_path)] == list(range(20))


def test_parts_of_the_noted_size_and_time_are_not_read(tmp_path: Path) -> None:
    interrupted(tmp_path)
    (record,) = read_outputs(tmp_path / ".ortdeploy")

    def refuse(_: Path) -> str:
        raise AssertionError("read")

    assert find_damage(tmp_path / "out", record.parts, digest=refuse) is None


def test_a_merged_file_that_is_damaged_does_not_take_the_parts_place(tmp_path: Path) -> None:
    save(tmp_path, [-1.0 - row if row in (1, 13, 20) else float(row) for row in range(30)])
    merging(tmp_path)
    (waiting,) = (tmp_path / "out").glob(".part-*.replaced")
    flip(waiting)
    before = first_part(tmp_path).read_bytes()
    plan = plan_for(tmp_path, 30, max_failed=9)
    result = execute(tmp_path, retrying(plan), FakeRuntime(double))
    assert result.status is Status.FAILED
    assert f"{waiting.name}, which takes the place of part-00000000.jsonl, is damaged" in (result.reason or "")
    assert first_part(tmp_path).read_bytes() == before
    waiting.rename(tmp_path / "kept")  # as the message says
    assert execute(tmp_path, retrying(plan), FakeRuntime(double)).committed == 30
    assert [row for row, _ in rows(tmp_path)] == list(range(30))


def test_a_part_that_is_neither_the_old_one_nor_the_merged_one_is_told(tmp_path: Path) -> None:
    save(tmp_path, [-1.0 - row if row in (1, 13, 20) else float(row) for row in range(30)])
    merging(tmp_path)
    (waiting,) = (tmp_path / "out").glob(".part-*.replaced")
    waiting.replace(first_part(tmp_path))
    flip(first_part(tmp_path))
    result = execute(tmp_path, retrying(plan_for(tmp_path, 30, max_failed=9)), FakeRuntime(double))
    assert "out/part-00000000.jsonl was committed and" in (result.reason or "")
    assert result.status is Status.FAILED
