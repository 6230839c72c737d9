"""A saved plan whose shards read from a store and write to it, as a scheduler calls them, against a server process."""

import io
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from conftest import MANIFEST, Cli, run_process
from onnx import TensorProto, helper
from support import s3
from support.effort import effort
from support.forks import start_program
from support.models import Shape, save_model, scale_model
from support.waiting import wait_for

from ortdeploy.files.names import DECISIONS
from ortdeploy.files.shared_folder import SharedFolder
from ortdeploy.files.shared_store import SharedStore

if TYPE_CHECKING:
    from ortdeploy.files.shared_place import SharedPlace

pytestmark = pytest.mark.process


def put_rows(bucket: s3.Store, name: str, first: int, rows: int) -> None:
    file = io.BytesIO()
    np.save(file, np.repeat(np.arange(first, first + rows, dtype=np.float32)[:, None], 4, axis=1))
    bucket.put(name, file.getvalue())


@pytest.fixture
def manifest(tmp_path: Path, bucket: s3.Store) -> Path:
    """Rows of four files on the store, and an output on it."""
    scale_model(tmp_path / "double.onnx")
    for number in range(4):
        put_rows(bucket, f"in/{number}.npy", number * 5, 5)
    text = MANIFEST.replace("data.npy, key: [row]", f'"{bucket.url("in/*.npy")}", key: [row, path]')
    text = text.replace("outbox/run", f'"{bucket.url("out")}"')
    (tmp_path / "m.yaml").write_text(text.replace("format: jsonl", "format: jsonl, rows_per_part: 8"))
    return tmp_path / "m.yaml"


def plan_of(manifest: Path, cli: Cli, name: str = "plan.json") -> Path:
    saved = cli("plan", manifest, "--out", manifest.parent / name)
    assert saved.code == 0, saved.words
    return manifest.parent / name


def test_rows_from_a_store_get_onto_one_through_shards(cli: Cli, manifest: Path, bucket: s3.Store) -> None:
    plan = plan_of(manifest, cli)
    for index in (1, 0):
        assert ("parts decided" in cli("status", manifest).out) == (index == 0)
        ran = run_process(["apply", plan, "--shard", f"{index}/2"], cwd=manifest.parent)
        assert ran.code == 0, ran.words
    assert "run: 3 of 3 parts decided: 20 of 20 rows" in cli("status", manifest).out
    told = cli("status", manifest, "--format", "json").json["jobs"][0]["shares"]
    assert {one["name"].split()[-1]: one["parts"] for one in told["workers"]} == {"0/2": 2, "1/2": 1}
    bucket.faults = lambda _request: s3.FORBIDDEN
    unread = cli("status", manifest)
    assert (unread.code, "run: how far shards are is not known: s3://" in unread.out) == (0, True), unread.words
    assert "cannot be listed" in cli("status", manifest, "--format", "json").json["jobs"][0]["shares_unread"]
    bucket.faults = lambda _request: None
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert "on a store only shards go on with what they have begun" in refused.words
    assert cli("finish", plan).code == 0
    rows = [json.loads(line) for part in bucket.parts("out").values() for line in part.splitlines()]
    assert [(row["row"], row["y"][0]) for row in rows] == [(row, 2.0 * row) for row in range(20)]
    assert json.loads(bucket.read("out/_run.json"))["rows"]["committed"] == 20
    assert s3.local_copies(manifest.parent) == []
    assert "parts decided" not in cli("status", manifest).out
    for again in (("apply", plan, "--shard", "0/1"), ("finish", plan), ("apply", manifest)):
        done = cli(*again)
        assert (done.code, "nothing to do" in done.out) == (0, True), done.words


def test_what_arrives_later_is_the_next_plan_s_and_a_new_run_starts_over(
    cli: Cli, manifest: Path, bucket: s3.Store
) -> None:
    plan = plan_of(manifest, cli)
    assert cli("apply", plan, "--shard", "0/1").code == 0
    assert cli("finish", plan).code == 0
    put_rows(bucket, "in/9.npy", 100, 1)
    alone = cli("apply", manifest)
    assert (alone.code, "on a store only shards go on" in alone.words) == (1, True)
    plan = plan_of(manifest, cli, "second.json")
    assert cli("apply", plan, "--shard", "0/1").code == 0
    assert cli("finish", plan).code == 0
    rows = [json.loads(line)["y"][0] for part in bucket.parts("out").values() for line in part.splitlines()]
    assert rows == [*(2.0 * row for row in range(20)), 200.0]
    put_rows(bucket, "in/0.npy", 50, 5)
    over = cli("apply", manifest, "--new-run")
    assert over.code == 0, over.words
    assert not [name for name in bucket.names("out") if name.startswith("_parts/")]
    assert len(bucket.parts("out")) == 3


def test_a_server_that_ignores_the_condition_ends_a_shard_before_any_part(
    cli: Cli, manifest: Path, bucket: s3.Store
) -> None:
    plan = plan_of(manifest, cli)
    bucket.faults = lambda _request: s3.UNCONDITIONAL
    refused = cli("apply", plan, "--shard", "0/1")
    assert refused.code == 64
    assert "lets two processes create the same object" in refused.words
    assert bucket.names("out") == []


def test_inputs_come_through_a_store_that_is_busy_and_a_network_that_is_cut(
    cli: Cli, manifest: Path, bucket: s3.Store
) -> None:
    plan = plan_of(manifest, cli)
    bucket.faults = s3.Once("GET", r"/in/2\.npy", s3.BUSY, s3.CUT_WITHIN)
    assert cli("apply", plan, "--shard", "0/1").code == 0
    assert bucket.faults.is_used_up
    assert cli("finish", plan).code == 0
    assert sum(len(part.splitlines()) for part in bucket.parts("out").values()) == 20


class KilledAt:
    """Kills a process (SIGKILL) as its n-th request since the start comes; the request is carried out, or is not."""

    def __init__(self, number: int, *, carried_out: bool) -> None:
        self.pid: int | None = None
        self._left, self._fault = number, s3.CUT_AFTER if carried_out else s3.CUT_BEFORE

    def __call__(self, _request: s3.Request) -> str | None:
        self._left -= 1
        if self._left != 0 or self.pid is None:
            return None
        os.kill(self.pid, signal.SIGKILL)
        return self._fault


@pytest.mark.quick("first-worker.json")
@pytest.mark.parametrize("object_", [".probe-", "first-worker.json"])
def test_an_output_that_was_deleted_is_made_anew_though_the_first_shard_dies(
    cli: Cli, manifest: Path, bucket: s3.Store, object_: str
) -> None:
    plan = plan_of(manifest, cli)
    assert cli("apply", plan, "--shard", "0/1").code == cli("finish", plan).code == 0
    wanted = bucket.parts("out")
    bucket.system.rm(f"{bucket.bucket}/out", recursive=True)
    with start_program(
        ["apply", plan, "--shard", "0/1"], cwd=manifest.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:

        def kill_when_begun(request: s3.Request) -> str | None:
            if request[0] != "PUT" or object_ not in request[1]:
                return None
            os.kill(process.pid, signal.SIGKILL)
            return s3.CUT_AFTER

        bucket.faults = kill_when_begun
        assert process.wait() == -signal.SIGKILL
    wait_for(lambda: bucket.is_idle)
    bucket.faults = lambda _request: None
    assert not bucket.parts("out")
    assert cli("finish", plan).code == 1
    assert cli("apply", plan, "--shard", "0/1").code == cli("finish", plan).code == 0
    assert bucket.parts("out") == wanted


@pytest.mark.quick("begun anew")
@pytest.mark.parametrize("state", ["finished", "deleted", "begun anew"])
def test_a_plan_takes_one_look_at_what_shards_have_on_a_store(
    cli: Cli, manifest: Path, bucket: s3.Store, state: str
) -> None:
    plan = plan_of(manifest, cli)
    assert cli("apply", plan, "--shard", "0/1").code == cli("finish", plan).code == 0
    if state != "finished":
        bucket.system.rm(f"{bucket.bucket}/out", recursive=True)
    if state == "begun anew":
        assert cli("apply", plan, "--shard", "0/2").code == 0
    before = len(bucket.asked)
    assert cli("plan", manifest).code == 0
    listed = [path for _, path, _ in bucket.asked[before:] if "list-type" in path and "out%2F_parts" in path]
    looks = [path for path in listed if "max-keys=1&" not in path]  # so s3fs asks by itself if nothing is there
    assert len(looks) == 1, listed


@pytest.mark.quick("store-finish")
@pytest.mark.parametrize("command", ["finish", "apply"])
@pytest.mark.parametrize("where", ["folder", "store"])
def test_what_a_shard_that_slept_and_was_killed_leaves_of_a_finished_plan_is_deleted(
    cli: Cli, manifest: Path, bucket: s3.Store, where: str, command: str
) -> None:
    if where == "folder":
        manifest.write_text(manifest.read_text().replace(f'"{bucket.url("out")}"', "out"))
    place: SharedPlace = SharedStore(bucket.url("out")) if where == "store" else SharedFolder(manifest.parent / "out")
    plan = plan_of(manifest, cli)
    assert cli("apply", plan, "--shard", "0/1").code == cli("finish", plan).code == 0
    (digest,) = (name for name in place.names(DECISIONS) if "." not in name)
    before = sorted(place.names(f"{DECISIONS}/{digest}"))
    assert place.create(f"{DECISIONS}/{digest}/.part-0.of-a-shard", b"late")
    ended = cli(command, manifest if command == "apply" else plan)
    assert (ended.code, "nothing to do" in ended.out) == (0, True), ended.words
    assert sorted(place.names(f"{DECISIONS}/{digest}")) == before
    assert cli("verify", manifest).code == 0


@pytest.mark.slow
def test_processes_that_are_killed_at_any_request_leave_every_row_once(
    cli: Cli, manifest: Path, bucket: s3.Store
) -> None:
    plan = plan_of(manifest, cli)
    before = len(bucket.asked)
    assert cli("apply", plan, "--shard", "0/1").code == 0
    requests = len(bucket.asked) - before
    wanted = bucket.parts("out")
    shutil.rmtree(manifest.parent / ".ortdeploy", ignore_errors=True)
    bucket.system.rm(f"{bucket.bucket}/out", recursive=True)
    moments = np.random.default_rng(25)
    killed = 0
    for _ in range(effort(24, 200)):
        number = int(moments.integers(1, requests))
        if number % 8 == 0 and bucket.names("out"):  # all again, in an output of its own
            bucket.system.rm(f"{bucket.bucket}/out", recursive=True)
        kill = KilledAt(number, carried_out=bool(moments.integers(2)))
        command: list[str | Path] = (
            ["finish", plan] if number % 7 == 0 else ["apply", plan, "--shard", f"{number % 2}/2"]
        )
        with start_program(
            command, cwd=manifest.parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as process:
            kill.pid = process.pid
            bucket.faults = kill
            killed += process.wait() == -signal.SIGKILL
            kill.pid = None
        wait_for(lambda: bucket.is_idle)  # a request that the process has sent may be carried out behind its end
        bucket.faults = lambda _request: None
    assert killed
    assert cli("apply", plan, "--shard", "0/1").code == 0
    assert cli("finish", plan).code == 0
    assert bucket.parts("out") == wanted
    names = {name.rsplit("/", 1)[-1] for name in bucket.names("out") if name.startswith("_parts/")}
    assert names == {"bound.json", "closed.json", "from-0.json"}


@pytest.mark.quick("store")
@pytest.mark.parametrize("where", ["folder", "store"])
def test_pictures_come_in_and_go_out_through_shards(cli: Cli, tmp_path: Path, bucket: s3.Store, where: str) -> None:
    """Many files a row each, and results that are files of their own: what one machine leaves, bit for bit."""
    pytest.importorskip("PIL")
    from PIL import Image  # noqa: PLC0415  an extra

    pixels: tuple[int, Shape] = (TensorProto.UINT8, ["batch", 4, 4, 3])
    save_model(tmp_path / "m.onnx", [helper.make_node("Identity", ["x"], ["y"])], {"x": pixels}, {"y": pixels})
    (tmp_path / "in").mkdir()
    for number in range(20):
        Image.fromarray(np.full((4, 4, 3), number, np.uint8)).save(tmp_path / f"in/{number:02d}.png")
        bucket.put(f"in/{number:02d}.png", (tmp_path / f"in/{number:02d}.png").read_bytes())
    (tmp_path / "in/05.png").write_bytes(b"no picture")
    bucket.put("in/05.png", b"no picture")
    text = (
        "version: 1\nmodels: {m: {path: m.onnx}}\njobs:\n  run:\n    model: m\n    input: {path: IN/*.png}\n"
        "    batch: {size: 4}\n    errors: {max_failed: 1}\n"
        "    output: {path: OUT, format: jsonl, images: [y], rows_per_part: 8}\n"
    )
    alone = Path(shutil.copytree(tmp_path, tmp_path.with_name(f"{tmp_path.name}-alone")))
    (alone / "m.yaml").write_text(text.replace("IN", "in").replace("OUT", "out"))
    assert cli("apply", alone / "m.yaml").code == 0
    is_store = where == "store"
    own = text.replace("IN", bucket.url("in") if is_store else "in").replace(
        "OUT", bucket.url("out") if is_store else "out"
    )
    (tmp_path / "m.yaml").write_text(own)
    plan = plan_of(tmp_path / "m.yaml", cli)
    for index in (1, 0):
        ran = cli("apply", plan, "--shard", f"{index}/2")
        assert ran.code == 0, ran.words
    assert cli("finish", plan).code == 0
    found = (path for path in sorted((alone / "out").rglob("*")) if path.suffix in {".png", ".jsonl"})
    wanted = {path.relative_to(alone / "out").as_posix(): path.read_bytes() for path in found}
    assert len([name for name in wanted if name.endswith(".png")]) == 19
    wanted.pop("_failed.jsonl")
    if is_store:
        there = {name: bucket.read(f"out/{name}") for name in bucket.names("out")}
    else:
        files = (path for path in (tmp_path / "out").rglob("*") if path.is_file())
        there = {path.relative_to(tmp_path / "out").as_posix(): path.read_bytes() for path in files}
    assert {name: content for name, content in there.items() if name in wanted or name.endswith(".png")} == wanted
    assert not [name for name in there if "/." in name]
