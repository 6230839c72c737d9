"""A copy of a ledger that is damaged anywhere is refused in words, or is none the worse for it."""

import zipfile
from pathlib import Path

import pytest
from support.fakes import FakeRuntime, refuse_negative
from support.jobs import execute, plan_for, save

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.scratch import scratch_folder
from ortdeploy.ledger.backup import back_up, bring_back
from ortdeploy.ledger.damage import FILE
from ortdeploy.ledger.opening import read_outputs


def test_whatever_byte_is_another_one_nothing_wrong_comes_back(tmp_path: Path) -> None:
    save(tmp_path, [0, -1, 2, 3])
    execute(tmp_path, plan_for(tmp_path, 4, max_failed=9), FakeRuntime(refuse_negative))
    state, copy = tmp_path / ".ortdeploy", tmp_path / "copy.zip"
    assert back_up(state, copy) == 1
    known, content = read_outputs(state), copy.read_bytes()
    state.rename(tmp_path / "lost")
    refused = 0
    for place in range(0, len(content), max(1, len(content) // 150)):
        copy.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        try:
            bring_back(copy, state)
        except OrtdeployError:
            refused += 1
            assert not (state / FILE).exists()
        else:
            assert read_outputs(state) == known
            (state / FILE).unlink()
    assert refused > 100
    copy.write_bytes(content)
    assert bring_back(copy, state).outputs == 1
    assert read_outputs(state) == known


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    "others",
    [["notes.txt"], ["../state.db"], ["manifests/../../x.json"], ["/tmp/x.json"], [FILE], ["locks/x.db"]],  # noqa: S108  a name
)
def test_a_file_with_anything_else_in_it_is_no_copy(tmp_path: Path, others: list[str]) -> None:
    save(tmp_path, [0, 1])
    execute(tmp_path, plan_for(tmp_path, 2), FakeRuntime(refuse_negative))
    state, copy = tmp_path / ".ortdeploy", tmp_path / "copy.zip"
    back_up(state, copy)
    state.rename(tmp_path / "lost")
    with zipfile.ZipFile(copy, "a") as archive:
        for name in others:
            archive.writestr(name, "{}")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OrtdeployError, match="is not a copy of a state directory"):
        bring_back(copy, state)
    assert [path for path in sorted(tmp_path.rglob("*")) if path != state] == before
    assert not (state / FILE).exists()


def test_what_a_killed_copy_has_left_goes_with_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    save(tmp_path, [0, 1])
    execute(tmp_path, plan_for(tmp_path, 2), FakeRuntime(refuse_negative))
    with scratch_folder("state") as left:
        left.keep = True  # as a process that is killed
    assert len(list(scratch.iterdir())) == 1
    back_up(tmp_path / ".ortdeploy", tmp_path / "copy.zip")
    assert list(scratch.iterdir()) == []
