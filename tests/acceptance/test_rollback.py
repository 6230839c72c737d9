"""An upgrade that is rolled back before it has committed a part: the job goes on with what made its rows."""

from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from conftest import Cli
from support.carriers import delivered, rows_of
from support.jobs import Killed
from support.upstream_jobs import killing

MANIFEST = """
version: 1
name: rolled-back
models: {double: {path: double.onnx, providers: [CPU]}}
jobs:
  run:
    model: double
    input: {path: inbox/*.npy, key: [path, row]}
    batch: {size: 2}
    output: {path: out, format: jsonl, rows_per_part: 4, on_upgrade: continue}
"""


@pytest.mark.quick("1", "2")
@pytest.mark.parametrize("at", range(3))  # before the part of the upgrade is committed
def test_a_rollback_goes_on_wherever_the_upgrade_was_killed(cli: Cli, deployment: Path, at: int) -> None:
    path, inbox = deployment / "m.yaml", deployment / "inbox"
    inbox.mkdir()
    path.write_text(MANIFEST, encoding="utf-8")
    np.save(inbox / "a.npy", np.ones((3, 4), np.float32))
    assert cli("apply", path).code == 0
    path.write_text(MANIFEST.replace("size: 2", "size: 1"), encoding="utf-8")
    np.save(inbox / "b.npy", np.ones((1, 4), np.float32))
    with killing(at), suppress(Killed):
        cli("apply", path)
    path.write_text(MANIFEST, encoding="utf-8")
    result = cli("apply", path)
    assert result.code == 0, result.words
    assert "run with what has changed" not in result.words
    assert sorted(rows_of(delivered(deployment / "out"))) == [0, 1, 2, 3]
    assert cli("verify", path).code == 0
