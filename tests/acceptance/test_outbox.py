"""An output over years: its parts are carried away, its ledger is lost, and other deployments go on with it."""

import itertools
import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli
from onnx import TensorProto, helper
from support.carriers import CARRIERS, delivered, rows_of
from support.jobs import Killed
from support.models import save_model, scale_model

from ortdeploy.ledger.ledger import Ledger

MANIFEST = """
version: 1
name: outbox
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, key: [path, row], on_empty: done}
    batch: {size: BATCH}
    output: {path: out, format: FORMAT, rows_per_part: 4, OUTPUT}
"""


def write(folder: Path, output: str, *, batch: int = 2, kind: str = "jsonl") -> Path:
    """Write the manifest; rows have their number, by which a test finds them."""
    manifest = folder / "m.yaml"
    text = MANIFEST.replace("OUTPUT", output).replace("BATCH", str(batch)).replace("FORMAT", kind)
    manifest.write_text(text, encoding="utf-8")
    (folder / "inbox").mkdir(exist_ok=True)
    return manifest


def put(folder: Path, name: str, value: float, rows: int = 6) -> None:
    np.save(folder / "inbox" / f"{name}.npy", np.full((rows, 4), value, dtype=np.float32))


def values(*folders: Path) -> list[float]:
    """The first value of each row, in order."""
    return [row["y"][0] for row in rows_of(delivered(*folders)).values()]


def test_status_names_the_file_that_keeps_old_parts_from_being_forgotten(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "removable: true, keep: 0.0000001min")
    for day in range(1, 4):
        put(deployment, f"day-{day}", day, rows=4)
        assert cli("apply", manifest).code == 0
    assert "not forgotten" not in cli("status", manifest).words
    shutil.rmtree(deployment / "out")
    told = "older than keep are not forgotten while inbox/day-1.npy is there, or its folder is missing or empty"
    assert told in cli("status", manifest).words
    assert cli("status", manifest, "--format", "json").json["jobs"][0]["held_up_by"] == "inbox/day-1.npy"
    (deployment / "inbox").rename(deployment / "unmounted")
    assert told in cli("status", manifest).words
    (deployment / "unmounted").rename(deployment / "inbox")
    (deployment / "inbox/day-1.npy").unlink()
    assert "not forgotten" not in cli("status", manifest).words


@pytest.mark.slow
@pytest.mark.parametrize("name", ["parts", "the folder"])
def test_new_inputs_go_on_behind_what_was_carried_away(cli: Cli, deployment: Path, name: str) -> None:
    manifest = write(deployment, "removable: true")
    out, away = deployment / "out", deployment / "away"
    for day in range(1, 4):
        put(deployment, f"day-{day}", day)
        result = cli("apply", manifest)
        assert result.code == 0, result
        CARRIERS[name](out, away / f"{day}")
        assert cli("apply", manifest).code == 0
        assert "nothing to do" in cli("apply", manifest).words
        (deployment / f"inbox/day-{day}.npy").unlink()
    files = delivered(away, out)
    assert sorted(files) == [f"part-0000000{number}.jsonl" for number in range(6)]
    assert list(rows_of(files)) == list(range(18))
    assert values(away, out) == [day * 2.0 for day in (1, 2, 3) for _ in range(6)]
    status = cli("status", manifest, "--format", "json").json["jobs"][0]
    assert (status["status"], status["committed"]) == ("done", 18)


@pytest.mark.slow
def test_what_is_not_removable_may_become_so(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "removable: false")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    CARRIERS["parts"](deployment / "out", deployment / "away")
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert "part-00000000.jsonl was committed and is gone" in refused.words
    assert "output: {removable: true}" in refused.words
    write(deployment, "removable: true")
    put(deployment, "b", 2)
    assert cli("apply", manifest).code == 0
    assert values(deployment / "out") == [4.0] * 6


def test_an_output_that_was_moved_is_to_be_moved_back(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "removable: false")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    (deployment / "out").rename(deployment / "moved")
    manifest.write_text(manifest.read_text().replace("path: out", "path: moved"))
    refused = cli("apply", manifest)
    assert "state.db, which does not know this folder: if it was moved, move it back." in refused.words


@pytest.mark.slow
@pytest.mark.parametrize("output", ["removable: true", "removable: false"])
def test_an_output_whose_ledger_is_lost_is_refused_by_the_ledger_s_name(
    cli: Cli, deployment: Path, output: str
) -> None:
    manifest = write(deployment, output)
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    known = json.loads((deployment / "out/_output.json").read_text())
    assert known == {"format_version": 1, "ledger": "../.ortdeploy/state.db", "deployment": "outbox", "job": "run"}
    CARRIERS["parts"](deployment / "out", deployment / "away")
    (deployment / ".ortdeploy").rename(deployment / "lost")
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert "finished-output" in refused.words
    assert "Its _output.json names the ledger ../.ortdeploy/state.db, which is not there." in refused.words
    elsewhere = cli("apply", manifest, "--state-dir", str(deployment / "other"))
    assert elsewhere.code == 1
    shutil.rmtree(deployment / ".ortdeploy")  # what the device said of the refusal
    (deployment / "lost").rename(deployment / ".ortdeploy")
    assert cli("apply", manifest).code == (0 if output == "removable: true" else 1)


@pytest.mark.slow
def test_a_damaged_note_of_the_ledger_is_no_traceback(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "removable: true")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    shutil.rmtree(deployment / ".ortdeploy")
    for content in (
        b"",
        b"[]",
        b"{",
        b'{"ledger": 3}',
        b'{"ledger": "a\\u001b[31mb"}',
        b'{"ledger": "a\\u0000"}',
        b"\xff",
    ):
        (deployment / "out/_output.json").write_bytes(content)
        refused = cli("plan", manifest)
        assert refused.code == 1
        assert "holds files that no run recorded" in refused.words


def upgraded_model(folder: Path) -> None:
    scale_model(folder / "double.onnx", factor=3.0)


def states(folder: Path) -> dict[str, tuple[int, int, int]]:
    """The inode, the size and the time of each part."""
    found = {path.name: path.stat() for path in folder.glob("part-*")}
    return {name: (stat.st_ino, stat.st_size, stat.st_mtime_ns) for name, stat in found.items()}


def made_by(folder: Path) -> list[tuple[str, str]]:
    """The file of each part, and the model that made it."""
    with closing(sqlite3.connect(folder / ".ortdeploy/state.db")) as db:
        query = (
            "SELECT file, deployments.identity FROM parts JOIN deployments ON parts.deployment = digest ORDER BY number"
        )
        return [(file, json.loads(identity)["model"]) for file, identity in db.execute(query)]


def test_an_upgrade_goes_on_with_later_rows_in_new_parts(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "on_upgrade: continue")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    before = states(deployment / "out")
    upgraded_model(deployment)
    assert "nothing to do" in cli("apply", manifest).words  # committed rows stay
    put(deployment, "b", 1)
    plan = cli("plan", manifest)
    assert "rows 0 to 5 stay as they were made; those from 6 on run with what has changed: model" in plan.words
    assert cli("apply", manifest).code == 0
    assert values(deployment / "out") == [2.0] * 6 + [3.0] * 6
    assert before.items() <= states(deployment / "out").items()
    made = made_by(deployment)
    assert [file for file, _ in made] == [f"part-0000000{number}.jsonl" for number in range(4)]
    assert made[0][1] == made[1][1] != made[2][1] == made[3][1]
    report = json.loads((deployment / "out/_run.json").read_text())
    deployments = report["deployments"]
    assert [deployments[part["deployment"]]["identity"]["model"] for part in report["parts"]] == [
        one for _, one in made
    ]
    put(deployment, "c", 1)
    again = cli("apply", manifest)  # no upgrade any more
    assert "what has changed" not in again.words
    assert len(made_by(deployment)) == 6


def test_an_upgrade_within_a_run_ends_its_part_where_the_old_one_stopped(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten rows of which four are committed and two begun: these two run again, with the others."""
    monkeypatch.setattr("ortdeploy.streaming.block_sizes.MOST_BATCHES", 1)  # else the bad row may be in their block
    manifest = write(deployment, "on_upgrade: continue")
    manifest.write_text(manifest.read_text() + "    errors: {on_nan: fail, max_failed: 0}\n")
    rows = np.ones((10, 4), dtype=np.float32)
    rows[6] = np.nan
    np.save(deployment / "inbox/a.npy", rows)
    assert cli("apply", manifest).code == 1
    assert kept_rows(deployment) == 2
    upgraded_model(deployment)
    write(deployment, "on_upgrade: continue", batch=3)
    manifest.write_text(manifest.read_text() + "    errors: {on_nan: fail, max_failed: 1}\n")
    plan = cli("plan", manifest)
    assert "rows 0 to 3 stay as they were made; those from 4 on run with what has changed: model, batch" in plan.words
    result = cli("apply", manifest)
    assert result.code == 0, result
    assert "another deployment has begun it" in result.err
    assert values(deployment / "out") == [2.0] * 4 + [3.0] * 5
    lines = {name: len(content.splitlines()) for name, content in delivered(deployment / "out").items()}
    assert lines == {"part-00000000.jsonl": 4, "part-00000001.jsonl": 5}  # two batches of three, a bad row


def kept_rows(folder: Path) -> int:
    with closing(sqlite3.connect(folder / ".ortdeploy/state.db")) as db:
        found: int = db.execute("SELECT rows FROM begun").fetchone()[0]
        return found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "csv"}, "the format was jsonl and is csv"),
        ({"output": "columns: [z]"}, 'there is no column "y" any more'),
    ],
)
def test_other_columns_or_another_format_cannot_be_continued(
    cli: Cli, deployment: Path, change: dict[str, Any], words: str
) -> None:
    manifest = write(deployment, "on_upgrade: continue")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    put(deployment, "b", 1)
    if "output" in change:
        text = manifest.read_text().replace("rows_per_part", "columns: [z], rows_per_part")
        manifest.write_text(text.replace("    batch:", "    postprocess: [{softmax: y, as: z}]\n    batch:"))
    else:
        write(deployment, "on_upgrade: continue", kind=change["kind"])
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert words in refused.words
    assert values(deployment / "out") == [2.0] * 6


@pytest.mark.quick("3-removable: true, on_upgrade: continue")
@pytest.mark.parametrize("output", ["removable: true, on_upgrade: continue", "on_upgrade: continue"])
@pytest.mark.parametrize("every", [1, 3])
def test_an_upgrade_that_is_killed_at_any_step_is_gone_on_with(
    cli: Cli, deployment: Path, output: str, every: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after each commit of the ledger: six rows of the old model, six of the new one, never mixed."""
    write(deployment, output)
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    upgraded_model(deployment)
    put(deployment, "b", 1)
    for step in range(0, 99, every):
        folder = deployment / f"{step}"
        folder.mkdir()
        for name in ("double.onnx", "m.yaml", "inbox", "out", ".ortdeploy"):
            there = deployment / name
            shutil.copytree(there, folder / name) if there.is_dir() else shutil.copy2(there, folder / name)
        with monkeypatch.context() as patch:
            killed = kill_at(patch, step)
            try:
                assert cli("apply", folder / "m.yaml").code == 0
            except Killed:
                assert killed
        assert cli("apply", folder / "m.yaml").code == 0
        assert values(folder / "out") == [2.0] * 6 + [3.0] * 6
        made = made_by(folder)
        assert [made[0][1] == model for _, model in made] == [True, True, False, False]
        shutil.rmtree(folder)
        if not killed:
            break
    assert step > 6


def kill_at(patch: pytest.MonkeyPatch, step: int) -> list[int]:
    """Let the run end before (even steps) or after a transaction of the ledger; the list says whether it came to that."""
    real, seen, killed = Ledger._transaction, itertools.count(), list[int]()  # noqa: SLF001  its commits are what counts

    @contextmanager
    def transaction(self: Ledger) -> Iterator[Any]:
        number = next(seen)
        if step == 2 * number:
            killed.append(step)
            raise Killed
        with real(self) as db:
            yield db
        if step == 2 * number + 1:
            killed.append(step)
            raise Killed

    patch.setattr(Ledger, "_transaction", transaction)
    return killed


@pytest.mark.slow
def test_failed_rows_of_another_deployment_get_a_file_of_their_own(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "on_upgrade: continue")
    manifest.write_text(manifest.read_text() + "    errors: {on_nan: fail, max_failed: 9}\n")
    np.save(deployment / "inbox/a.npy", np.full((3, 4), [[1], [3e38], [2]], dtype=np.float32))
    assert cli("apply", manifest).code == 0
    assert values(deployment / "out") == [2.0, 4.0]
    before = (deployment / "out/part-00000000.jsonl").read_bytes()
    scale_model(deployment / "double.onnx", factor=0.5)
    assert cli("retry", manifest, "--job", "run").code == 0
    assert values(deployment / "out") == [2.0, pytest.approx(1.5e38), 4.0]
    assert (deployment / "out/part-00000000.jsonl").read_bytes() == before
    (part,) = json.loads((deployment / "out/_run.json").read_text())["parts"]
    assert [one["file"] for one in part["revisions"]] == ["part-00000000.r1.jsonl"]
    assert part["revisions"][0]["deployment"] != part["deployment"]
    assert "nothing to do" in cli("apply", manifest).words


@pytest.mark.slow
def test_an_upgrade_may_start_over_without_being_asked(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "on_upgrade: rerun")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    assert "nothing to do" in cli("apply", manifest).words
    upgraded_model(deployment)
    refused = cli("retry", manifest, "--job", "run")  # only apply starts over
    assert refused.code == 1
    assert "apply it first" in refused.words
    assert cli("apply", manifest).code == 0
    assert values(deployment / "out") == [3.0] * 6
    (aside,) = deployment.glob("out.*")
    assert values(aside) == [2.0] * 6
    assert "nothing to do" in cli("apply", manifest).words


@pytest.mark.slow
def test_an_upgrade_is_refused_where_the_manifest_says_nothing(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "removable: true")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    upgraded_model(deployment)
    CARRIERS["the folder"](deployment / "out", deployment / "away/1")
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert "made before these changed: model" in refused.words


def test_an_older_ledger_has_no_layout_and_goes_on_where_the_columns_did_not_change(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "on_upgrade: continue")
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    forget_deployments(deployment)
    upgraded_model(deployment)
    put(deployment, "b", 1)
    assert cli("apply", manifest).code == 0
    assert values(deployment / "out") == [2.0] * 6 + [3.0] * 6
    made = made_by(deployment)
    assert made[0][1] != made[-1][1]


def forget_deployments(folder: Path) -> None:
    """Let the ledger know of no deployment, as one of version 3 does."""
    from ortdeploy.ledger import versions as module  # noqa: PLC0415

    with closing(sqlite3.connect(folder / ".ortdeploy/state.db")) as db:
        db.execute("DELETE FROM deployments")
        db.execute("UPDATE parts SET deployment = NULL, seal = NULL")
        module._seal_all(db)  # noqa: SLF001
        db.commit()


@pytest.mark.slow
def test_an_upgrade_searches_its_own_batch_size(cli: Cli, deployment: Path) -> None:
    manifest = write(deployment, "on_upgrade: continue")
    manifest.write_text(manifest.read_text().replace("size: 2", "size: auto"))
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    with closing(sqlite3.connect(deployment / ".ortdeploy/state.db")) as db:
        db.execute("UPDATE outputs SET batch_size = 77")
        db.commit()
    upgraded_model(deployment)
    put(deployment, "b", 1)
    assert cli("apply", manifest).code == 0
    with closing(sqlite3.connect(deployment / ".ortdeploy/state.db")) as db:
        assert db.execute("SELECT batch_size FROM outputs").fetchone()[0] not in {None, 77}
    assert values(deployment / "out") == [2.0] * 6 + [3.0] * 6


@pytest.mark.parametrize("policy", ["continue", "rerun"])
def test_a_saved_plan_upgrades_as_it_was_made(cli: Cli, deployment: Path, policy: str) -> None:
    manifest, saved = write(deployment, f"on_upgrade: {policy}"), deployment / "plan.json"
    put(deployment, "a", 1)
    assert cli("apply", manifest).code == 0
    upgraded_model(deployment)
    put(deployment, "b", 1)
    assert cli("plan", manifest, "--out", saved).code == 0
    assert cli("apply", saved).code == 0
    assert values(deployment / "out") == ([2.0] * 6 if policy == "continue" else [3.0] * 6) + [3.0] * 6
    assert "nothing to do" in cli("apply", saved).words
    assert len(list(deployment.glob("out*"))) == (1 if policy == "continue" else 2)


def test_images_are_carried_away_with_their_rows(cli: Cli, deployment: Path) -> None:
    pytest.importorskip("PIL")
    manifest = write(deployment, "removable: true, images: [y]")
    scale_model(deployment / "double.onnx")
    text = manifest.read_text().replace("path: double.onnx", "path: picture.onnx")
    manifest.write_text(text)
    picture_model(deployment / "picture.onnx")
    for day in (1, 2):
        put(deployment, f"{day}", day, rows=3)
        result = cli("apply", manifest)
        assert result.code == 0, result
        CARRIERS["parts"](deployment / "out", deployment / f"away/{day}")
    rows = rows_of(delivered(deployment / "away"))
    assert [row["y"] for row in rows.values()] == [f"images/y-{number:08d}.png" for number in range(6)]
    assert [len(list((deployment / f"away/{day}/images").iterdir())) for day in (1, 2)] == [3, 3]


def picture_model(path: Path) -> None:
    """A picture of two by two points of each row."""
    save_model(
        path,
        [
            helper.make_node("Cast", ["x"], ["whole"], to=TensorProto.UINT8),
            helper.make_node("Reshape", ["whole", "shape"], ["y"]),
        ],
        {"x": (TensorProto.FLOAT, ["batch", 4])},
        {"y": (TensorProto.UINT8, ["batch", 2, 2])},
        {"shape": np.array([-1, 2, 2], dtype=np.int64)},
    )
