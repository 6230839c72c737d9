"""A job whose inputs arrive, change and go: what each apply runs."""

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Cli, read_rows
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image
from support.effort import effort
from support.models import scale_model

from ortdeploy.cli.main import main
from ortdeploy.deployment.resolved import ResolvedJob, json_digest
from ortdeploy.events import log
from ortdeploy.jobs import executor, input_contents
from ortdeploy.jobs.pause_watch import PauseWatch, Senses
from ortdeploy.process.sensors import Temperature

MANIFEST = """
version: 1
name: recurring
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, key: [path], ARRIVALS}
    output: {path: out, format: jsonl}
"""

Write = Callable[[str], None]


@pytest.fixture
def arrivals(deployment: Path) -> Write:
    """Write the manifest with what its input says of arrivals."""
    (deployment / "inbox").mkdir()

    def write(text: str) -> None:
        (deployment / "m.yaml").write_text(MANIFEST.replace("ARRIVALS", text), encoding="utf-8")

    return write


def put(folder: Path, name: str, value: float, rows: int = 2) -> None:
    """Write a file of equal rows, of a time that no other file has."""
    put.clock += 1_000_000_000  # type: ignore[attr-defined]
    path = folder / "inbox" / f"{name}.npy"
    np.save(path, np.full((rows, 4), value, dtype=np.float32))
    os.utime(path, ns=(put.clock, put.clock))  # type: ignore[attr-defined]


put.clock = 1_700_000_000_000_000_000  # type: ignore[attr-defined]


def values(folder: Path) -> list[tuple[str, float]]:
    """The path and value of each committed row, in order."""
    found: list[dict[str, Any]] = read_rows(folder / "out")
    return [(Path(one["path"]).stem, one["y"][0] / 2) for one in found]


@pytest.mark.slow
def test_a_manifest_may_lie_in_a_folder_with_signs_of_patterns(
    cli: Cli, deployment: Path, arrivals: Write, tmp_path_factory: pytest.TempPathFactory
) -> None:
    arrivals("on_empty: done")
    put(deployment, "a", 1)
    there = deployment.rename(tmp_path_factory.mktemp("there") / "data [1]")
    assert cli("apply", there).code == 0
    assert "nothing to do" in cli("apply", there).out
    put(there, "b", 2)
    assert cli("apply", there).code == 0
    assert [row["path"] for row in read_rows(there / "out")] == ["inbox/a.npy"] * 2 + ["inbox/b.npy"] * 2


def test_an_empty_inbox_is_nothing_to_do_where_the_manifest_says_so(
    cli: Cli, deployment: Path, arrivals: Write
) -> None:
    arrivals("on_empty: fail")
    refused = cli("plan", deployment / "m.yaml").words
    assert "unmatched-input" in refused
    assert "If there may be no files yet, write on_empty: done under input:." in refused
    arrivals("on_empty: done")
    for command in ("plan", "apply", "retry"):
        job = ("--job", "run") if command == "retry" else ()
        result = cli(command, deployment / "m.yaml", *job)
        assert result.code == 0, result
        assert "no file matches inbox/*.npy" in result.words
        assert "0 finished already, 1 waiting for input." in result.words
    assert not (deployment / "out").exists()
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "inbox/a.npy").unlink()
    assert "nothing to do, no file matches" in cli("apply", deployment / "m.yaml").words
    assert values(deployment) == [("a", 1), ("a", 1)]


@pytest.mark.slow
def test_a_changed_file_is_refused_or_comes_after_all_others(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("on_change: refuse")
    put(deployment, "a", 1)
    put(deployment, "b", 2)
    assert cli("apply", deployment / "m.yaml").code == 0
    put(deployment, "a", 3)
    put(deployment, "c", 4)
    refused = cli("apply", deployment / "m.yaml")
    assert refused.code == 1
    assert (
        "input file inbox/a.npy. Under input:, on_change: rerun runs the rows of changed files again, and on_change: "
        "append takes changed content for a new file. Apply with --new-run to start over"
    ) in refused.words
    arrivals("on_change: append")
    assert cli("apply", deployment / "m.yaml").code == 0
    assert values(deployment) == [
        (name, value) for name, value in [("a", 1), ("b", 2), ("a", 3), ("c", 4)] for _ in "xx"
    ]
    assert "nothing to do" in cli("apply", deployment / "m.yaml").words


def test_files_that_were_moved_within_an_input_are_told(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("on_empty: done")
    manifest = deployment / "m.yaml"
    manifest.write_text(manifest.read_text().replace("inbox/*.npy", "inbox/**/*.npy"))
    (deployment / "inbox/done").mkdir()
    for number, name in enumerate("abc"):
        put(deployment, name, number)
        assert "moved-input" not in cli("apply", manifest).words
    for name in "ab":
        (deployment / f"inbox/{name}.npy").rename(deployment / f"inbox/done/{name}.npy")
    moved = cli("apply", manifest)
    assert moved.code == 0
    assert (
        "inbox/done/a.npy has the size and time of inbox/a.npy, which is gone and whose rows were run; so it is with 2 "
        "files. Rows of files that were moved run again"
    ) in moved.words
    assert "moved-input" not in cli("apply", manifest).words


@pytest.mark.slow
def test_a_file_that_was_seen_gone_comes_back_as_a_new_one(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("on_empty: done")
    put(deployment, "IMG_0001", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "inbox/IMG_0001.npy").unlink()
    assert cli("apply", deployment / "m.yaml").code == 0
    put(deployment, "IMG_0001", 2)
    assert cli("apply", deployment / "m.yaml").code == 0
    assert values(deployment) == [("IMG_0001", 1)] * 2 + [("IMG_0001", 2)] * 2
    put(deployment, "IMG_0001", 3)
    assert cli("apply", deployment / "m.yaml").code == 1  # it did not go meanwhile


@pytest.mark.parametrize(("policy", "runs"), [("on_change: append", ["a", "b", "a"]), ("on_change: rerun", ["a", "b"])])
def test_new_files_alone_do_not_start_a_job_over(
    cli: Cli, deployment: Path, arrivals: Write, policy: str, runs: list[str]
) -> None:
    arrivals(policy)
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
    put(deployment, "b", 2)
    planned = cli("plan", deployment / "m.yaml", "--new-run").words
    assert "go on with job run after 2 rows" in planned
    assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
    put(deployment, "a", 3)
    assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
    assert [name for name, _ in values(deployment)][::2] == runs
    assert [path.name for path in deployment.glob("out*")] == ["out"]
    arrivals("on_change: refuse")
    put(deployment, "a", 4)
    assert cli("apply", deployment / "m.yaml").code == 1
    assert cli("apply", deployment / "m.yaml", "--new-run").code == 0
    assert [name for name, _ in values(deployment)] == ["a", "a", "b", "b"]
    assert len(list(deployment.glob("out*"))) == 2


@pytest.mark.slow
def test_a_file_that_comes_back_as_it_was_is_not_run_again(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("on_empty: done")
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "inbox/a.npy").rename(deployment / "away.npy")
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "away.npy").rename(deployment / "inbox/a.npy")
    assert "out is finished" in cli("apply", deployment / "m.yaml").words
    assert values(deployment) == [("a", 1)] * 2


def test_a_removed_file_is_refused_where_the_manifest_says_so(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("on_remove: refuse")
    put(deployment, "a", 1)
    put(deployment, "b", 2)
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "inbox/a.npy").unlink()
    refused = cli("plan", deployment / "m.yaml")
    assert refused.code == 1
    assert "input file inbox/a.npy. Apply with --new-run" in refused.words


@pytest.mark.slow
@pytest.mark.parametrize("made_with", ["keep", "fail"])
def test_what_becomes_of_nan_may_change_between_runs(
    cli: Cli, deployment: Path, arrivals: Write, monkeypatch: pytest.MonkeyPatch, made_with: str
) -> None:
    """Earlier versions noted on_nan of an output, which is then no other one."""
    arrivals("on_change: append")
    put(deployment, "a", 1)
    with monkeypatch.context() as patched:
        noted = property(lambda job: json_digest(["jsonl", job.columns, job.spec.input.key, 100_000, made_with]))
        patched.setattr(ResolvedJob, "_output_identity", noted)
        assert cli("apply", deployment / "m.yaml").code == 0
    put(deployment, "b", np.nan)
    changed = (deployment / "m.yaml").read_text() + "    errors: {on_nan: skip}\n"
    (deployment / "m.yaml").write_text(changed)
    applied = cli("apply", deployment / "m.yaml")
    assert applied.code == 0, applied.out
    assert "2 rows committed, 0 failed, 2 skipped" in applied.out
    assert "nothing to do" in cli("apply", deployment / "m.yaml").out


def test_files_that_are_still_written_wait(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("stable_for: 1h")
    put(deployment, "a", 1)  # its modification time is old, the time of its inode is now
    waiting = cli("apply", deployment / "m.yaml")
    assert waiting.code == 0
    assert "nothing to do, 1 file has changed less than 3600 s ago" in waiting.words
    arrivals("stable_for: 0.001s")
    assert cli("apply", deployment / "m.yaml").code == 0
    assert values(deployment) == [("a", 1)] * 2


@pytest.mark.slow
def test_a_file_of_the_future_is_taken_when_two_looks_find_it_the_same(
    cli: Cli, deployment: Path, arrivals: Write
) -> None:
    arrivals("stable_for: 1ms")
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    future = time.time_ns() + 10**15
    put(deployment, "b", 2)
    os.utime(deployment / "inbox/b.npy", ns=(future, future))
    assert "out is finished" in cli("apply", deployment / "m.yaml").words
    assert cli("apply", deployment / "m.yaml").code == 0
    assert values(deployment) == [("a", 1)] * 2 + [("b", 2)] * 2


@pytest.mark.quick("on_change: refuse", "on_change: rerun")
@pytest.mark.parametrize("policy", ["on_change: refuse", "on_change: append", "on_change: rerun"])
def test_a_file_that_is_copied_again_runs_once(cli: Cli, deployment: Path, arrivals: Write, policy: str) -> None:
    arrivals(f"{policy}, on_empty: done")
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    (deployment / "inbox/a.npy").unlink()
    assert cli("apply", deployment / "m.yaml").code == 0
    put(deployment, "a", 1)
    put(deployment, "b", 2)
    assert cli("apply", deployment / "m.yaml").code == 0
    assert values(deployment) == [("a", 1)] * 2 + [("b", 2)] * 2
    put(deployment, "a", 3)  # of the same size: it was gone, so it is new
    assert cli("apply", deployment / "m.yaml").code == 0
    assert values(deployment) == [("a", 1)] * 2 + [("b", 2)] * 2 + [("a", 3)] * 2


def test_a_picture_is_known_by_what_was_read_when_its_row_ran(
    cli: Cli, deployment: Path, arrivals: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals("on_change: append")
    text = (deployment / "m.yaml").read_text(encoding="utf-8").replace("*.npy", "*.png")
    steps = "    prepare: {x: [{scale: 1}, {flatten: true}]}\n"
    (deployment / "m.yaml").write_text(text + steps, encoding="utf-8")
    for number in range(3):
        Image.new("L", (4, 1), color=number).save(deployment / f"inbox/{number}.png")
    monkeypatch.setattr(input_contents, "content_digest", lambda *_state: pytest.fail("a picture was read again"))
    assert cli("apply", deployment / "m.yaml").code == 0
    os.utime(deployment / "inbox/1.png", ns=(1, 1))
    assert "out is finished" in cli("apply", deployment / "m.yaml").words
    assert len(read_rows(deployment / "out")) == 3


@pytest.mark.slow
def test_a_repaired_file_that_is_only_touched_is_as_it_was(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("")
    path = deployment / "m.yaml"
    text = path.read_text(encoding="utf-8").replace(".npy", ".jsonl")
    path.write_text(text + "    errors: {max_failed: 1}\n", encoding="utf-8")
    put_lines(deployment, "a", 1)
    with (deployment / "inbox/a.jsonl").open("a", encoding="utf-8") as file:
        file.write('{"x": "broken"}\n')
    assert cli("apply", path, "-q").code == 0
    put_lines(deployment, "a", 1, lines=3)
    assert cli("retry", path, "--job", "run", "-q").code == 0
    os.utime(deployment / "inbox/a.jsonl", ns=(1, 1))
    assert "out is finished" in cli("apply", path).words
    assert values(deployment) == [("a", 1)] * 3


def test_a_digest_that_is_damaged_is_an_error(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("on_change: append")
    put(deployment, "a", 1)
    assert cli("apply", deployment / "m.yaml").code == 0
    with closing(sqlite3.connect(deployment / ".ortdeploy/state.db")) as db:
        db.execute("UPDATE contents SET entries = x'00'")
        db.commit()
    put(deployment, "a", 1)
    result = cli("apply", deployment / "m.yaml")
    assert result.code == 1
    assert "the digest of an input file is not what was written" in result.words


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.sampled_from("abc"), st.integers(1, 9)),
        st.tuples(st.just("take"), st.sampled_from("abc"), st.just(0)),
        st.tuples(st.just("apply"), st.just(""), st.just(0)),
    ),
    max_size=14,
)


@settings(max_examples=effort(2, 100), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(EVENTS)
def test_every_content_that_an_apply_finds_is_committed_once(
    cli: Cli, deployment: Path, events: list[tuple[str, str, int]]
) -> None:
    folder = deployment / "world"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "inbox").mkdir(parents=True)
    shutil.copy(deployment / "double.onnx", folder)
    (folder / "m.yaml").write_text(MANIFEST.replace("ARRIVALS", "on_empty: done, on_change: append"))
    here: dict[str, tuple[str, float]] = {}
    expected: list[tuple[str, float]] = []
    taken: dict[str, tuple[str, float]] = {}
    for what, name, value in [*events, ("apply", "", 0)]:
        path = folder / "inbox" / f"{name}.npy"
        if what == "put":
            put(folder, name, value)
            here[name] = (name, value)
        elif what == "take":
            path.unlink(missing_ok=True)
            here.pop(name, None)
        else:
            result = cli("apply", folder / "m.yaml")
            assert result.code == 0, result
            expected += [here[one] for one in sorted(here) if taken.get(one) != here[one] for _ in "xx"]
            taken.update(here)
            found = values(folder) if (folder / "out").exists() else []
            assert found == expected
    report = folder / "out/_run.json"
    assert not expected or json.loads(report.read_text())["rows"]["committed"] == len(expected)


def with_timing(deployment: Path, text: str) -> Path:
    """The deployment with batches of one row and what its job says of time."""
    manifest = deployment / "m.yaml"
    shown = (deployment / "first.yaml").read_text() if (deployment / "first.yaml").exists() else manifest.read_text()
    (deployment / "first.yaml").write_text(shown)
    manifest.write_text(shown.replace("batch: {size: 8}", "batch: {size: 1}") + f"    {text}\n")
    return manifest


@pytest.mark.slow
def test_a_job_outside_of_its_hours_pauses_before_a_session_is_opened(cli: Cli, deployment: Path) -> None:
    now = time.localtime()
    hour = f"{(now.tm_hour + 2) % 24:02}"
    manifest = with_timing(deployment, f'hours: {{from: "{hour}:00", to: "{hour}:30"}}')
    assert f"runs from {hour}:00 to {hour}:30" in cli("plan", manifest).words
    paused = cli("apply", manifest)
    assert paused.code == 5, paused
    assert f"job run: paused: 0 rows committed, 0 failed, 0 skipped. it runs from {hour}:00" in paused.words
    assert "session.opened" not in paused.err
    assert "paused" in cli("status", manifest).out
    assert cli("apply", with_timing(deployment, "limits: {}")).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("has_run", [False, True])
def test_heat_before_a_session_is_opened_ends_with_a_margin(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch, has_run: bool
) -> None:
    manifest = with_timing(deployment, "pause: {above: {temperature: 80C}}")
    manifest.write_text(manifest.read_text().replace("path: data.npy", "path: '*.npy'"))
    degrees = [20.0]
    senses = Senses(temperature=lambda: Temperature(degrees[0], "cpu"))
    monkeypatch.setattr(executor, "PauseWatch", partial(PauseWatch, senses=senses))
    if has_run:
        assert cli("apply", manifest).code == 0
        np.save(deployment / "more.npy", np.zeros((4, 4), np.float32))
    for now, code in ((81.0, 5), (79.0, 5), (76.0, 5), (75.0, 0)):
        degrees[0] = now
        assert cli("apply", manifest).code == code, now
        state = next(line for line in cli("status", manifest).out.splitlines() if line.startswith("run "))
        assert state.split()[1] == ("paused" if code else "done")
    rows = [row["row"] for row in read_rows(deployment / "outbox/run")]
    assert rows == list(range(24 if has_run else 20))


@pytest.mark.slow
def test_a_pause_before_a_new_file_was_read_ends_when_the_file_goes(cli: Cli, deployment: Path) -> None:
    cold = with_timing(deployment, "limits: {}").read_text().replace("path: data.npy", "path: '*.npy'")
    manifest = deployment / "m.yaml"
    manifest.write_text(cold)
    assert cli("apply", manifest).code == 0
    np.save(deployment / "more.npy", np.zeros((4, 4), np.float32))
    manifest.write_text(cold.replace("limits: {}", "pause: {below: {free_disk: 1000000GiB}}"))
    assert cli("apply", manifest).code == 5
    assert "paused" in cli("status", manifest).out
    (deployment / "more.npy").unlink()
    manifest.write_text(cold)
    assert cli("apply", manifest).code == 0
    assert "done" in cli("status", manifest).out
    assert len(read_rows(deployment / "outbox/run")) == 20


def test_a_job_that_runs_out_of_time_goes_on_with_the_next_apply(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hours = count(0, 3600)
    senses = Senses(monotonic=lambda: time.monotonic() + next(hours))  # an hour passes between any two looks
    manifest = with_timing(deployment, "until: 90min")
    with monkeypatch.context() as patched:
        patched.setattr(executor, "PauseWatch", partial(PauseWatch, senses=senses))
        assert cli("apply", manifest).code == 5
    report = json.loads((deployment / "outbox/run/_run.json").read_text())
    assert report["status"] == "paused"
    assert cli("status", manifest).code == 0
    assert cli("apply", with_timing(deployment, "until: 1h")).code == 0
    assert len(read_rows(deployment / "outbox/run")) == 20


def test_a_time_of_the_day_without_quotes_is_a_number_for_yaml(cli: Cli, deployment: Path) -> None:
    result = cli("validate", with_timing(deployment, "hours: {from: 22:00, to: 06:00}"))
    assert result.code == 1
    assert "ambiguous-scalar" in result.words


@pytest.fixture(scope="module", params=[100, 1000])
def stopped_once(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A job of JSON lines that has failed at the file c, with a and b in parts or kept, and d still to come."""
    folder = tmp_path_factory.mktemp("stopped")
    scale_model(folder / "double.onnx")
    (folder / "inbox").mkdir()
    text = MANIFEST.replace(", ARRIVALS", "").replace(".npy", ".jsonl")
    path = folder / "m.yaml"
    path.write_text(text.replace("format: jsonl", f"format: jsonl, rows_per_part: {request.param}"), encoding="utf-8")
    put_lines(folder, "a", 1)
    assert main(["apply", str(path), "-q"]) == 0
    put_lines(folder, "b", 2, lines=300)  # more than a plan looks at
    put_lines(folder, "c", "broken")
    put_lines(folder, "d", 4)
    assert main(["apply", str(path), "-q"]) == 1
    log.send_to(None)
    return folder


@pytest.fixture
def stopped(stopped_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stopped_once, tmp_path / "stopped"))


def put_lines(folder: Path, name: str, value: float | str, lines: int = 2) -> None:
    """Write a file of equal lines."""
    (folder / "inbox" / f"{name}.jsonl").write_text(f"{json.dumps({'x': [value] * 4})}\n" * lines, encoding="utf-8")


def test_the_file_at_which_a_job_failed_may_be_taken_away(cli: Cli, stopped: Path) -> None:
    (stopped / "inbox" / "c.jsonl").unlink()
    done = cli("apply", stopped / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    found = [*[("a", 1)] * 2, *[("b", 2)] * 300, *[("d", 4)] * 2]
    assert values(stopped) == found
    put_lines(stopped, "c", 3)
    assert cli("apply", stopped / "m.yaml", "-q").code == 0
    assert values(stopped) == [*found, *[("c", 3)] * 2]


def test_the_file_at_which_a_job_failed_may_be_repaired(cli: Cli, stopped: Path) -> None:
    put_lines(stopped, "c", 3)
    done = cli("apply", stopped / "m.yaml", "-q")
    assert done.code == 0, done.out + done.err
    assert values(stopped) == [*[("a", 1)] * 2, *[("b", 2)] * 300, *[("c", 3)] * 2, *[("d", 4)] * 2]


@pytest.mark.slow
def test_a_file_whose_rows_are_committed_may_go_while_its_run_is_unfinished(cli: Cli, stopped: Path) -> None:
    put_lines(stopped, "c", 3, lines=300)
    put_lines(stopped, "d", "broken")
    assert cli("apply", stopped / "m.yaml", "-q").code == 1
    is_kept = "rows_per_part: 1000" in (stopped / "m.yaml").read_text(encoding="utf-8")
    for name in "bd":
        (stopped / "inbox" / f"{name}.jsonl").unlink()
    assert cli("apply", stopped / "m.yaml", "-q").code == 0
    assert values(stopped) == [*[("a", 1)] * 2, *[("b", 2)] * (0 if is_kept else 300), *[("c", 3)] * 300]
    assert "done" in cli("status", stopped / "m.yaml").words


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["append", "refuse"])
def test_a_file_that_is_only_touched_while_its_run_is_unfinished_is_not_a_new_one(
    cli: Cli, stopped: Path, policy: str
) -> None:
    path = stopped / "m.yaml"
    path.write_text(path.read_text(encoding="utf-8").replace("key: [path]", f"key: [path], on_change: {policy}"))
    put_lines(stopped, "c", 3, lines=300)
    put_lines(stopped, "d", "broken")
    assert cli("apply", path, "-q").code == 1
    for name in "ab":
        os.utime(stopped / f"inbox/{name}.jsonl", ns=(1, 1))
    put_lines(stopped, "d", 4)
    result = cli("apply", path, "-q")
    assert result.code == 0, result.out + result.err
    assert values(stopped) == [*[("a", 1)] * 2, *[("b", 2)] * 300, *[("c", 3)] * 300, *[("d", 4)] * 2]


def stopped_within_a(cli: Cli, deployment: Path, arrivals: Write) -> Path:
    """Write a manifest, and apply it until its second file fails: of the first one, 200 of 300 rows are committed."""
    arrivals("")
    path = deployment / "m.yaml"
    text = path.read_text(encoding="utf-8").replace(".npy", ".jsonl")
    path.write_text(text.replace("format: jsonl", "format: jsonl, rows_per_part: 200"), encoding="utf-8")
    put_lines(deployment, "a", 1, lines=300)
    put_lines(deployment, "b", "broken")
    assert cli("apply", path, "-q").code == 1
    return path


@pytest.mark.slow
def test_a_file_within_which_a_part_ends_may_not_go(cli: Cli, deployment: Path, arrivals: Write) -> None:
    path = stopped_within_a(cli, deployment, arrivals)
    (deployment / "inbox" / "a.jsonl").rename(deployment / "a.jsonl")
    refused = cli("apply", path, "-q")
    assert refused.code == 1
    assert "input file inbox/a.jsonl. Some of its rows are committed and others are not: bring it back" in refused.words
    (deployment / "a.jsonl").rename(deployment / "inbox" / "a.jsonl")
    put_lines(deployment, "b", 2)
    assert cli("apply", path, "-q").code == 0
    assert values(deployment) == [*[("a", 1)] * 300, *[("b", 2)] * 2]


def test_a_file_within_which_a_part_ends_may_be_touched(cli: Cli, deployment: Path, arrivals: Write) -> None:
    path = stopped_within_a(cli, deployment, arrivals)
    for time_ns in (1, 2):
        os.utime(deployment / "inbox/a.jsonl", ns=(time_ns, time_ns))
        result = cli("apply", path, "-q")
        assert "the input failed" in result.words or result.code == 1, result
        assert "a.jsonl" not in result.words
    put_lines(deployment, "b", 2)
    assert cli("apply", path, "-q").code == 0
    assert values(deployment) == [*[("a", 1)] * 300, *[("b", 2)] * 2]


def test_retry_and_status_agree_about_a_row_at_which_a_job_failed(cli: Cli, stopped: Path) -> None:
    told = "in no committed part: repair or remove what failed, and apply goes on"
    assert f"nothing to do, 2 failed rows are {told}" in cli("retry", stopped / "m.yaml", "--job", "run").words
    assert f"run: 2 failed rows are {told}" in cli("status", stopped / "m.yaml").words
    put_lines(stopped, "c", 3)
    assert cli("apply", stopped / "m.yaml", "-q").code == 0
    assert told not in cli("status", stopped / "m.yaml").words
    assert "no row in out has failed" in cli("retry", stopped / "m.yaml", "--job", "run").words


@pytest.mark.slow
def test_a_run_that_has_left_no_rows_holds_nothing_that_a_change_could_contradict(
    cli: Cli, deployment: Path, arrivals: Write
) -> None:
    arrivals("")
    put(deployment, "a", np.nan)
    path = deployment / "m.yaml"
    text = path.read_text(encoding="utf-8")
    path.write_text(f"{text}    errors: {{on_nan: fail}}\n", encoding="utf-8")
    assert cli("apply", path, "-q").code == 1
    put(deployment, "a", 2)
    path.write_text(f"{text}    prepare: {{x: [{{scale: 2}}]}}\n", encoding="utf-8")
    assert cli("apply", path, "-q").code == 0
    assert values(deployment) == [("a", 4)] * 2
    path.write_text(text, encoding="utf-8")
    refused = cli("apply", path, "-q")
    assert refused.code == 1
    assert "holds the finished result of this job" in refused.words


def test_kept_rows_are_not_called_committed_parts(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("")
    path = deployment / "m.yaml"
    text = path.read_text(encoding="utf-8").replace(".npy", ".jsonl")
    path.write_text(text, encoding="utf-8")
    put_lines(deployment, "a", 1, lines=300)
    put_lines(deployment, "b", "broken")
    assert "part.kept" in cli("apply", path).err
    path.write_text(f"{text}    prepare: {{x: [{{scale: 2}}]}}\n", encoding="utf-8")
    assert "holds kept rows of this job, made before" in cli("apply", path, "-q").words


def test_files_without_a_row_say_nothing_of_columns(cli: Cli, deployment: Path, arrivals: Write) -> None:
    """The columns of JSON lines are the keys of the first lines: a job may begin or go on with empty files."""
    arrivals("")
    manifest, inbox = deployment / "m.yaml", deployment / "inbox"
    manifest.write_text(manifest.read_text(encoding="utf-8").replace("*.npy", "*.jsonl"), encoding="utf-8")

    def row(value: float) -> str:
        return json.dumps({"x": [value] * 4}) + "\n"

    (inbox / "a.jsonl").touch()
    result = cli("apply", manifest)
    assert result.code == 0, result
    assert "nothing to do, no file of inbox/*.jsonl has a row" in result.words
    (inbox / "b.jsonl").write_text(row(1), encoding="utf-8")
    assert cli("apply", manifest).code == 0
    (inbox / "c.jsonl").touch()
    result = cli("apply", manifest)
    assert result.code == 0, result
    assert "finished" in cli("plan", manifest).words
    (inbox / "b.jsonl").unlink()
    (inbox / "d.jsonl").touch()
    assert cli("apply", manifest).code == 0
    (inbox / "d.jsonl").write_text(row(2), encoding="utf-8")
    assert cli("apply", manifest).code == 0
    assert values(deployment) == [("b", 1), ("d", 2)]


def test_retry_runs_failed_rows_although_other_files_are_gone(cli: Cli, deployment: Path, arrivals: Write) -> None:
    arrivals("on_remove: refuse")
    path, inbox = deployment / "m.yaml", deployment / "inbox"
    text = path.read_text(encoding="utf-8").replace(".npy", ".jsonl")
    path.write_text(f"{text}    errors: {{max_failed: 1}}\n", encoding="utf-8")
    put_lines(deployment, "a", "broken", lines=1)
    put_lines(deployment, "b", 2)
    assert cli("apply", path, "-q").code == 0
    put_lines(deployment, "a", 1, lines=1)
    (inbox / "b.jsonl").unlink()
    assert cli("apply", path, "-q").code == 1
    assert cli("retry", path, "--job", "run").code == 0
    assert values(deployment) == [("a", 1), ("b", 2), ("b", 2)]
    (inbox / "a.jsonl").unlink()
    assert "nothing to do, its input files are gone" in cli("retry", path, "--job", "run").words


@pytest.mark.slow
def test_retry_leaves_a_file_alone_within_which_a_part_ends_if_it_is_gone(
    cli: Cli, deployment: Path, arrivals: Write
) -> None:
    path = stopped_within_a(cli, deployment, arrivals)
    (deployment / "inbox/a.jsonl").unlink()
    assert "2 failed rows are in no committed part" in cli("retry", path, "--job", "run").words
