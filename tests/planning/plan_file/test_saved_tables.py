"""Tables beside plan files: long lists of files travel with the plan, and a missing or another table is refused."""

import gzip
import json
import shutil
import string
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows
from hypothesis import given
from hypothesis import strategies as st

import ortdeploy.cli.plans  # noqa: F401  it copies MAX_BYTES, which a test replaces
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.planning.plan_file import plan_writing, saved_tables
from ortdeploy.planning.plan_file.saved_tables import (
    SavedFile,
    Table,
    as_files,
    as_table,
    pack_lines,
    read_lines,
    within_or_beside,
    write_table,
)

SHA256 = "a" * 64


@pytest.fixture
def many(deployment: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A deployment whose input has more files than a list in a plan file may have."""
    (deployment / "in").mkdir()
    for number in range(5):
        np.save(deployment / f"in/{number}.npy", np.full((2, 4), number, np.float32))
    (deployment / "m.yaml").write_text(MANIFEST.replace("data.npy", "in/*.npy"))
    monkeypatch.setattr(plan_writing, "LONG", 3)
    return deployment


def save(cli: Cli, folder: Path, name: str = "plan.json") -> tuple[Path, Path]:
    """Save a plan; return it and its table."""
    saved = cli("plan", folder / "m.yaml", "--out", folder / name)
    assert saved.code == 0, saved.out + saved.err
    told = json.loads((folder / name).read_text())["plans"][0]["inputs"]["run"]
    return folder / name, folder / told["table"]


def refusal(cli: Cli, plan: Path) -> str:
    refused = cli("apply", plan)
    assert (refused.code, refused.out.count("error[unreadable-plan]")) == (1, 1), refused.out + refused.err
    assert not (plan.parent / "outbox").exists()
    return refused.words


@pytest.mark.slow
def test_a_plan_and_its_table_are_applied_in_another_checkout(cli: Cli, many: Path) -> None:
    plan, table = save(cli, many)
    assert table.name.startswith("plan.files-")
    assert "in/0.npy" not in plan.read_text()
    lines = gzip.decompress(table.read_bytes()).decode().splitlines()
    assert [json.loads(line)[:2] for line in lines] == [[f"in/{number}.npy", 160] for number in range(5)]
    other = Path(shutil.copytree(many, many.parent / f"{many.name}-other", ignore=shutil.ignore_patterns(".ortdeploy")))
    applied = cli("apply", other / plan.name)
    assert applied.code == 0, applied.out + applied.err
    assert len(read_rows(other / "outbox/run")) == 10


@pytest.mark.slow
def test_shards_and_finish_read_the_table(cli: Cli, many: Path) -> None:
    plan, _ = save(cli, many)
    for index in range(2):
        assert cli("apply", plan, "--shard", f"{index}/2").code == 0
    assert cli("finish", plan).code == 0
    assert len(read_rows(many / "outbox/run")) == 10


def test_a_file_of_a_table_that_changed_is_named(cli: Cli, many: Path) -> None:
    plan, _ = save(cli, many)
    np.save(many / "in/3.npy", np.zeros((2, 4), np.float32))
    refused = cli("apply", plan)
    assert (refused.code, "in/3.npy changed" in refused.words) == (1, True)


def test_equal_lists_have_equal_tables_and_others_have_other_names(cli: Cli, many: Path) -> None:
    (_, first), (_, again) = save(cli, many), save(cli, many)
    assert first == again
    np.save(many / "in/9.npy", np.zeros((2, 4), np.float32))
    _, other = save(cli, many)
    assert first != other
    assert first.exists(), "a copy of the plan may need it"
    assert not [path.name for path in many.iterdir() if path.name.startswith(".plan")]


def test_a_missing_table_is_said(cli: Cli, many: Path) -> None:
    plan, table = save(cli, many)
    table.unlink()
    said = refusal(cli, plan)
    assert f'plans[0].inputs.run: its table "{table.name}" is not in {many}' in said
    assert "copy both, or make the plan again" in said


def test_a_damaged_table_and_another_plan_s_are_refused(cli: Cli, many: Path) -> None:
    plan, table = save(cli, many)
    whole = table.read_bytes()
    for damaged in (whole[:-9], whole[:20] + bytes([whole[20] ^ 1]) + whole[21:], b""):
        table.write_bytes(damaged)
        assert "is damaged, or another plan's: its SHA-256 begins with" in refusal(cli, plan)
    np.save(many / "in/9.npy", np.zeros((2, 4), np.float32))
    _, other = save(cli, many, "other.json")
    shutil.copy(other, table)
    assert "is damaged, or another plan's" in refusal(cli, plan)


@pytest.mark.parametrize("name", ["../plan.gz", "/dev/zero", "in/0.npy", ".", "..", "a\0b", "x" * 300])
def test_a_plan_names_only_tables_beside_it(cli: Cli, many: Path, name: str) -> None:
    plan, _ = save(cli, many)
    document = json.loads(plan.read_text())
    document["plans"][0]["inputs"]["run"]["table"] = name
    plan.write_text(json.dumps(document))
    refusal(cli, plan)


LINES = [["in/0.npy", 160, 1, SHA256], ["in/1.npy", 160, 1, None]]


@pytest.mark.parametrize(
    "lines",
    [
        [],
        LINES[:1],
        [*LINES, LINES[0]],
        [LINES[0], 7],
        [LINES[0], ["in/1.npy", 160, 1]],
        [LINES[0], ["in/1.npy", True, 1, None]],
        [LINES[0], ["in/1.npy", -1, 1, None]],
        [LINES[0], ["in/1.npy", 2**63, 1, None]],
        [LINES[0], ["in/1.npy", 1, -(2**63) - 1, None]],
        [LINES[0], ["in/1.npy", 1, 1, "A" * 64]],
        [LINES[0], ["a\0b", 1, 1, None]],
        [LINES[0], ["\ud800", 1, 1, None]],
        "[",
        "[" * 100_000,
    ],
)
def test_a_table_that_no_plan_has_is_refused(tmp_path: Path, lines: Any) -> None:
    pieces = [gzip.compress(lines.encode() + b"\n")] if isinstance(lines, str) else pack_lines(lines)
    table = as_table({**write_table(tmp_path / "plan.json", "files", pieces, 2)})
    with pytest.raises(OrtdeployError, match="Make the plan again"):
        as_files(read_lines(tmp_path / "plan.json", table, table.files))


def test_more_is_neither_written_nor_read_than_a_table_may_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = as_table(write_table(tmp_path / "plan.json", "files", pack_lines(LINES), 2))
    monkeypatch.setattr(saved_tables, "MAX_UNPACKED", 100)
    with pytest.raises(OrtdeployError, match="is no list of 2 files"):
        as_files(read_lines(tmp_path / "plan.json", table, 2))
    with pytest.raises(OrtdeployError, match="more than 100 bytes"):
        write_table(tmp_path / "plan.json", "rows", pack_lines(LINES), 2)
    assert [path.name for path in tmp_path.iterdir()] == [table.table]


def test_a_plan_file_that_apply_would_refuse_is_not_written(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan_writing, "MAX_BYTES", 100)
    refused = cli("plan", deployment / "m.yaml", "--out", deployment / "plan.json")
    assert (refused.code, "and apply reads 100 at most" in refused.err) == (1, True)
    assert not (deployment / "plan.json").exists()


def test_long_indexes_of_text_lie_beside_the_plan_too(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_tables, "LONG_TEXT", 0)
    (deployment / "data.csv").write_text("x0,x1,x2,x3\n" + "1,2,3,4\n" * 20)
    columns = "data.csv, columns: {x: [x0, x1, x2, x3]}"
    (deployment / "m.yaml").write_text(
        MANIFEST.replace("data.npy", columns).replace("jsonl", "jsonl, rows_per_part: 8")
    )
    plan = deployment / "plan.json"
    assert cli("plan", deployment / "m.yaml", "--out", plan).code == 0
    told = json.loads(plan.read_text())["plans"][0]["rows"]["run"]
    table = deployment / told["table"]
    assert table.name.startswith("plan.rows-")
    assert cli("apply", plan, "--shard", "0/1").code == 0
    table.rename(deployment / "away.gz")
    refused = cli("apply", plan, "--shard", "0/1")
    assert (refused.code, f'plans[0].rows of job run: its table "{table.name}" is not in' in refused.words) == (
        64,
        True,
    )
    (deployment / "away.gz").rename(table)
    assert cli("finish", plan).code == 0
    assert len(read_rows(deployment / "outbox/run")) == 20


NAMES = st.text(
    st.characters(exclude_characters="\0", exclude_categories=["Cs"]) | st.sampled_from("\udc80:\n"), min_size=1
)
FILES = st.lists(
    st.builds(
        SavedFile,
        path=NAMES,
        size=st.integers(0, 2**63 - 1),
        mtime_ns=st.integers(-(2**63), 2**63 - 1),
        sha256=st.none() | st.text(string.digits + "abcdef", min_size=64, max_size=64),
    ),
    max_size=30,
)


@given(FILES)
def test_every_list_comes_back_as_it_was(files: Sequence[SavedFile]) -> None:
    packed = b"".join(pack_lines([one.path, one.size, one.mtime_ns, one.sha256] for one in files))
    text = within_or_beside(Path("plan.json"), "files", packed, len(files))
    assert as_files(read_lines(Path("plan.json"), text, len(files))) == files


def test_text_that_is_no_table_is_damaged() -> None:
    for text in ("AAAA", "%", "QQ"):
        with pytest.raises(OrtdeployError, match="they are damaged"):
            list(read_lines(Path("plan.json"), text, 1))
    assert as_table({"table": "x", "sha256": SHA256, "files": 1}) == Table(table="x", sha256=SHA256, files=1)


@pytest.mark.slow
def test_indexes_are_those_of_all_files_of_a_job_that_goes_on(cli: Cli, deployment: Path) -> None:
    manifest, plan = deployment / "m.yaml", deployment / "plan.json"
    manifest.write_text(MANIFEST.replace("data.npy", "'*.csv', columns: {x: [a, b, c, d]}"))
    for number in range(2):
        (deployment / f"{number}.csv").write_text("a,b,c,d\n" + "1,2,3,4\n" * 5)
        assert cli("plan", manifest, "--out", plan).code == 0
        shard = cli("apply", plan, "--shard", "0/1")
        assert shard.code == 0, shard.words
        assert cli("finish", plan).code == 0
    assert len(read_rows(deployment / "outbox/run")) == 10


def test_two_plans_with_tables_are_compared_by_their_digests(cli: Cli, many: Path) -> None:
    old, _ = save(cli, many)
    np.save(many / "in/9.npy", np.zeros((2, 4), np.float32))
    new, _ = save(cli, many, "new.json")
    shown = cli("diff", old, new)
    assert (shown.code, "inputs.run.files: 5 -> 6" in shown.out, "inputs.run.sha256:" in shown.out) == (0, True, True)
