"""Inputs and outputs on object stores, through fsspec's store in memory."""

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import MANIFEST, Cli
from onnx import TensorProto, helper
from support.jobs import Killed
from support.models import Shape, save_model, scale_model

from ortdeploy import retries
from ortdeploy.feeds import row_sources
from ortdeploy.files import object_store
from ortdeploy.files.names import MARKER
from ortdeploy.files.object_store import Fetched, Upload, fetched, mirror_of
from ortdeploy.files.urls import is_url
from ortdeploy.ledger.ledger import Ledger
from ortdeploy.sources import file_per_row, prefetch
from ortdeploy.sources.protocol import Wanted
from ortdeploy.sources.raw_row import RawRow
from ortdeploy.sources.rows import Decode, Found, decode_row


def put_rows(system: Any, path: str, first: int, rows: int) -> None:
    lines = "".join(json.dumps({"x": [float(first + row)] * 4}) + "\n" for row in range(rows))
    system.pipe_file(path, lines.encode())


def deployment(folder: Path, path: str, output: str, **more: str) -> Path:
    scale_model(folder / "double.onnx")
    text = (
        MANIFEST.replace("data.npy", f'"{path}"')
        .replace("outbox/run", f'"{output}"')
        .replace("key: [row]", "key: [row, path]")
    )
    text = text.replace("format: jsonl", f"format: jsonl, rows_per_part: {more.get('rows_per_part', '1000')}")
    (folder / "m.yaml").write_text(text + more.get("end", ""))
    return folder / "m.yaml"


def rows_of(system: Any, folder: str) -> list[dict[str, Any]]:
    names = sorted(name for name in system.ls(folder, detail=False) if "/part-" in name)
    return [json.loads(line) for name in names for line in system.cat_file(name).decode().splitlines()]


def test_rows_come_from_a_store_and_go_to_one(tmp_path: Path, cli: Cli, store: Any) -> None:
    for number in range(10):
        put_rows(store, f"/in/{number}.jsonl", number * 7, 7)
    manifest = deployment(tmp_path, "memory://in/*.jsonl", "memory://out/run", rows_per_part="16")
    planned = cli("plan", manifest)
    assert planned.code == 0, planned.out
    assert "output memory://out/run/part-*.jsonl" in planned.out
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err
    assert "in memory://out/run" in done.out
    rows = rows_of(store, "/out/run")
    assert [row["row"] for row in rows] == list(range(70))
    assert [row["y"][0] for row in rows] == [2.0 * row for row in range(70)]
    assert rows[9]["path"] == "memory:///in/1.jsonl", "as the store itself names it"
    report = json.loads(store.cat_file("/out/run/_run.json"))
    assert report["status"] == "done"
    assert report["rows"]["committed"] == 70
    assert "nothing to do" in cli("apply", manifest).out
    assert "memory://out/run" in cli("status", manifest).out


@pytest.mark.slow
def test_a_store_that_grew_is_taken_up_and_a_changed_object_is_named(tmp_path: Path, cli: Cli, store: Any) -> None:
    put_rows(store, "/in/a.jsonl", 0, 5)
    manifest = deployment(tmp_path, "memory://in/*.jsonl", "memory://out/run")
    assert cli("apply", manifest).code == 0
    put_rows(store, "/in/b.jsonl", 5, 5)
    assert cli("apply", manifest).code == 0
    assert [row["row"] for row in rows_of(store, "/out/run")] == list(range(10))
    put_rows(store, "/in/a.jsonl", 100, 5)
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert "memory:///in/a.jsonl" in " ".join((refused.out + refused.err).split())
    assert cli("apply", manifest, "--new-run").code == 0
    assert rows_of(store, "/out/run")[0]["y"][0] == 200.0
    (kept,) = [name for name in store.ls("/out", detail=False) if name != "/out/run"]
    assert rows_of(store, kept)[0]["y"][0] == 0.0, "the old result is kept under another name"


def test_a_place_with_files_of_others_is_refused(tmp_path: Path, cli: Cli, store: Any) -> None:
    put_rows(store, "/in/a.jsonl", 0, 5)
    store.pipe_file("/out/run/part-00000000.jsonl", b"somebody's")
    ended = cli("apply", deployment(tmp_path, "memory://in/a.jsonl", "memory://out/run"))
    assert ended.code == 1
    assert "holds files already" in ended.out
    assert store.cat_file("/out/run/part-00000000.jsonl") == b"somebody's"


@pytest.mark.slow
def test_a_retry_is_uploaded_too(tmp_path: Path, cli: Cli, store: Any) -> None:
    store.pipe_file("/in/a.jsonl", b'{"x": [1, 1, 1, 1]}\n{"x": [2, 2]}   \n{"x": [3, 3, 3, 3]}\n')
    end = "    errors: {max_failed: 1}\n"
    manifest = deployment(tmp_path, "memory://in/a.jsonl", "memory://out/run", end=end)
    assert cli("apply", manifest).code == 0
    assert len(rows_of(store, "/out/run")) == 2
    assert b'"row": 1' in store.cat_file("/out/run/_failed.jsonl")
    state = store.info("/in/a.jsonl")
    store.store["/in/a.jsonl"].seek(0)
    store.store["/in/a.jsonl"].write(b'{"x": [1, 1, 1, 1]}\n{"x": [2,2,2,2]}')
    assert store.info("/in/a.jsonl")["created"] == state["created"]
    retried = cli("retry", manifest, "--job", "run")
    assert retried.code == 0, retried.out + retried.err
    assert [row["row"] for row in rows_of(store, "/out/run")] == [0, 1, 2]
    assert not store.cat_file("/out/run/_failed.jsonl")


def test_arrays_and_other_formats_are_fetched_whole(tmp_path: Path, cli: Cli, store: Any) -> None:
    np.save(tmp_path / "rows.npy", np.arange(80, dtype=np.float32).reshape(20, 4))
    store.pipe_file("/in/rows.npy", (tmp_path / "rows.npy").read_bytes())
    manifest = deployment(tmp_path, "memory://in/rows.npy", "outbox/run")
    assert cli("apply", manifest).code == 0
    assert len((tmp_path / "outbox/run/part-00000000.jsonl").read_text().splitlines()) == 20


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("memory://in/none.jsonl", "No file matches memory://in/none.jsonl"),
        ("nosuch://bucket/x.jsonl", '"nosuch://bucket/x.jsonl" has the scheme nosuch, which is not taken'),
        ("s3://bucket/x.jsonl", 'Install it: pip install "s3fs"'),
    ],
)
@pytest.mark.usefixtures("store")
def test_what_cannot_be_reached_is_said(
    tmp_path: Path, cli: Cli, path: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "s3fs", None)  # as where it is not installed
    registry = pytest.importorskip("fsspec.registry")
    monkeypatch.delitem(registry._registry, "s3", raising=False)  # noqa: SLF001  what it was found as before
    refused = cli("plan", deployment(tmp_path, path, "outbox/run"))
    assert refused.code == 1
    assert words in " ".join((refused.out + refused.err).split())


def test_an_upload_that_fails_ends_the_job_and_the_next_one_goes_on(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_rows(store, "/in/a.jsonl", 0, 64)
    manifest = deployment(tmp_path, "memory://in/a.jsonl", "memory://out/run", rows_per_part="16")
    put, calls = type(store).put_file, []

    def failing(self: Any, local: str, remote: str, **more: Any) -> None:
        calls.append(remote)
        if len([one for one in calls if "/part-" in one]) == 3:
            raise ConnectionError("the network is away")
        put(self, local, remote, **more)

    monkeypatch.setattr(type(store), "put_file", failing)
    failed = cli("apply", manifest)
    assert failed.code == 1
    assert "the network is away" in failed.out
    assert "32 rows committed" in failed.out
    assert "16 more rows are kept" in failed.out
    assert not [name for name in store.ls("/out/run", detail=False) if "begun" in name]
    monkeypatch.undo()
    assert cli("apply", manifest).code == 0
    assert [row["row"] for row in rows_of(store, "/out/run")] == list(range(64))


def test_an_upload_that_fails_for_a_moment_is_repeated(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_wait", lambda _seconds, _stop: None)
    put_rows(store, "/in/a.jsonl", 0, 32)
    end = "    errors: {retries: 1}\n"
    manifest = deployment(tmp_path, "memory://in/a.jsonl", "memory://out/run", rows_per_part="16", end=end)
    put, listed, calls = type(store).put_file, type(store).ls, []

    def listing_late(self: Any, path: str, **more: Any) -> Any:
        calls.append(f"ls {path}")
        if path.endswith("/out/run") and calls.count(f"ls {path}") == 1:
            raise TimeoutError("the network is away")
        return listed(self, path, **more)

    def failing_first(self: Any, local: str, remote: str, **more: Any) -> None:
        calls.append(remote)
        if "/part-" in remote and calls.count(remote) == 1:
            raise ConnectionError("the network is away")
        put(self, local, remote, **more)

    monkeypatch.setattr(type(store), "put_file", failing_first)
    monkeypatch.setattr(type(store), "ls", listing_late)
    done = cli("apply", manifest)
    assert done.code == 0, done.out
    assert [row["row"] for row in rows_of(store, "/out/run")] == list(range(32))
    assert done.err.count("the network is away") == 3


def test_a_part_too_many_on_the_store_is_taken_away_and_nothing_is_written_twice(
    tmp_path: Path, cli: Cli, store: Any
) -> None:
    """A run that was killed between upload and commit leaves a part that its ledger does not know."""
    put_rows(store, "/in/a.jsonl", 0, 64)
    manifest = deployment(tmp_path, "memory://in/a.jsonl", "memory://out/run", rows_per_part="16")
    assert cli("apply", manifest).code == 0
    mirror = tmp_path / mirror_of("memory://out/run")
    before = {path.name: path.read_bytes() for path in mirror.glob("part-*")}
    assert len(before) == 4
    store.pipe_file("/out/run/part-00000004.jsonl", b"one too many")
    put_rows(store, "/in/b.jsonl", 64, 1)
    manifest.write_text(manifest.read_text().replace("in/a.jsonl", "in/*.jsonl"))
    again = cli("apply", manifest)
    assert again.code == 0, again.out
    assert [row["row"] for row in rows_of(store, "/out/run")] == list(range(65))
    assert {name: (mirror / name).read_bytes() for name in before} == before


def test_only_what_is_asked_for_is_fetched_and_old_files_go(store: Any) -> None:
    urls = []
    for number in range(8):
        store.pipe_file(f"/in/{number}.bin", bytes([number]))
        urls.append(f"memory://in/{number}.bin")
    with fetched(urls) as files:
        assert len(files) == 8
        assert isinstance(files, Fetched)
        folder = Path(files[0]).parent
        assert len(list(folder.iterdir())) == 1
        assert [Path(path).read_bytes()[0] for path in files] == list(range(8))
        assert len(list(folder.iterdir())) <= 4
        assert Path(files[2]).read_bytes() == b"\x02", "what was taken away is fetched again"
        assert len(files[2:4]) == 2
    assert not folder.exists()
    with fetched(["/a/b.npy"]) as plain:
        assert plain == ["/a/b.npy"]


def test_files_that_are_read_ahead_are_kept(store: Any) -> None:
    urls = []
    for number in range(12):
        store.pipe_file(f"/in/{number}.bin", bytes([number]))
        urls.append(f"memory://in/{number}.bin")
    with fetched(urls, ahead=8) as files:
        asked_for = iter(files)
        first = [next(asked_for) for _ in range(9)]
        assert [Path(path).read_bytes()[0] for path in first] == list(range(9))


def test_a_fetched_file_that_is_still_read_does_not_spoil_the_end(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str, **_place: int) -> None:
        raise PermissionError(13, "as Windows does while a file is open")

    store.pipe_file("/in/a.bin", b"a")
    with monkeypatch.context() as patch, fetched(["memory://in/a.bin"]) as files:
        folder = Path(files[0]).parent
        patch.setattr(os, "unlink", refuse)
    shutil.rmtree(folder)


def test_pictures_on_a_store_are_there_until_each_of_many_threads_has_read_one(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = 8
    image = pytest.importorskip("PIL.Image")
    for number in range(2 * threads + 1):
        image.new("L", (4, 1), number).save(tmp_path / "picture.png")
        store.pipe_file(f"/in/{number:02}.png", (tmp_path / "picture.png").read_bytes())
    all_are_fetched = threading.Barrier(threads)

    def decode(raw: RawRow, decode: Decode, wanted: Wanted) -> Found:
        if threading.current_thread().name == "ortdeploy-decoder":
            all_are_fetched.wait(60)
        return decode_row(raw, decode, wanted)

    monkeypatch.setattr(file_per_row, "decode_row", decode)
    monkeypatch.setattr(prefetch, "SLOW", 0.0)
    monkeypatch.setattr(row_sources, "usable_cores", lambda: threads)
    manifest = deployment(tmp_path, "memory://in/*.png", "outbox/run")
    manifest.write_text(manifest.read_text().replace("key: [row, path]", "columns: {x: pixels}, key: [row]"))
    size: Shape = ["batch", 1, 4, 1]
    x, y = ({name: (TensorProto.UINT8, size)} for name in "xy")
    save_model(tmp_path / "double.onnx", [helper.make_node("Add", ["x", "x"], ["y"])], x, y)
    done = cli("apply", manifest)
    assert done.code == 0, done.out + done.err
    rows = [json.loads(line) for line in (tmp_path / "outbox/run/part-00000000.jsonl").read_text().splitlines()]
    assert [row["y"][0][0][0] for row in rows] == [2 * number for number in range(2 * threads + 1)]


def test_paths_and_urls_are_told_apart() -> None:
    assert is_url("s3://bucket/key")
    assert not is_url("C:/data/x.npy")
    assert not is_url("folder/with:colon//x")
    assert "/" not in mirror_of("s3://bucket/key/").removeprefix(".ortdeploy/outputs/")


def kill(*_: object, **__: object) -> None:
    raise Killed


@pytest.mark.parametrize("step", ["begin_rewrite", "end_rewrite"])
def test_a_retry_that_was_killed_arrives_with_the_next_apply(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [1, 1, 1, 1]}\n{"x": [2, 2]}\n{"x": [3, 3, 3, 3]}\n')
    manifest = deployment(tmp_path, "a.jsonl", "memory://out/run", end="    errors: {max_failed: 1}\n")
    assert cli("apply", manifest).code == 0
    path.write_text('{"x": [1, 1, 1, 1]}\n{"x": [2, 2, 2, 2]}\n{"x": [3, 3, 3, 3]}\n')
    own = Ledger.begin_rewrite

    def begin_and_die(*arguments: Any) -> None:
        own(*arguments)
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, step, begin_and_die if step == "begin_rewrite" else kill)
        with pytest.raises(Killed):
            cli("retry", manifest, "--job", "run")
    assert b'"row": 1' in store.cat_file("/out/run/_failed.jsonl")
    done = cli("apply", manifest)
    assert (done.code, "nothing to do" in done.words) == (0, True)
    assert [row["row"] for row in rows_of(store, "/out/run")] == [0, 1, 2]
    assert not store.cat_file("/out/run/_failed.jsonl")
    assert json.loads(store.cat_file("/out/run/_run.json"))["rows"]["committed"] == 3


@pytest.mark.slow
def test_rows_that_run_again_arrive_after_a_kill_although_they_take_as_many_bytes(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [1, 1, 1, 1]}\n')
    manifest = deployment(tmp_path, "a.jsonl, on_change: rerun", "memory://out/run")
    manifest.write_text(manifest.read_text().replace('"a.jsonl, on_change: rerun"', "a.jsonl, on_change: rerun"))
    assert cli("apply", manifest).code == 0
    path.write_text('{"x": [3, 3, 3, 3]}\n')
    with monkeypatch.context() as patch:
        patch.setattr(Upload, "replace", kill)
        with pytest.raises(Killed):
            cli("apply", manifest)
    assert [row["y"][0] for row in rows_of(store, "/out/run")] == [2.0]
    assert cli("apply", manifest).code == 0
    assert [row["y"][0] for row in rows_of(store, "/out/run")] == [6.0]


@pytest.mark.slow
def test_a_part_replaces_one_of_as_many_bytes_that_was_uploaded_and_not_committed(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [1, 1, 1, 1]}\n')
    manifest = deployment(tmp_path, "a.jsonl", "memory://out/run")
    manifest.write_text(manifest.read_text().replace("format: jsonl", "on_upgrade: continue, format: jsonl"))
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "commit_part", kill)
        with pytest.raises(Killed):
            cli("apply", manifest)
    assert [row["y"][0] for row in rows_of(store, "/out/run")] == [2.0]
    scale_model(tmp_path / "double.onnx", factor=3.0)
    continued = cli("apply", manifest)
    assert continued.code == 0, continued.words
    assert [row["y"][0] for row in rows_of(store, "/out/run")] == [3.0]


@pytest.mark.slow
def test_objects_whose_rows_were_run_are_not_fetched_again(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan looks at the first one, and a retry also at those of its rows."""
    for number in range(6):
        rows = np.full((2, 4), np.nan if number in {2, 5} else number, np.float32)
        np.save(tmp_path / "rows.npy", rows)
        store.pipe_file(f"/in/{number}.npy", (tmp_path / "rows.npy").read_bytes())
    end = "    errors: {max_failed: 4, on_nan: fail}\n"
    manifest = deployment(tmp_path, "memory://in/*.npy", "outbox/run", end=end)
    assert cli("apply", manifest).code == 0
    asked, fetch = [], object_store.fetch_file

    def noted(address: str, target: Path) -> None:
        asked.append(address.rpartition("/")[2])
        fetch(address, target)

    monkeypatch.setattr(object_store, "fetch_file", noted)
    assert "nothing to do" in cli("apply", manifest).out
    assert asked == ["0.npy"]
    retried = cli("retry", manifest, "--job", "run")
    assert (retried.code, asked) == (0, ["0.npy", "0.npy", "2.npy", "5.npy"]), retried.words


def test_a_bucket_that_is_not_there_is_named_and_not_made(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As s3fs does it: only `makedirs` makes a bucket."""
    np.save(tmp_path / "a.npy", np.ones((3, 4), np.float32))

    def refuse(*_arguments: Any, **_more: Any) -> None:
        raise FileNotFoundError("The specified bucket does not exist")

    for name in ("put_file", "pipe_file"):
        monkeypatch.setattr(type(store), name, refuse)
    made: list[str] = []
    monkeypatch.setattr(type(store), "makedirs", lambda _self, path, **_: made.append(path))
    monkeypatch.setattr("ortdeploy.retries.FIRST_WAIT", 0.0)
    scale_model(tmp_path / "double.onnx")
    refused = cli("apply", deployment(tmp_path, "*.npy", "memory://typo-bucket/out"))
    assert (refused.code, made) == (1, [])
    assert 'there is no bucket "typo-bucket". Correct its name, or make the bucket' in refused.words


@pytest.mark.parametrize("moment", ["claim", "check_owner"], ids=["before it claims", "before it looks"])
def test_of_two_machines_that_begin_one_output_on_a_store_at_once_one_makes_it(
    tmp_path: Path, cli: Cli, store: Any, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Their files that name the ledger are alike but for the run, and both found the place empty."""
    for number in range(3):
        store.pipe_file(f"/in/{number}.jsonl", b'{"x": [%d, 1, 1, 1]}\n' % (1 + number))
    machines = [tmp_path / name for name in ("slower", "quicker")]
    manifests = []
    for factor, folder in zip((5.0, 2.0), machines, strict=True):
        folder.mkdir()
        manifests.append(deployment(folder, "memory://in/*.jsonl", "memory://out/run"))
        scale_model(folder / "double.onnx", factor=factor)
    real, ended = getattr(Upload, moment), list[int]()

    def later(self: Upload, *arguments: Any) -> Any:
        if not ended and (self._folder / MARKER).exists():
            ended.append(0)
            ended[0] = cli("apply", manifests[1]).code
        return real(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(Upload, moment, later)
        slower = cli("apply", manifests[0])
    is_quicker = moment == "claim"
    assert sorted([slower.code, *ended]) == [0, 1]
    assert (slower.code, "is the output of another machine" in slower.words) == (int(is_quicker), is_quicker)
    winner, loser = reversed(manifests) if is_quicker else manifests
    factor = 2.0 if is_quicker else 5.0
    assert sorted(row["y"][0] for row in rows_of(store, "/out/run")) == [factor, 2 * factor, 3 * factor]
    assert cli("verify", winner).code == 0
    again = cli("apply", loser)
    words = "is the output of another machine" if is_quicker else "holds files already"
    assert (again.code, words in again.words) == (1, True), again.words
    assert cli("apply", winner).code == 0


@pytest.mark.parametrize("how", ["gone", "size", "bytes"])
def test_verify_compares_objects_whose_local_copies_are_as_they_were_written(
    tmp_path: Path, cli: Cli, store: Any, how: str
) -> None:
    (tmp_path / "a.jsonl").write_text('{"x": [1, 1, 1, 1]}\n')
    manifest = deployment(tmp_path, "a.jsonl", "memory://out/run")
    assert cli("apply", manifest).code == 0
    sound = cli("verify", manifest)
    assert (sound.code, "local copies of 1 were read, and compared with size and ETag" in sound.words) == (0, True)
    name = "/out/run/part-00000000.jsonl"
    written = store.cat_file(name)
    if how == "gone":
        store.rm_file(name)
    else:
        store.pipe_file(name, b"x" if how == "size" else written.replace(b"2", b"3"))
    damaged = cli("verify", manifest)
    assert damaged.code == 1
    words = {"gone": "is gone", "size": "has 1 bytes instead of", "bytes": "holds other bytes than were written"}[how]
    assert f"memory://out/run/part-00000000.jsonl {words}" in damaged.words
