"""Committed parts that are read again: what differs is told, whatever hides it, and what is at work is no damage."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.digests import file_digest
from ortdeploy.ledger import integrity, verification
from ortdeploy.ledger.opening import open_ledger
from ortdeploy.ledger.records import NewFile, Part, Rewrite, part_name, replaced_name
from ortdeploy.ledger.verification import PartState, VerifiedPart, verify_parts
from ortdeploy.plan.made_by import MadeBy

ROWS = 4
OWNER = ("d", "j")
MADE_BY = MadeBy(name=OWNER[0], profile=None, identity={}, layout=None)


def committed(folder: Path, contents: Sequence[bytes | None]) -> list[Part]:
    """Commit a part for each content, those that are None without a file."""
    parts = []
    with open_ledger(folder) as ledger:
        ledger.begin("out", made_by=MADE_BY, job=OWNER[1], run="r")
        (folder / "out").mkdir()
        for number, content in enumerate(contents):
            parts.append(part_of(folder / "out", number, content))
            ledger.commit_part("out", parts[-1], [])
    return parts


def part_of(folder: Path, number: int, content: bytes | None) -> Part:
    """Write a part and return what the ledger notes of it."""
    done, skipped = (0, ROWS) if content is None else (ROWS, 0)
    start = number * ROWS
    known = Part(
        number=number, start=start, rows=ROWS, committed=done, failed=0, skipped=skipped, file=None, bytes=0,
        skipped_rows=tuple(range(start, start + skipped)),
    )  # fmt: skip
    if content is None:
        return known
    path = folder / part_name(number, 8, ".csv")
    path.write_bytes(content)
    stat = path.stat()
    return replace(known, file=path.name, bytes=stat.st_size, sha256=file_digest(path), mtime_ns=stat.st_mtime_ns)


def verified(folder: Path) -> list[VerifiedPart]:
    return list(verify_parts(folder, "out", OWNER, folder / "out"))


def test_parts_that_are_as_written(tmp_path: Path) -> None:
    committed(tmp_path, [b"a,b\n", None, b"c,d,e\n"])
    found = verified(tmp_path)
    assert [(one.file, one.bytes, one.state) for one in found] == [
        ("part-00000000.csv", 4, PartState.AS_WRITTEN),
        ("part-00000002.csv", 6, PartState.AS_WRITTEN),
    ]


@pytest.mark.parametrize("position", range(4))
@pytest.mark.parametrize("bit", [1, 128])
def test_a_flipped_bit_is_found_although_size_and_time_are_as_before(tmp_path: Path, position: int, bit: int) -> None:
    (part,) = committed(tmp_path, [b"a,b\n"])
    path = tmp_path / "out" / str(part.file)
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[position] ^= bit
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    (found,) = verified(tmp_path)
    assert (found.state, found.damage) == (PartState.DAMAGED, "holds other bytes than were written")


def test_every_part_is_told_that_is_gone_unreadable_or_of_another_size(tmp_path: Path) -> None:
    files = [tmp_path / "out" / str(part.file) for part in committed(tmp_path, [b"a\n", b"b\n", b"c\n", b"d\n"])]
    files[0].unlink()
    files[1].write_bytes(b"bb\n")
    files[2].unlink()
    files[2].symlink_to(files[2].name)
    assert [(one.state.value, one.damage) for one in verified(tmp_path)] == [
        ("damaged", "is gone"),
        ("damaged", "has 3 bytes instead of 2"),
        ("damaged", "is gone"),
        ("as-written", None),
    ]


def test_a_part_without_a_digest_is_unverifiable_unless_its_size_tells(tmp_path: Path) -> None:
    for part in committed(tmp_path, [b"a\n", b"b\n"]):
        with open_ledger(tmp_path) as ledger:
            ledger.commit_part("out", replace(part, sha256=None, mtime_ns=None), [])
    (tmp_path / "out" / "part-00000001.csv").write_bytes(b"")
    assert [one.state.value for one in verified(tmp_path)] == ["unverifiable", "damaged"]


@pytest.mark.parametrize("content", [b"before\n", b"behind\n"])
def test_a_part_may_be_what_a_retry_is_about_to_make_of_it(tmp_path: Path, content: bytes) -> None:
    part = part_of_a_retry(tmp_path)
    path = tmp_path / "out" / str(part.file)
    path.write_bytes(content)
    assert [one.state for one in verified(tmp_path)] == [PartState.AS_WRITTEN]
    path.write_bytes(b"another")
    assert [one.state for one in verified(tmp_path)] == [PartState.DAMAGED]


def part_of_a_retry(folder: Path) -> Part:
    """Commit a part with one failed row, and begin to merge that in."""
    (part,) = committed(folder, [b"before\n"])
    part = replace(part, committed=ROWS - 1, failed=1)
    path = folder / "behind"
    path.write_bytes(b"behind\n")
    file = NewFile(temporary=replaced_name(str(part.file)), file=str(part.file), bytes=7, sha256=file_digest(path))
    after = replace(part, committed=ROWS, failed=0, bytes=7, sha256=file.sha256)
    with open_ledger(folder) as ledger:
        ledger.commit_part("out", part, [])
        ledger.begin_rewrite("out", Rewrite(part=after, files=(file,), removed=(), spans=((1, 1),)), MADE_BY)
    return part


def test_a_part_that_a_run_replaces_meanwhile_is_no_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (part,) = committed(tmp_path, [b"before\n"])
    read = integrity.difference

    def replace_first(path: Path, records: Sequence[Part], digest: None) -> str | None:
        if records[0] == part:
            path.write_bytes(b"merged in\n")
            after = replace(part, bytes=10, sha256=file_digest(path))
            with open_ledger(tmp_path) as ledger:
                ledger.commit_part("out", after, [])
        return read(path, records, digest)

    monkeypatch.setattr(verification, "difference", replace_first)
    assert [(one.state, one.bytes) for one in verified(tmp_path)] == [(PartState.AS_WRITTEN, 10)]


def test_an_output_that_a_new_run_puts_aside_meanwhile_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(tmp_path, [b"a\n", b"b\n"])
    read = integrity.difference

    def put_aside(path: Path, records: Sequence[Part], digest: None) -> str | None:
        if path.parent.exists():
            path.parent.rename(tmp_path / "aside")
            with open_ledger(tmp_path) as ledger:
                ledger.rename("out", "aside")
        return read(path, records, digest)

    monkeypatch.setattr(verification, "difference", put_aside)
    assert verified(tmp_path) == []


def test_what_another_job_has_committed_is_not_this_jobs(tmp_path: Path) -> None:
    committed(tmp_path, [b"a\n"])
    assert list(verify_parts(tmp_path, "out", ("d", "other"), tmp_path / "out")) == []
    assert list(verify_parts(tmp_path, "elsewhere", OWNER, tmp_path / "elsewhere")) == []
    assert list(verify_parts(tmp_path / "none", "out", OWNER, tmp_path / "out")) == []


def test_a_part_of_a_removable_output_may_be_carried_away_and_not_changed(tmp_path: Path) -> None:
    committed(tmp_path, [b"a\n", b"b\n"])
    first, second = sorted((tmp_path / "out").glob("part-*"))
    first.unlink()
    second.write_bytes(b"c\n")
    found = list(verify_parts(tmp_path, "out", OWNER, tmp_path / "out", removable=True))
    assert [one.state for one in found] == [PartState.CARRIED_AWAY, PartState.DAMAGED]
    assert [one.state for one in verified(tmp_path)] == [PartState.DAMAGED, PartState.DAMAGED]


def test_a_ledger_that_contradicts_itself_is_damaged(tmp_path: Path) -> None:
    (part,) = committed(tmp_path, [b"a\n"])
    with open_ledger(tmp_path) as ledger:
        ledger.commit_part("out", replace(part, file="../elsewhere.csv"), [])
    with pytest.raises(OrtdeployError, match=r"is damaged .*elsewhere"):
        verified(tmp_path)
