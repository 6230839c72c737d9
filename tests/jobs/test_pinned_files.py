"""What was checked is what runs: files that are replaced, overwritten, cut or taken away while a plan is carried out."""

import contextlib
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest import MANIFEST as SMALL
from conftest import Cli, read_rows, run_fork
from onnx import TensorProto, helper
from support.changed_files import FILES, OPTION_FILE, Change, applied, changing, judge, prepare, rows_of
from support.effort import effort
from support.forks import start_program
from support.models import Shape, save_model, scale_model

from ortdeploy.cli.main import main
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.facts.data import HashedFile
from ortdeploy.files.content_store import ContentStore
from ortdeploy.files.digest_cache import DigestCache
from ortdeploy.graph.model import read_model
from ortdeploy.jobs.pinned_files import PinnedFiles, held_in
from ortdeploy.ledger.output_lock import shared_use, sole_use


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The deployment of `support.changed_files`, and the rows that it gives where nobody disturbs it."""
    folder = tmp_path_factory.mktemp("clean") / "d"
    prepare(folder, "npy")
    code, said = applied(folder)
    assert code == 0, said
    rows = rows_of(folder)
    assert {job: len(found) for job, found in rows.items()} == {"numbers": 64, "texts": 64}
    shutil.rmtree(folder / "out")
    shutil.rmtree(folder / ".ortdeploy")
    return folder, rows


@pytest.mark.quick("models/m.onnx-True", "labels.txt-False", "fr.onnx_adapter-True")
@pytest.mark.parametrize("kept", [True, False])
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_replaced_before_it_is_opened_is_named_or_nothing_is_changed_by_it(
    clean: tuple[Path, dict[str, Any]], tmp_path: Path, file: str, kept: bool
) -> None:
    folder, wanted = clean
    shutil.copytree(folder, tmp_path / "d")
    change = Change(file, "renamed over", "planned")
    with changing(tmp_path / "d", change, kept=kept) as made:
        ended = applied(tmp_path / "d")
    judge(tmp_path / "d", change, bool(made), ended, wanted)
    assert ended[0] == (0 if file == "labels.txt" else 1), ended  # the plan carries labels
    if ended[0]:
        assert f"{file} is not what it was when the plan was made" in ended[1]


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_what_is_kept_runs_whatever_becomes_of_the_original_before_the_next_run_opens_it(
    clean: tuple[Path, dict[str, Any]], tmp_path: Path, file: str
) -> None:
    folder, wanted = clean
    shutil.copytree(folder, tmp_path / "d")
    assert applied(tmp_path / "d")[0] == 0
    shutil.rmtree(tmp_path / "d/out")
    with changing(tmp_path / "d", Change(file, "renamed over", "planned")) as made:
        code, said = applied(tmp_path / "d")
    assert made
    assert (code, rows_of(tmp_path / "d")) == (0, wanted), said


@pytest.mark.quick("models/m.onnx-overwritten", "models/w.bin-cut", "tokenizer.json-overwritten")
@pytest.mark.parametrize("way", ["overwritten", "cut"])
@pytest.mark.parametrize("file", FILES)
def test_a_file_that_is_changed_in_place_after_the_second_part_changes_no_row(
    clean: tuple[Path, dict[str, Any]], tmp_path: Path, file: str, way: str
) -> None:
    folder, wanted = clean
    shutil.copytree(folder, tmp_path / "d")
    change = Change(file, way, "committed twice")
    with changing(tmp_path / "d", change) as made:
        ended = applied(tmp_path / "d")
    assert made
    judge(tmp_path / "d", change, True, ended, wanted)


@pytest.mark.parametrize("file", ["models/m.onnx", "models/w.bin", "fr.onnx_adapter"])
def test_without_room_for_a_copy_a_change_in_place_fails_the_job_before_the_part_has_its_name(
    clean: tuple[Path, dict[str, Any]], tmp_path: Path, file: str
) -> None:
    folder, wanted = clean
    shutil.copytree(folder, tmp_path / "d")
    change = Change(file, "overwritten", "committed twice")
    with changing(tmp_path / "d", change, kept=False) as made:
        code, said = applied(tmp_path / "d", "--job", "numbers", "--log-format", "json")
    assert made
    judge(tmp_path / "d", change, True, (code, said), wanted)
    assert code == 1
    assert f"{file} was changed while it was in use" in said
    assert len(rows_of(tmp_path / "d")["numbers"]) == 32
    report = json.loads((tmp_path / "d/out/numbers/_run.json").read_text())
    assert report["status"] == "failed"
    assert Path(file).name in report["reason"]
    assert '"files.watched"' in said


@pytest.mark.slow
@pytest.mark.parametrize("way", ["renamed over", "taken away"])
def test_without_room_for_a_copy_a_name_that_moves_on_is_the_next_runs_business(
    clean: tuple[Path, dict[str, Any]], tmp_path: Path, way: str
) -> None:
    folder, wanted = clean
    shutil.copytree(folder, tmp_path / "d")
    with changing(tmp_path / "d", Change("models/w.bin", way, "committed once"), kept=False) as made:
        code, said = applied(tmp_path / "d")
    assert made
    assert (code, rows_of(tmp_path / "d")) == (0, wanted), said


@pytest.mark.quick(0, 1, 2, 5, 6)
@pytest.mark.parametrize(
    ("way", "stage", "words"),
    [
        ("renamed over", "planned", "is not what it was when the plan was made"),
        ("taken away", "planned", "cannot be read"),
        ("renamed over", "opening", "was changed or replaced while it was opened"),
        ("overwritten", "opened", "was changed or replaced while it was opened"),
        ("overwritten", "committed once", "was changed while it was in use"),
        ("cut", "committed twice", "was changed while it was in use"),
        ("renamed over", "committed once", None),
        ("taken away", "committed twice", None),
    ],
)
def test_a_file_that_an_option_names_is_what_the_plan_was_made_with(
    clean: tuple[Path, dict[str, Any]], tmp_path: Path, way: str, stage: str, words: str | None
) -> None:
    folder, wanted = clean
    shutil.copytree(folder, tmp_path / "d")
    change = Change(OPTION_FILE, way, stage)
    with changing(tmp_path / "d", change) as made:
        ended = applied(tmp_path / "d", "--job", "numbers")
    assert made
    code, said = ended
    assert code == (0 if words is None else 1), said
    assert words is None or f"{OPTION_FILE} {words}" in said
    found = rows_of(tmp_path / "d").get("numbers", {})
    assert all(wanted["numbers"][row] == values for row, values in found.items())
    assert len(found) == {"committed once": 16, "committed twice": 32}.get(stage, 0) if words else 64


def test_a_saved_plan_rests_on_files_that_options_name(clean: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, _ = clean
    shutil.copytree(folder, tmp_path / "d")
    with contextlib.redirect_stdout(io.StringIO()):
        assert main(["plan", str(tmp_path / "d/m.yaml"), "--out", str(tmp_path / "d/plan.json")]) == 0
    (tmp_path / "d/other" / OPTION_FILE).rename(tmp_path / "d" / OPTION_FILE)
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main(["apply", str(tmp_path / "d/plan.json")]) == 1
    assert OPTION_FILE in out.getvalue()


def disturbed(folder: Path, then: Callable[[], None], *arguments: str) -> tuple[int, str]:
    """Apply in a process of its own, for a map that is cut ends one by SIGBUS; do something after the first part.

    It cannot come to its end before: nobody reads what it logs, and the pipe holds the lines of few parts.
    """
    import fcntl  # noqa: PLC0415  not on Windows

    command = ["apply", "m.yaml", "--log-format", "json", *arguments]
    with start_program(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        if child.stderr is None:
            raise AssertionError("a pipe was asked for")
        fcntl.fcntl(child.stderr.fileno(), fcntl.F_SETPIPE_SZ, 4096)
        for line in child.stderr:
            if "part.committed" in line:
                then()
                break
        out, err = child.communicate()
    return child.returncode, out + err


@pytest.mark.quick("C.npy")
@pytest.mark.parametrize("kind", ["C.npy", "Fortran.npy", "file.arrow", "stream.arrow"])
def test_an_input_that_is_cut_while_it_is_read_ends_the_job_in_words_with_a_report(tmp_path: Path, kind: str) -> None:
    width = 64
    rows = np.ones((6_400, width), np.float32)
    scale_model(tmp_path / "double.onnx", width=width)
    name = "data.arrow" if kind.endswith("arrow") else "data.npy"
    if name == "data.arrow":
        pa = pytest.importorskip("pyarrow")
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), width)})
        make = pa.ipc.new_file if kind == "file.arrow" else pa.ipc.new_stream
        with make(str(tmp_path / name), table.schema) as writer:
            writer.write_table(table)
    else:
        np.save(tmp_path / name, np.asfortranarray(rows) if kind == "Fortran.npy" else rows)
    text = SMALL.replace("data.npy", name).replace("format: jsonl", "format: jsonl, rows_per_part: 64")
    (tmp_path / "m.yaml").write_text(text)
    code, said = disturbed(tmp_path, lambda: os.truncate(tmp_path / name, 4096))
    assert code == 1, said
    report = json.loads((tmp_path / "outbox/run/_run.json").read_text())
    assert report["status"] == "failed"
    assert name in report["reason"]
    assert len(read_rows(tmp_path / "outbox/run")) == report["rows"]["committed"]


def external_model(folder: Path, factor: float, size: int = 1024) -> None:
    """A model that looks rows of a table up, which is its external data and stays mapped."""
    table = np.full((size, 4), factor, np.float32)
    save_model(
        folder / "double.onnx",
        [helper.make_node("Gather", ["t", "x"], ["y"])],
        {"x": (TensorProto.INT64, ["batch"])},
        {"y": (TensorProto.FLOAT, ["batch", 4])},
        {"t": table},
    )
    model = onnx.load(str(folder / "double.onnx"))
    onnx.save(model, str(folder / "double.onnx"), save_as_external_data=True, location="w.bin", size_threshold=1024)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["overwritten", "cut"])
def test_external_data_that_is_changed_while_a_job_runs_changes_no_row(tmp_path: Path, how: str) -> None:
    (tmp_path / "other").mkdir()
    external_model(tmp_path / "other", 5)
    external_model(tmp_path, 3)
    np.save(tmp_path / "data.npy", np.arange(6_000) % 1024)
    (tmp_path / "m.yaml").write_text(SMALL.replace("format: jsonl", "format: jsonl, rows_per_part: 64"))

    def change() -> None:
        with (tmp_path / "w.bin").open("r+b") as file:
            if how == "cut":
                file.truncate(1)
            else:
                file.write((tmp_path / "other/w.bin").read_bytes())

    code, said = disturbed(tmp_path, change)
    assert code == 0, said
    assert [row["y"] for row in read_rows(tmp_path / "outbox/run")] == [[3.0] * 4] * 6_000


@pytest.fixture
def little_room(tmp_path: Path) -> Iterator[Path]:
    """A file system with room for the model, and not for a copy."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=14m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("this user may not mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)  # noqa: S607  where the system has it


def test_without_room_for_a_copy_external_data_that_is_cut_is_told(little_room: Path) -> None:
    external_model(little_room, 3, size=400_000)
    np.save(little_room / "data.npy", np.arange(20_000) * 19)
    (little_room / "m.yaml").write_text(SMALL.replace("format: jsonl", "format: jsonl, rows_per_part: 64"))
    code, said = disturbed(little_room, lambda: os.truncate(little_room / "w.bin", 1))
    assert code == 1, said
    assert "w.bin" in said
    assert "Traceback" not in said
    assert all(row["y"] == [3.0] * 4 for row in read_rows(little_room / "outbox/run"))
    status = run_fork(["status", "m.yaml", "--format", "json"], cwd=little_room)
    assert status.json["jobs"][0]["status"] in {"failed", "stopped"}


def test_a_file_of_a_folder_that_the_model_names_is_opened_from_there(cli: Cli, tmp_path: Path) -> None:
    """ONNX Runtime looks for external data in that folder, and so does the plan's digest."""
    external_model(tmp_path, 3)
    (tmp_path / "weights").mkdir()
    (tmp_path / "w.bin").rename(tmp_path / "weights/w.bin")
    np.save(tmp_path / "data.npy", np.arange(20))
    option = "session: {config: {session.model_external_initializers_file_folder_path: weights}}"
    (tmp_path / "m.yaml").write_text(SMALL.replace("{path: double.onnx}", "{path: double.onnx, " + option + "}"))
    applied = cli("apply", tmp_path / "m.yaml")
    assert applied.code == 0, applied.out + applied.err
    assert [row["y"] for row in read_rows(tmp_path / "outbox/run")] == [[3.0] * 4] * 20
    (file,) = (tmp_path / ".ortdeploy/store/trees").glob("*/w.bin")
    assert file.read_bytes() == (tmp_path / "weights/w.bin").read_bytes()


def test_the_digest_covers_what_providers_compiled_beside_the_model(tmp_path: Path) -> None:
    node = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="c.bin")
    value: tuple[int, Shape] = (TensorProto.FLOAT, ["batch", 4])
    path = save_model(tmp_path / "m.onnx", [node], {"x": value}, {"y": value})
    (tmp_path / "c.bin").write_bytes(b"one")
    first = read_model(path, "m.onnx")
    assert [file.name for file in first.files] == ["m.onnx", "c.bin"]
    (tmp_path / "c.bin").write_bytes(b"two")
    assert read_model(path, "m.onnx").sha256 != first.sha256
    outside = helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", embed_mode=0, ep_cache_context="../c")
    problem = read_model(save_model(tmp_path / "o.onnx", [outside], {"x": value}, {"y": value}), "o.onnx").problem
    assert problem is not None
    assert "compiled binary ../c lies outside the model's folder" in problem.detail


def test_a_model_that_changes_between_its_graph_and_its_digest_is_told(tmp_path: Path) -> None:
    path, other = scale_model(tmp_path / "m.onnx"), scale_model(tmp_path / "o.onnx", factor=9)

    def digest(_path: Path) -> str:
        other.rename(path)
        return "0" * 64

    problem = read_model(path, "m.onnx", digest).problem
    assert problem is not None
    assert problem.detail == "m.onnx was changed while it was read. Wait until its writer is done."


@pytest.mark.slow
def test_what_no_job_needs_any_more_leaves_the_store_but_never_while_a_run_uses_it(cli: Cli, deployment: Path) -> None:
    files = deployment / ".ortdeploy/store/files"
    assert cli("apply", deployment / "m.yaml").code == 0
    (first,) = files.iterdir()
    scale_model(deployment / "double.onnx", factor=3)
    with shared_use(deployment / ".ortdeploy", "store"):
        assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
        assert len(list(files.iterdir())) == 2
    scale_model(deployment / "double.onnx", factor=4)
    assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
    assert first.name not in {path.name for path in files.iterdir()}
    assert len(list(files.iterdir())) == 1


def test_sole_use_is_given_to_nobody_while_others_use_it(tmp_path: Path) -> None:
    with shared_use(tmp_path, "store"), shared_use(tmp_path, "store"), sole_use(tmp_path, "store") as alone:
        assert not alone
    with sole_use(tmp_path, "store") as alone:
        assert alone


def test_messages_name_files_as_the_plan_does(tmp_path: Path) -> None:
    path = tmp_path / "models/m.onnx"
    path.parent.mkdir()
    path.write_bytes(b"graph")
    store = ContentStore(tmp_path / "state")
    file = HashedFile(name="m.onnx", path=str(path), sha256=store.put(path), size=5)
    files = PinnedFiles(store, tmp_path, DigestCache(None))
    try:
        with pytest.raises(OrtdeployError) as raised, files.opening((file,)) as held:
            raise OrtdeployError(f"{held.folder}/m.onnx: no such node; looked in {held.folder}")
        assert str(raised.value) == f"{path}: no such node; looked in {path.parent}"
    finally:
        files.close()


def test_a_file_whose_rights_change_is_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"graph")
    digest = ContentStore(tmp_path / "state").put(path)
    files = PinnedFiles(None, tmp_path, DigestCache(None))
    try:
        files.hold((HashedFile(name="m.onnx", path=str(path), sha256=digest, size=5),))
        path.chmod(0o600)
        files.check()
        path.write_bytes(b"other")
        with pytest.raises(OrtdeployError, match=r"^m\.onnx was changed while it was in use"):
            files.check()
    finally:
        files.close()


def changed_runs(folder: Path, count: int) -> int:
    """Run `support.changed_files`; return in how many runs a file was changed."""
    tests = Path(__file__).parents[1]
    command = [sys.executable, "-m", "support.changed_files", str(folder), str(count), "11"]
    done = subprocess.run(command, cwd=tests, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return int(done.stdout.splitlines()[-1].split()[0])


@pytest.mark.slow
def test_files_that_are_changed_at_any_stage_are_named_or_change_nothing(tmp_path: Path) -> None:
    runs = effort(12, 300)
    assert changed_runs(tmp_path, runs) > runs // 2


def test_a_session_and_its_reference_open_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are opened at the same time, and the first one puts the file into the store while the second one asks."""
    (tmp_path / "m.onnx").write_bytes(b"model")
    file = HashedFile(name="m.onnx", path=str(tmp_path / "m.onnx"), sha256=hashlib.sha256(b"model").hexdigest(), size=5)
    both = threading.Barrier(2)
    real = ContentStore.find

    def find(store: ContentStore, digest: str) -> Path | None:
        found = real(store, digest)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return found

    monkeypatch.setattr(ContentStore, "find", find)
    with held_in(ContentStore(tmp_path / "state"), tmp_path / "state", tmp_path) as held, ThreadPoolExecutor(2) as pool:

        def open_it(_number: int) -> None:
            with held.opening((file,)):
                pass

        assert list(pool.map(open_it, range(2))) == [None, None]
