"""Damaged inputs, models, adapters, device files, ledgers and manifests, many of them, with a seed.

None ends in a traceback, with exit code 3, in an abort, a hang, or without a bound of its memory. A few run with every
test; ORTDEPLOY_FUZZ and ORTDEPLOY_FUZZ_SEED say how many the slow part runs, and which.
"""

import json
import os
import select
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent.parent
SEED = os.environ.get("ORTDEPLOY_FUZZ_SEED", "1")
FULL = {"manifests": 20_000, "inputs": 5_000, "files": 5_000}
SECONDS = 60
MOST_MEMORY = 1024 * 1024 * 1024
CODES = {0, 1, 4, 64}


@dataclass
class Fuzzer:
    """Hands cases to a worker, and begins another where one is gone."""

    kind: str
    folder: Path
    findings: list[str] = field(default_factory=list)
    codes: Counter[int] = field(default_factory=Counter)
    planned: int = 0
    _worker: "subprocess.Popen[bytes] | None" = None

    def run(self, numbers: range) -> None:
        for number in numbers:
            answer = self._answer(number)
            if isinstance(answer, str):
                self.findings.append(f"{self.kind} {number}: {answer}")
            else:
                self._judge(number, answer)
        self._end()

    def _judge(self, number: int, answer: dict[str, Any]) -> None:
        self.codes[answer["code"]] += 1
        self.planned += answer["planned"]
        where = f"{self.kind} {number}, {answer['changed']}, {' '.join(answer['arguments'])}"
        if answer["code"] not in CODES or "Traceback" in answer["said"]:
            self.findings.append(f"{where}: code {answer['code']}: {answer['said']}")
        if answer["peak"] is not None and answer["peak"] > MOST_MEMORY:
            self.findings.append(f"{where}: {answer['peak']:,} bytes")

    def _answer(self, number: int) -> dict[str, Any] | str:
        """Return how a case ended, or how its worker did."""
        worker = self._worker or self._start()
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{number}\n".encode())
        worker.stdin.flush()
        if not select.select([worker.stdout], [], [], SECONDS)[0]:
            self._end()
            return f"no answer within {SECONDS} s"
        line = worker.stdout.readline()
        if not line:
            self._worker = None
            return f"the worker ended with {worker.wait()}"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _start(self) -> "subprocess.Popen[bytes]":
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        command = [sys.executable, "-m", "support.fuzz_worker", self.kind, SEED, str(self.folder)]
        path = os.pathsep.join([str(TESTS), str(TESTS.parent)])
        self._worker = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}
        )
        return self._worker

    def _end(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker.communicate()
            self._worker = None


def fuzz(kind: str, folder: Path, numbers: range) -> Fuzzer:
    fuzzer = Fuzzer(kind, folder)
    fuzzer.run(numbers)
    assert not fuzzer.findings, f"{len(fuzzer.findings)} findings\n" + "\n".join(fuzzer.findings[:20])
    return fuzzer


def test_some_damage_is_told_in_words(tmp_path: Path) -> None:
    fuzzer = fuzz("manifests", tmp_path / "work", range(12))
    assert len(fuzzer.codes) > 1


@pytest.mark.slow
@pytest.mark.parametrize("kind", FULL)
def test_much_damage_is_told_in_words(kind: str, tmp_path: Path) -> None:
    count = int(os.environ.get("ORTDEPLOY_FUZZ", FULL[kind]))
    fuzzer = fuzz(kind, tmp_path / "work", range(count))
    if kind == "manifests":
        assert fuzzer.planned > count / 3
