"""Readers that go away, full log disks, closed descriptors and the like: what runs goes on, and says what it could not."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from conftest import MANIFEST, Cli, read_rows, run_fork
from support.forks import start_program

from ortdeploy.cli.output.streams import LastingFile, failure_of, lasting

FULL = Path("/dev/full")
needs_full = pytest.mark.skipif(not FULL.exists(), reason="only Linux has a device that is always full")
COMMAND = f'"{sys.executable}" -m ortdeploy'


def in_shell(script: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = ["/bin/sh", "-c", script]
    return subprocess.run(command, cwd=cwd, capture_output=True, encoding="utf-8", check=False)


def is_done(deployment: Path) -> bool:
    report = json.loads((deployment / "outbox/run/_run.json").read_text())
    return bool(report["status"] == "done") and len(read_rows(deployment / "outbox/run")) == report["rows"]["input"]


def make_long(deployment: Path, rows: int = 30_000) -> None:
    np.save(deployment / "data.npy", np.zeros((rows, 4), np.float32))
    text = MANIFEST.replace("size: 8", "size: 1").replace("format: jsonl", "format: jsonl, rows_per_part: 1000")
    (deployment / "m.yaml").write_text(text)


@pytest.mark.slow
@needs_full
@pytest.mark.parametrize(
    ("sent", "code", "said"),
    [
        ("2>/dev/full", 0, "20 rows committed"),
        (">/dev/full", 1, "ortdeploy: standard output cannot be written: No space left on device."),
        pytest.param(">/dev/full 2>&1", 1, "", marks=pytest.mark.slow),
        ("--log-file /dev/full", 0, "the log file /dev/full could not be written: No space left on device."),
        pytest.param("--format json 2>/dev/full", 0, '"status": "done"', marks=pytest.mark.slow),
    ],
)
def test_a_full_log_disk_ends_no_job(deployment: Path, sent: str, code: int, said: str) -> None:
    done = in_shell(f"{COMMAND} apply m.yaml {sent}", deployment)
    assert done.returncode == code, done.stderr
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    assert is_done(deployment)


@pytest.mark.quick("validate m.yaml", "schema")
@needs_full
@pytest.mark.parametrize(
    "arguments",
    ["validate m.yaml", pytest.param("plan m.yaml", marks=pytest.mark.slow), "status m.yaml", "--help", "schema"],
)
def test_output_that_cannot_be_written_is_told(deployment: Path, arguments: str) -> None:
    done = in_shell(f"{COMMAND} {arguments} >/dev/full", deployment)
    assert done.returncode == 1
    assert done.stderr.endswith("ortdeploy: standard output cannot be written: No space left on device.\n")
    assert "Traceback" not in done.stderr


@needs_full
def test_diagnostics_that_cannot_be_written_are_not_lost_in_silence(deployment: Path) -> None:
    (deployment / "m.yaml").write_text(MANIFEST.replace("batch:", "bath:"))
    done = in_shell(f"{COMMAND} validate m.yaml >/dev/full", deployment)
    assert done.returncode == 1
    assert done.stderr == "ortdeploy: standard output cannot be written: No space left on device.\n"


@pytest.mark.quick("stderr")
@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_job_goes_on_when_its_readers_go_away(deployment: Path, stream: str) -> None:
    make_long(deployment, 2_000)
    process = start_program(
        ["apply", "-v", "m.yaml"],
        cwd=deployment,
        stdout=subprocess.PIPE if stream == "stdout" else subprocess.DEVNULL,
        stderr=subprocess.PIPE if stream == "stderr" else subprocess.DEVNULL,
    )
    pipe = process.stdout or process.stderr
    assert pipe is not None
    if stream == "stderr":
        assert any(b"part.committed" in line for line in pipe)
    pipe.close()
    assert process.wait() == 0
    assert is_done(deployment)


@pytest.mark.parametrize(
    "closed", [*(pytest.param(one, marks=pytest.mark.slow) for one in ("2>&-", ">&-", "<&-")), ">&- 2>&- <&-"]
)
def test_nothing_is_printed_into_files_where_streams_are_closed(deployment: Path, closed: str) -> None:
    done = in_shell(f"{COMMAND} apply m.yaml {closed}", deployment)
    assert done.returncode == 0, done.stderr
    assert is_done(deployment)
    for path in deployment.rglob("*"):
        assert not path.is_file() or b"run.started" not in path.read_bytes(), path


def test_a_folder_that_is_gone_is_told(deployment: Path) -> None:
    done = in_shell(f"mkdir gone && cd gone && rmdir ../gone && {COMMAND} plan ../m.yaml", deployment)
    assert done.returncode == 1
    assert done.stderr == "ortdeploy: the current folder is gone; change into one that is there.\n"


@pytest.mark.parametrize(
    "files", [number if number == 11 else pytest.param(number, marks=pytest.mark.slow) for number in range(5, 24, 2)]
)
def test_too_few_files_are_told_whatever_was_to_be_opened(deployment: Path, files: int) -> None:
    done = in_shell(f"ulimit -n {files}; {COMMAND} apply -q m.yaml", deployment)
    assert "Traceback" not in done.stderr
    assert "bug of ortdeploy" not in done.stderr
    if done.returncode:
        assert any(word in done.stdout + done.stderr for word in ("open files", "cannot be", "unable to open")), (
            done.stderr
        )
    assert run_fork(["apply", "m.yaml"], cwd=deployment).code == 0
    assert is_done(deployment)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ImportError("libgomp.so.1: cannot open shared object file"),
            "a library cannot be loaded: libgomp.so.1: cannot",
        ),
        (MemoryError(), "memory ran out"),
        (RuntimeError("can't start new thread"), "no thread can be started"),
        (
            BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"),
            "Resource temporarily unavailable; no process",
        ),
        (OSError(errno.EIO, "Input/output error", "m.yaml"), "m.yaml: Input/output error"),
    ],
)
def test_what_the_machine_lacks_is_no_bug(
    cli: Cli, deployment: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    monkeypatch.setattr("ortdeploy.cli.commands.validate.run", Mock(side_effect=error))
    result = cli("validate", deployment / "m.yaml")
    assert result.code == 1
    assert result.err.startswith(f"ortdeploy: {said}")


def test_a_run_in_the_background_of_a_script_is_stopped_by_sigint(deployment: Path) -> None:
    """The shell has it ignore the signal, which is about the keyboard's, not about who sends one to this run."""
    make_long(deployment)
    command = ["/bin/sh", "-c", f"trap '' INT; exec {COMMAND} apply m.yaml"]
    process = subprocess.Popen(command, cwd=deployment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    assert any(b"part.committed" in line for line in process.stderr)
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="a signal of Unix")
def test_nohup_is_honoured(deployment: Path) -> None:
    make_long(deployment, 2_000)
    command = ["/bin/sh", "-c", f"trap '' HUP; exec {COMMAND} apply m.yaml"]
    process = subprocess.Popen(command, cwd=deployment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert process.stderr is not None
    for line in process.stderr:
        if b"part.committed" in line:
            process.send_signal(signal.SIGHUP)
    process.stderr.close()
    assert process.wait() == 0
    assert is_done(deployment)


@pytest.mark.skipif(not hasattr(os, "set_blocking"), reason="Windows has it from Python 3.12 on")
def test_a_pipe_that_does_not_wait_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    text = "x" * 79 + "\n"
    with ThreadPoolExecutor(1) as pool, os.fdopen(reading, "rb") as reader:
        got = pool.submit(reader.read)
        with lasting(os.fdopen(writing, "wb", buffering=0)) as stream:
            for _ in range(10_000):
                stream.write(text)
        assert failure_of(stream) is None
        assert got.result() == text.encode() * 10_000


@needs_full
def test_the_first_failure_is_kept_and_nothing_is_written_after_it(tmp_path: Path) -> None:
    stream = lasting(FULL.open("wb", buffering=0))
    for _ in range(3):
        stream.write("a line\n")
    failure = failure_of(stream)
    assert failure is not None
    assert failure.errno == errno.ENOSPC
    stream.close()
    raw = LastingFile((tmp_path / "file").open("wb", buffering=0))
    raw.failure = failure
    assert raw.write(b"lost") == len(b"lost")
    raw.close()
    assert (tmp_path / "file").read_bytes() == b""


def test_a_file_system_that_is_full_when_a_file_is_closed_is_told(tmp_path: Path) -> None:
    """As network file systems are over quota."""
    raw = (tmp_path / "log").open("wb", buffering=0)
    stream = lasting(raw)
    stream.write("a line\n")
    os.close(raw.fileno())
    stream.close()
    failure = failure_of(stream)
    assert failure is not None
    assert failure.errno == errno.EBADF
