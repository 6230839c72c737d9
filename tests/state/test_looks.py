"""An apply with nothing to do writes new times over the old ones, and leaves everything else as it is."""

import json
import os
import time
from pathlib import Path

import pytest

from ortdeploy.state import looks
from ortdeploy.state.looks import LAST, NEXT, moment_of, replace_file, times_of, touch

NOW = 1_700_000_000.0


def document(name: str, every: float | None) -> str:
    return f'{{"name": "{name}", "state": "current", {times_of(0, every)}}}\n'


@pytest.fixture(autouse=True)
def now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time", lambda: NOW)


@pytest.mark.parametrize("name", ["device", "Gerät"])
@pytest.mark.parametrize(("before", "after"), [(60.0, 60.0), (None, 60.0), (60.0, None), (None, None)])
def test_a_document_gets_the_times_of_now(tmp_path: Path, name: str, before: float | None, after: float | None) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(document(name, before).encode())
    assert touch([str(path)], after)
    found = json.loads(path.read_bytes())
    assert found == {
        "name": name, "state": "current", "last_look": moment_of(NOW),
        "next_look": None if after is None else moment_of(NOW + after),
    }  # fmt: skip


@pytest.mark.parametrize("name", ["device", "Gerät"])
def test_a_document_of_the_same_length_is_written_over_only_if_bytes_are_places(tmp_path: Path, name: str) -> None:
    path = tmp_path / "status.json"
    path.write_bytes(document(name, 60.0).encode())
    number = path.stat().st_ino
    assert touch([str(path)], 60.0)
    assert (path.stat().st_ino == number) is name.isascii()


def test_a_document_of_another_state_is_left(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    path.write_text(document("device", None))
    assert not touch([str(path)], None, "refused")
    assert path.read_text() == document("device", None)
    assert touch([str(path)], None, "current")


@pytest.mark.parametrize("content", ["", '{"state": "current", }'])
def test_what_has_no_times_is_not_as_it_was_written(tmp_path: Path, content: str) -> None:
    path = tmp_path / "status.json"
    path.write_text(content)
    assert not touch([str(path)], None)
    assert path.read_text() == content


def test_what_is_not_there_is_not_as_it_was_written(tmp_path: Path) -> None:
    assert not touch([str(tmp_path / "status.json")], None)
    assert touch([], None)


@pytest.mark.parametrize("was", ["1.000", "1600000000.000"])
def test_metrics_get_the_times_of_now(tmp_path: Path, was: str) -> None:
    path = tmp_path / "ortdeploy.prom"
    path.write_text(f'{LAST}{{name="a"}} {was}\n{NEXT}{{name="a"}} {was}\nother{{name="a"}} {was}\n')
    assert touch([str(path)], 60.0)
    assert path.read_text() == (
        f'{LAST}{{name="a"}} {NOW:.3f}\n{NEXT}{{name="a"}} {NOW + 60:.3f}\nother{{name="a"}} {was}\n'
    )


def test_metrics_of_who_looks_at_no_interval_are_due_now(tmp_path: Path) -> None:
    path = tmp_path / "ortdeploy.prom"
    path.write_text(f'{NEXT}{{name="a"}} 1.000\n')
    assert touch([str(path)], None)
    assert path.read_text() == f'{NEXT}{{name="a"}} {NOW:.3f}\n'


def test_times_are_in_utc_with_milliseconds() -> None:
    assert moment_of(1.0625) == "1970-01-01T00:00:01.062+00:00"
    assert moment_of(1.5625) == "1970-01-01T00:00:01.562+00:00"
    assert moment_of(86399.9999) == "1970-01-02T00:00:00.000+00:00"


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such rights")
def test_others_may_read_metrics_whatever_the_umask_of_a_service_is(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        for name in ("a.prom", "a.json"):
            replace_file(str(tmp_path / name), "text", synced=True)
    finally:
        os.umask(before)
    assert [(tmp_path / name).read_text() for name in ("a.prom", "a.json")] == ["text", "text"]
    assert [(tmp_path / name).stat().st_mode & 0o777 for name in ("a.prom", "a.json")] == [0o644, 0o600]


def test_what_must_be_durable_is_whole_when_it_is_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_size))
    replace_file(str(tmp_path / "a.json"), "text")
    assert synced == []
    replace_file(str(tmp_path / "a.json"), "text", synced=True)
    assert synced == [4]


def test_a_deployment_has_a_key_for_its_manifest_and_its_root(tmp_path: Path) -> None:
    keys = {looks.key_of(str(tmp_path / one), str(tmp_path / two)) for one in "ab" for two in "ab"}
    assert {len(key) for key in keys} == {16}
    assert len(keys) == 4
