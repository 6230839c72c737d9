"""One clear diagnostic for everything that a user can get wrong: exit 1, the place, nothing written, no traceback."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from copy import deepcopy
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from conftest import MANIFEST, REPOSITORY, Cli, read_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.effort import effort
from support.models import gather_model, scale_model

from ortdeploy.cli.main import main
from ortdeploy.ledger.cells import PART_COLUMNS, insert_sealed
from ortdeploy.ledger.damage import FILE
from ortdeploy.planning import workflow

Break = Callable[[Path], None]


def lines(*changes: tuple[str, str]) -> Break:
    """Replace parts of the manifest."""

    def change(folder: Path) -> None:
        text = MANIFEST
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        (folder / "m.yaml").write_text(text)

    return change


def model(content: bytes | None) -> Break:
    def change(folder: Path) -> None:
        (folder / "double.onnx").unlink()
        if content is not None:
            (folder / "double.onnx").write_bytes(content)

    return change


def model_folder(folder: Path) -> None:
    (folder / "double.onnx").unlink()
    (folder / "double.onnx").mkdir()


def cut_model(folder: Path) -> None:
    raw = (folder / "double.onnx").read_bytes()
    (folder / "double.onnx").write_bytes(raw[: len(raw) // 2])


def linked_model(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-outside"
    outside.mkdir()
    (folder / "double.onnx").rename(outside / "double.onnx")
    (folder / "double.onnx").symlink_to(outside / "double.onnx")


def linked_to_itself(folder: Path) -> None:
    (folder / "double.onnx").unlink()
    (folder / "double.onnx").symlink_to("double.onnx")


def linked_output(folder: Path) -> None:
    outside = folder.parent / f"{folder.name}-elsewhere"
    outside.mkdir()
    (folder / "outbox").symlink_to(outside)


def foreign_output(folder: Path) -> None:
    (folder / "outbox/run").mkdir(parents=True)
    (folder / "outbox/run/notes.txt").touch()


def output_is_a_file(folder: Path) -> None:
    (folder / "outbox").touch()


def broken_input(folder: Path) -> None:
    (folder / "data.npy").write_bytes(b"\x93NUMPY")


def float64_input(folder: Path) -> None:
    np.save(folder / "data.npy", np.zeros((3, 4)))


def narrow_input(folder: Path) -> None:
    np.save(folder / "data.npy", np.zeros((3, 5), np.float32))


def newer_model(folder: Path) -> None:
    from onnx import TensorProto, helper  # noqa: PLC0415  only here
    from support.models import save_model  # noqa: PLC0415

    node = helper.make_node("Identity", ["x"], ["y"])
    value: tuple[int, list[int | str | None]] = (TensorProto.FLOAT, ["batch", 4])
    save_model(folder / "double.onnx", [node], {"x": value}, {"y": value}, opset=99)


CASES: dict[str, tuple[Break, str, int]] = {
    "missing model": (model(None), "unreadable-model", 4),
    "empty model": (model(b""), "unreadable-model", 4),
    "text model": (model(b"hello"), "unreadable-model", 4),
    "git-lfs pointer": (
        model(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n"),
        "unreadable-model",
        4,
    ),
    "truncated model": (cut_model, "unreadable-model", 4),
    "folder for a model": (model_folder, "unreadable-model", 4),
    "link out of the tree": (linked_model, "unreadable-model", 4),
    "link to itself": (linked_to_itself, "unreadable-model", 4),
    "model name that is too long": (lines(("double.onnx", "x" * 300)), "unreadable-model", 4),
    "input name that is too long": (lines(("data.npy", "x" * 300)), "unmatched-input", 8),
    "newer model": (newer_model, "too-new-model", 4),
    "wrong digest": (lines(("double.onnx}", f"double.onnx, sha256: {'ab' * 32}}}")), "digest-mismatch", 4),
    "path out of the tree": (lines(("double.onnx", "../double.onnx")), "path-outside-tree", 4),
    "job without a model": (lines(("model: double", "model: tripel")), "undefined-model", 7),
    "unknown provider": (lines(("double.onnx}", "double.onnx, providers: [GPU]}")), "unknown-provider", 4),
    "provider that is not here": (
        lines(("double.onnx}", "double.onnx, providers: [CUDA]}")),
        "unavailable-provider",
        4,
    ),
    "glob without files": (lines(("data.npy", "'*.png'")), "unmatched-input", 8),
    "broken input": (broken_input, "unreadable-input", 8),
    "input of another type": (float64_input, "input-type-mismatch", 8),
    "input of another shape": (narrow_input, "input-shape-mismatch", 8),
    "format that cannot be told": (lines(("data.npy", "m.yaml")), "unreadable-input", 8),
    "key that is not there": (lines(("[row]", "[id]")), "missing-column", 8),
    "column that is not there": (lines(("format: jsonl", "columns: [z]")), "unknown-output-column", 10),
    "foreign output": (foreign_output, "finished-output", 10),
    "file in place of the output": (output_is_a_file, "unwritable-output", 10),
    "output name that is too long": (lines(("outbox/run", "x" * 300)), "unwritable-output", 10),
    "output through a link": (linked_output, "unwritable-output", 10),
    "unknown key": (lines(("format:", "fromat:")), "unknown-key", 10),
    "wrong type": (lines(("size: 8", "size: yes")), "wrong-type", 9),
    "whole number with a fraction": (lines(("size: 8", "size: 8.0")), "wrong-type", 9),
    "pipeline without a name": (lines(("model: double\n", "pipeline: ''\n")), "value-not-allowed", 7),
    "tab": (lines(("    batch", "\tbatch")), "yaml-syntax", 9),
    "duplicate key": (lines(("name: demo", "version: 1")), "duplicate-key", 2),
}


@pytest.mark.parametrize("case", CASES)
def test_one_diagnostic_and_nothing_written(cli: Cli, deployment: Path, case: str) -> None:
    change, rule, line = CASES[case]
    change(deployment)
    before = standing(deployment)
    result = cli("apply", deployment / "m.yaml", "--format", "json")
    found = result.json["diagnostics"]
    assert (result.code, [(d["rule"], d["line"]) for d in found]) == (1, [(rule, line)]), found
    assert found[0]["path"] == str(deployment / "m.yaml")
    assert found[0]["detail"].endswith((".", "?"))
    assert standing(deployment) == before
    assert "Traceback" not in result.err


def standing(folder: Path) -> dict[Path, int]:
    """The time of each file, except for what the device says of itself: that its manifest was refused."""
    state = folder / ".ortdeploy"
    said = {state, state / "status", *(state / "status").glob("*.json")}
    return {path: path.lstat().st_mtime_ns for path in sorted(folder.rglob("*")) if path not in said}


@pytest.mark.parametrize("path", ["nothing.yaml", "folder", "m.yaml/x", "x" * 300])
def test_a_manifest_that_is_not_there(cli: Cli, deployment: Path, path: str) -> None:
    (deployment / "folder").mkdir()
    result = cli("validate", deployment / path)
    assert result.code == 1
    assert "error[unreadable-manifest]" in result.out
    assert ":1:1:" in result.out


def test_a_finished_output_whose_input_changed_is_refused_and_named(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    before = read_rows(deployment / "outbox/run")
    np.save(deployment / "data.npy", np.zeros((3, 4), np.float32))
    scale_model(deployment / "double.onnx", factor=5)
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 1
    assert "error[finished-output]" in result.out
    assert "made before these changed: model, input file data.npy" in " ".join(result.out.split())
    assert read_rows(deployment / "outbox/run") == before


def test_a_committed_part_that_is_gone_or_changed_is_noticed(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    part = deployment / "outbox/run/part-00000000.jsonl"
    part.write_text("x")
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 1
    assert "has 1 bytes instead of" in " ".join(result.out.split())
    part.unlink()
    assert "was committed and is gone" in " ".join(cli("apply", deployment / "m.yaml").out.split())


def test_a_flipped_bit_in_a_committed_part_is_not_nothing_to_do(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    part = deployment / "outbox/run/part-00000000.jsonl"
    content = part.read_bytes()
    part.write_bytes(content[:-3] + bytes([content[-3] ^ 1]) + content[-2:])
    for command in (("plan",), ("apply",), ("retry", "--job", "run")):
        result = cli(*command, deployment / "m.yaml")
        assert result.code == 1
        assert "part-00000000.jsonl was committed and holds other bytes" in " ".join(result.out.split())
        assert "Restore it from a copy" in " ".join(result.out.split())
    part.write_bytes(content)
    os.utime(part, (1, 1))
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out


def test_the_plan_says_how_many_rows_a_part_has(cli: Cli, deployment: Path) -> None:
    text = MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 20")
    (deployment / "m.yaml").write_text(text)
    assert "part-*.jsonl, 24 rows a part: " in cli("plan", deployment / "m.yaml").out
    (deployment / "m.yaml").write_text(text.replace("size: 8", "size: auto"))
    assert "at least 32 rows a part: " in cli("plan", deployment / "m.yaml").out


def test_a_ledger_with_paths_of_its_own_renames_nothing(cli: Cli, deployment: Path) -> None:
    """A state.db that came with a checkout: its rewrite names files elsewhere."""
    assert cli("apply", deployment / "m.yaml").code == 0
    precious, other = deployment / "precious", deployment / "other"
    precious.write_text("precious")
    other.write_text("other")
    with closing(sqlite3.connect(deployment / ".ortdeploy" / FILE)) as connection:
        (output,) = connection.execute("SELECT output FROM outputs").fetchone()
        part = list(connection.execute(f"SELECT {', '.join(PART_COLUMNS)} FROM parts").fetchone())  # noqa: S608  ours
        lists = dict.fromkeys(("revisions", "withdrawn", "removed", "spans", "letters", "absorbed"), ())
        file = {"temporary": str(other), "file": str(precious), "bytes": 5}
        entry = {**lists, "part": part, "files": [file], "through": None, "may_be_gone": False}
        insert_sealed(connection, "rewrites", output, {"part": int, "entry": str}, (0, json.dumps(entry)))
        connection.commit()
    for command in (("plan",), ("apply",), ("retry", "--job", "run")):
        result = cli(*command, deployment / "m.yaml")
        assert result.code == 1
        assert "the ledger state.db is damaged (" in " ".join((result.out + result.err).split())
    assert (precious.read_text(), other.read_text()) == ("precious", "other")


def test_a_corrupt_ledger_is_an_error_and_nothing_runs(cli: Cli, deployment: Path) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / ".ortdeploy" / FILE).write_bytes(b"garbage " * 1000)
    for command in ("plan", "apply", "status"):
        result = cli(command, deployment / "m.yaml")
        assert result.code == 1
        assert "state.db is damaged (file is not a database). Restore it" in result.words


@pytest.mark.quick(0, 3, 4, 5)
@pytest.mark.parametrize(
    "damage",
    [
        "outputs SET identity = '{'", "outputs SET identity = 3", "outputs SET statistics = '[1]'", "outputs SET statistics = x'ff'",
        "outputs SET statistics = '{\"state\": \"UEsDBA==\"}'", "parts SET skipped_rows = '7'",
    ],
)  # fmt: skip
def test_a_ledger_that_holds_what_nobody_wrote_is_an_error(cli: Cli, deployment: Path, damage: str) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("size: 8}", "size: 8}\n    errors: {max_failed: 1}"))
    assert cli("apply", deployment / "m.yaml").code == 0
    with closing(sqlite3.connect(deployment / ".ortdeploy" / FILE)) as connection:
        connection.execute("UPDATE outputs SET status = 'failed'")
        connection.execute("DELETE FROM parts WHERE number > 0")
        connection.execute(f"UPDATE {damage}")
        connection.commit()
    before = sorted(path.name for path in (deployment / "outbox/run").iterdir())
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 1
    assert "the ledger state.db is damaged" in " ".join((result.out + result.err).split())
    assert before == sorted(path.name for path in (deployment / "outbox/run").iterdir())


def test_an_image_that_is_none_fails_alone_within_the_budget(cli: Cli, deployment: Path) -> None:
    (deployment / "inbox").mkdir()
    for number in range(5):
        Image.new("L", (4, 1), color=number).save(deployment / f"inbox/{number}.png")
    (deployment / "inbox/2.png").write_bytes(b"not an image")
    text = MANIFEST.replace("data.npy, key: [row]", "inbox, key: [path]").replace(
        "    batch", "    prepare: {x: [{scale: 1}, {flatten: true}]}\n    batch"
    )
    (deployment / "m.yaml").write_text(text)
    refused = cli("apply", deployment / "m.yaml")
    assert refused.code == 1
    assert "(inbox/2.png), read: not an image that can be decoded" in " ".join(refused.out.split())
    assert not (deployment / "outbox").exists()
    (deployment / "m.yaml").write_text(text + "    errors: {max_failed: 20%}\n")
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 0, result.out
    assert [row["path"] for row in read_rows(deployment / "outbox/run")] == [f"inbox/{n}.png" for n in (0, 1, 3, 4)]
    (entry,) = map(json.loads, (deployment / "outbox/run/_failed.jsonl").read_text().splitlines())
    assert (entry["source"], entry["stage"], entry["code"]) == ("inbox/2.png", "read", "not-an-image")


@pytest.mark.parametrize(("computed", "stage"), [(True, "run"), (False, "contract")])
def test_an_index_outside_of_its_table_fails_alone(cli: Cli, deployment: Path, computed: bool, stage: str) -> None:
    """A computed index is refused by ONNX Runtime's CPU provider; any other one before native code sees it."""
    gather_model(deployment / "double.onnx", computed=computed)
    (deployment / "data.csv").write_text("id,index\na,1\nb,99\nc,3\nd,-1\ne,x\n")
    text = MANIFEST.replace("data.npy, key: [row]", "data.csv, key: [id]") + "    errors: {max_failed: 2}\n"
    (deployment / "m.yaml").write_text(text)
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 0, result.out
    assert [(row["id"], row["y"]) for row in read_rows(deployment / "outbox/run")] == [
        ("a", [2.0, 3.0]), ("c", [6.0, 7.0]), ("d", [18.0, 19.0]),
    ]  # fmt: skip
    entries = list(map(json.loads, (deployment / "outbox/run/_failed.jsonl").read_text().splitlines()))
    assert [(entry["row"], entry["stage"]) for entry in entries] == [(1, stage), (4, "read")]
    assert computed or entries[0]["message"] == "input index must lie in -10 to 9 and has 99 to 99"


def test_a_place_that_cannot_be_written_is_refused(cli: Cli, deployment: Path) -> None:
    text = MANIFEST.replace("outbox/run", "/proc/ortdeploy/out")
    (deployment / "m.yaml").write_text(text)
    result = cli("apply", deployment / "m.yaml", "--allow-root", "/proc")
    assert result.code == 1
    assert "Traceback" not in result.err
    assert "/proc" in result.out + result.err


def test_a_read_only_place_is_refused_by_plan(cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root may write everywhere, so the system's answer stands in for a folder that this user may not write."""
    monkeypatch.setattr("ortdeploy.planning.probing.data_places.os.access", lambda _path, _mode: False)
    result = cli("plan", deployment / "m.yaml")
    assert result.code == 1
    assert "error[unwritable-output]" in result.out
    assert "read-only" in result.out


def test_status_counts_the_rows_that_failed_in_a_part_that_was_given_up(cli: Cli, deployment: Path) -> None:
    lines = [f"{row},1,1,1" for row in range(200)]
    lines[100:102] = ["bad,1,1,1", "1,bad,1,1"]
    (deployment / "data.csv").write_text("a,b,c,d\n" + "\n".join(lines) + "\n")
    manifest = deployment / "m.yaml"
    text = MANIFEST.replace("data.npy", "data.csv, columns: {x: [a, b, c, d]}")
    manifest.write_text(text.replace("format: jsonl", "format: jsonl, rows_per_part: 64"))
    assert cli("apply", manifest).code == 1
    noted = (deployment / "outbox/run/_failed.jsonl").read_text().splitlines()
    (shown,) = cli("status", manifest, "--format", "json").json["jobs"]
    assert (shown["committed"], shown["failed"], len(noted)) == (64, 2, 2)
    assert cli("status", manifest).out.splitlines()[1].split()[2:5] == ["64", "2", "0"]
    lines[100:102] = ["1,1,1,1", "1,1,1,1"]
    (deployment / "data.csv").write_text("a,b,c,d\n" + "\n".join(lines) + "\n")
    assert cli("apply", manifest, "--new-run").code == 0
    assert cli("status", manifest, "--format", "json").json["jobs"][0]["failed"] == 0


def test_finished_work_in_a_read_only_place_is_nothing_to_do_until_more_comes(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = deployment / "m.yaml"
    manifest.write_text(MANIFEST.replace("data.npy", '"*.npy"'))
    assert cli("apply", manifest).code == 0
    monkeypatch.setattr("ortdeploy.planning.probing.data_places.os.access", lambda _path, mode: not mode & os.W_OK)
    again = cli("apply", manifest)
    assert (again.code, "nothing to do" in again.out) == (0, True)
    np.save(deployment / "more.npy", np.zeros((4, 4), np.float32))
    refused = cli("apply", manifest)
    assert refused.code == 1
    assert "error[unwritable-output]" in refused.out


def test_a_full_disk_is_an_error_and_loses_nothing(cli: Cli, deployment: Path) -> None:
    """A limit on file size stands in for a full disk: the write fails in the middle of a part."""
    np.save(deployment / "data.npy", np.zeros((8000, 4), np.float32))
    (deployment / "m.yaml").write_text(MANIFEST.replace("format: jsonl", "format: jsonl, rows_per_part: 4000"))
    import resource  # noqa: PLC0415  not on Windows

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (140_000, before[1]))  # Python ignores the signal that comes with it
    try:
        done = cli("apply", deployment / "m.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.code == 1, done.err
    assert "File too large" in done.out
    assert "Traceback" not in done.err
    assert not list((deployment / "outbox/run").glob(".*partial"))
    assert len(read_rows(deployment / "outbox/run")) in {0, 4000}
    assert cli("apply", deployment / "m.yaml").code == 0
    assert len(read_rows(deployment / "outbox/run")) == 8000


def test_an_input_that_vanishes_after_the_plan_is_an_error(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = workflow.plan_manifests

    def plan_then_lose(*arguments: object, **options: object) -> object:
        planned = real(*arguments, **options)  # type: ignore[arg-type]  # handed on as it came
        (deployment / "data.npy").unlink(missing_ok=True)
        return planned

    monkeypatch.setattr("ortdeploy.cli.plans.plan_manifests", plan_then_lose)
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 1
    assert "data.npy cannot be read: No such file" in result.out


def test_a_ledger_of_a_later_version_is_an_error(cli: Cli, deployment: Path) -> None:
    state = deployment / ".ortdeploy"
    state.mkdir()
    connection = sqlite3.connect(state / FILE)
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 1
    assert "format version 99" in result.words


changes = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=effort(10, 150),
    deadline=None,
)
"""Settings of tests that change a good manifest."""

WORDS = st.sampled_from(
    ["version", "models", "jobs", "path", "double.onnx", "data.npy", "model", "double", "input", "output", "batch", "size", "1", "8",
     "none", "null", "yes", "providers", "CPU", "CUDA", "prepare", "x", "y", "scale", "resize", "postprocess", "argmax", "as", "format",
     "jsonl", "columns", "key", "row", "errors", "max_failed", "50%", "on_nan", "adapters", "profiles", "session", "config", "&a", "*a",
     "<<", "-1", "1e999", "../..", "/etc/passwd", "**", "\ufeff", "\x00", "ü", "'", '"', "{", "}", "[", "]", ":", ",", "\n", "  ", "- ", "\t"]
)  # fmt: skip


@changes
@given(st.data())
def test_arbitrary_changes_to_a_good_manifest_never_end_in_a_traceback(
    deployment: Path, capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    text = MANIFEST
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        end = min(len(text), begin + data.draw(st.integers(0, 12)))
        text = text[:begin] + data.draw(WORDS | st.text(max_size=4)) + text[end:]
    (deployment / "m.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    check_never_a_traceback(deployment, capsys)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=effort(20, 80), deadline=None)
@given(st.binary(max_size=200) | st.lists(WORDS, max_size=40).map(lambda words: " ".join(words).encode()))
def test_arbitrary_text_never_ends_in_a_traceback(
    deployment: Path, capsys: pytest.CaptureFixture[str], raw: bytes
) -> None:
    (deployment / "m.yaml").write_bytes(raw)
    check_never_a_traceback(deployment, capsys)


KEYS = st.sampled_from(["version", "name", "models", "jobs", "path", "model", "input", "output", "batch", "size", "key", "prepare", "x", "errors", "max_failed", "format", "columns", "session", "providers", "postprocess", "double", "run"])  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(allow_nan=False) | st.text(max_size=5) | st.sampled_from(["data.npy", "double.onnx", "double", "CPU", "y"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@changes
@given(st.data())
def test_arbitrary_values_at_any_place_never_end_in_a_traceback(
    deployment: Path, capsys: pytest.CaptureFixture[str], data: st.DataObject
) -> None:
    from ortdeploy.manifest.document import parse_document  # noqa: PLC0415  only here

    document, _ = parse_document(MANIFEST.encode(), "m.yaml")
    assert document is not None
    manifest = json.loads(json.dumps(document.data))
    for place in data.draw(st.lists(st.sampled_from(sorted(document.spans, key=str)), min_size=1, max_size=3)):
        node = manifest
        for key in place[:-1]:
            node = node[key] if isinstance(node, dict) and key in node else {}
        if place and isinstance(node, dict):
            node[place[-1]] = data.draw(VALUES)
    (deployment / "m.yaml").write_text(json.dumps(manifest, indent=1))
    check_never_a_traceback(deployment, capsys)


def test_a_name_that_is_too_long_is_refused_beside_what_was_run(deployment: Path, cli: Cli) -> None:
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "m.yaml").write_text(MANIFEST.replace("outbox/run", "x" * 300))
    assert "cannot be a folder: File name too long." in cli("plan", deployment / "m.yaml").out


EXAMPLES = ("digits", "pages", "painter", "views")
ODD = st.sampled_from([-1, 2**70, 5.0, 1e308, "", " ", "$x", "../x", "x" * 3000, "none", "auto", "512MiB", "50%", "CPU", [None], {"1": 2}, ["CUDA", "CPU"]])  # fmt: skip


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "deployments"
    shutil.copytree(REPOSITORY / "deployments", folder, ignore=shutil.ignore_patterns("outbox", ".ortdeploy"))
    return folder


def places_of(node: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every place below a node."""
    items = list(node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ())
    return [place for key, value in items for place in ((*at, key), *places_of(value, (*at, key)))]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    max_examples=effort(6, 250),
    deadline=None,
)
@given(st.sampled_from(EXAMPLES), st.data())
def test_a_changed_example_is_run_or_refused_in_words(
    examples: Path, capsys: pytest.CaptureFixture[str], name: str, data: st.DataObject
) -> None:
    manifest = yaml.safe_load((examples / f"{name}.yaml").read_text())
    places = places_of(manifest)
    place = data.draw(st.sampled_from(places))
    node = reduce(getitem, place[:-1], manifest)
    if data.draw(st.booleans()):
        node[place[-1]] = data.draw(ODD | VALUES)
    elif data.draw(st.booleans()):
        del node[place[-1]]
    else:
        node[place[-1]] = deepcopy(reduce(getitem, data.draw(st.sampled_from(places)), manifest))
    (examples / "m.yaml").write_text(json.dumps(manifest, indent=1))
    check_never_a_traceback(examples, capsys)


def check_never_a_traceback(deployment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("validate", "plan"):
        code = main([command, str(deployment / "m.yaml"), "--format", "json"])
        captured = capsys.readouterr()
        assert code in {0, 1}, captured.err
        found = json.loads(captured.out)["diagnostics"]
        assert all(d["line"] >= 1 and d["column"] >= 1 and d["path"] for d in found)
        assert code == int(any(d["severity"] == "error" for d in found)), (code, found)


@pytest.mark.parametrize(
    ("output", "state"),
    [(".ortdeploy", None), (".ortdeploy/results", None), ("out", "out/state"), ("out", "out"), ("a/../out/x", "out")],
)
def test_an_output_is_kept_apart_from_the_state(cli: Cli, deployment: Path, output: str, state: str | None) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("outbox/run", output))
    where = ["--state-dir", deployment / state] if state else []
    planned = cli("plan", *where, deployment / "m.yaml")
    assert planned.code == 1
    assert "error[unwritable-output]" in planned.out
    assert "the state directory" in planned.out


def test_an_output_beside_the_state_is_fine(cli: Cli, deployment: Path) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("outbox/run", ".ortdeploy-results"))
    assert cli("plan", "--state-dir", deployment / "outbox", deployment / "m.yaml").code == 0


def test_a_state_directory_that_is_a_loop_of_links_is_told(cli: Cli, deployment: Path) -> None:
    (deployment / "loop").symlink_to("loop")
    applied = cli("apply", "--state-dir", deployment / "loop", deployment / "m.yaml")
    assert applied.code == 1
    assert "Too many levels of symbolic links" in " ".join(applied.out.split())


NOT_UNICODE = "caf\udce9"
"""The name caf and the byte E9, as Python has it."""


def test_a_manifest_and_its_inputs_may_have_names_that_are_not_utf_8(cli: Cli, deployment: Path) -> None:
    data, path = deployment / f"{NOT_UNICODE}.npy", deployment / f"{NOT_UNICODE}.yaml"
    (deployment / "data.npy").rename(data)
    text = MANIFEST.replace("data.npy", "'*.npy'").replace("outbox/run", "out")
    path.write_text(f"{text}    report: [html, prometheus]\n    errors: {{on_nan: fail}}\n", encoding="utf-8")
    (deployment / "m.yaml").unlink()
    values = np.load(data)
    values[3] = np.nan
    np.save(data, values)
    failed = cli("apply", path)
    assert failed.code == 1, failed.err[-2500:]
    np.save(data, np.nan_to_num(values))
    assert cli("apply", path).code == 0
    assert cli("status", path).code == 0
    assert len(read_rows(deployment / "out")) == 20
    assert "caf" in (deployment / "out/_run.html").read_text(encoding="utf-8")
    (deployment / "double.onnx").unlink()
    refused = cli("apply", path)
    assert refused.code == 1
    assert "unreadable-model" in refused.words


@pytest.mark.parametrize("command", ["apply", "plan", "status", "validate"])
def test_a_manifest_that_is_not_there_may_have_a_name_that_is_not_utf_8(cli: Cli, command: str) -> None:
    refused = cli(command, f"{NOT_UNICODE}.yaml")
    assert refused.code == 1
    assert "There is no file" in refused.words


def test_an_output_that_the_ledger_cannot_name_is_refused(cli: Cli, deployment: Path, tmp_path: Path) -> None:
    folder = deployment / NOT_UNICODE
    folder.mkdir()
    shutil.copy(deployment / "data.npy", folder)
    model_path = str(deployment / "double.onnx")
    (folder / "m.yaml").write_text(MANIFEST.replace("double.onnx", model_path), encoding="utf-8")
    allowed = ("--allow-root", deployment)
    refused = cli("apply", folder / "m.yaml", *allowed, "--state-dir", tmp_path / "state")
    assert refused.code == 1
    assert "the ledger notes only outputs whose path is UTF-8" in " ".join((refused.out + refused.err).split())
    assert cli("apply", folder / "m.yaml", *allowed).code == 0
