"""Which devices need somebody, by the documents that a collector has."""

import os
from pathlib import Path

import pytest
from msgspec.structs import replace
from support.fleet import CURRENT, NOW, WHEN, collected

from ortdeploy.durations import moment
from ortdeploy.fleet.document import Clock, Refused
from ortdeploy.fleet.rows import MOST_BYTES, Row, Wish, read_fleet
from ortdeploy.state.looks import moment_of

DAY = 24 * 3600.0


def rows(folder: Path, wish: Wish = Wish(), now: float = NOW) -> list[Row]:  # noqa: B008  unchangeable
    return read_fleet([str(folder)], wish, now)


def wrong(folder: Path, wish: Wish = Wish(), now: float = NOW) -> tuple[str, ...]:  # noqa: B008
    (row,) = rows(folder, wish, now)
    return row.wrong


def test_a_device_that_is_as_it_should_be_has_nothing_wrong(tmp_path: Path) -> None:
    collected(tmp_path, "a")
    assert wrong(tmp_path, Wish(devices=["a"], version="a" * 7, older=DAY)) == ()


def test_what_is_refused_or_failed_says_why(tmp_path: Path) -> None:
    refusal = Refused(summary="Unknown key", since=WHEN, rule="unknown-key", path="m.yaml", line=3)
    collected(tmp_path, "a", state="refused", refusal=refusal)
    collected(tmp_path, "b", state="failed", jobs=(replace(CURRENT.jobs[0], status="failed"),))
    failed, refused = rows(tmp_path)
    assert (failed.wrong, failed.why) == (("failed",), ("failed: run",))
    assert refused.why == (f"refused since {moment(WHEN)}: Unknown key [unknown-key], m.yaml:3",)


def test_a_week_without_a_run_is_late_only_if_nobody_looks(tmp_path: Path) -> None:
    """A job whose inbox stays empty has run nothing for a week, and all is well as long as ortdeploy looks."""
    old = replace(CURRENT.jobs[0], last_row=moment_of(NOW - 7 * DAY))
    collected(tmp_path, "a", jobs=(old,))
    assert wrong(tmp_path, Wish(older=2 * DAY)) == ()
    collected(tmp_path, "a", last_look=moment_of(NOW - 7 * DAY), next_look=moment_of(NOW - 7 * DAY + 300))
    assert wrong(tmp_path) == ("late",)
    collected(tmp_path, "a", last_look=moment_of(NOW - 7 * DAY), next_look=None)
    assert wrong(tmp_path) == ()
    assert wrong(tmp_path, Wish(older=2 * DAY)) == ("late",)
    assert wrong(tmp_path, Wish(older=8 * DAY)) == ()


@pytest.mark.parametrize("synchronised", [False, None])
@pytest.mark.parametrize("clock", [0.0, NOW - 300 * DAY, NOW + 300 * DAY])
def test_of_a_board_without_a_clock_the_collectors_counts(
    tmp_path: Path, clock: float, synchronised: bool | None
) -> None:
    said = {
        "clock": Clock(now=moment_of(clock), synchronised=synchronised),
        "last_look": moment_of(clock),
        "next_look": moment_of(clock + 300),
    }
    collected(tmp_path, "a", changed=NOW - 200, **said)
    assert wrong(tmp_path, Wish(older=DAY)) == ()
    collected(tmp_path, "a", changed=NOW - 400, **said)
    assert wrong(tmp_path) == ("late",)


def test_a_time_in_the_future_is_told_of_a_clock_that_is_said_to_be_right(tmp_path: Path) -> None:
    collected(tmp_path, "a", last_look=moment_of(NOW + DAY), next_look=moment_of(NOW + 2 * DAY))
    assert wrong(tmp_path) == ("unreadable",)
    collected(tmp_path, "a", last_look=moment_of(NOW + 30))
    assert wrong(tmp_path) == (), "clocks differ by a little"


def test_a_device_that_has_not_reported_is_missing_and_comes_first(tmp_path: Path) -> None:
    collected(tmp_path, "b")
    found = rows(tmp_path, Wish(devices=["b", "c", "a"]))
    assert [(row.device, row.wrong) for row in found] == [("a", ("missing",)), ("c", ("missing",)), ("b", ())]


@pytest.mark.parametrize("version", ["a" * 40, "a" * 8, "sha256:" + "a" * 10])
def test_the_wanted_version_may_be_named_by_its_beginning(tmp_path: Path, version: str) -> None:
    collected(tmp_path, "a")
    assert wrong(tmp_path, Wish(version=version)) == ()
    assert wrong(tmp_path, Wish(version="b" * 40)) == ("behind",)


HOSTILE = {
    "too large": (b" " * (MOST_BYTES + 1), "over 1 MiB"),
    "empty": (b"", "damaged"),
    "torn": (b'{"format_version": 1, "depl', "damaged"),
    "not UTF-8": (b'{"format_version": 1, "deployment": "\xff"}', ""),
    "deep": (b"[" * 100_000, ""),
    "no object": (b"[1, 2]", "no status document"),
    "of the future": (b'{"format_version": 7, "state": "levitating"}', "format 7, and this ortdeploy reads 1"),
    "of the past": (b'{"format_version": 0}', "format 0"),
    "another file": (b'{"name": "package.json"}', "no status document"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_is_no_document_is_a_row_that_says_so(tmp_path: Path, name: str) -> None:
    content, why = HOSTILE[name]
    (tmp_path / "x.json").write_bytes(content)
    (row,) = rows(tmp_path)
    assert (row.device, row.wrong, row.document) == ("x.json", ("unreadable",), None)
    assert why in row.why[0]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"demo"', "5"),
        ('"sequence":1', '"sequence":"1"'),
        ('"jobs":[', '"jobs":[null,'),
        ('"state":"current"', '"state":"fine"'),
        (f'"last_look":"{WHEN}"', '"last_look":"yesterday"'),
        (f'"last_look":"{WHEN}"', '"last_look":"2026-11-28T10:00:00"'),
        (f'"last_row":"{WHEN}"', '"last_row":"9999-12-31T23:59:59-23:00"'),
        (f'"last_look":"{WHEN}"', '"last_look":"0001-01-01T00:00:00+23:00"'),
        ('"committed":20', '"committed":-1'),
        ('"committed":20', f'"committed":{10**30}'),
        ('"committed":20', '"committed":' + "9" * 5000),
        ('"labels":{}', '"labels":{"a":["b"]}'),
        (f'"memory":{8 * 1024**3}', f'"memory":{10**400}'),
        (f'"memory":{8 * 1024**3}', '"memory":0.5'),
        ('"format_version":1', '"format_version":true'),
    ],
)
def test_wrong_types_are_told(tmp_path: Path, old: str, new: str) -> None:
    path = collected(tmp_path, "a")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    assert wrong(tmp_path) == ("unreadable",)


def test_any_time_of_a_file_can_be_shown(tmp_path: Path) -> None:
    for changed in (-1.0, 0.0, 1e13):
        collected(tmp_path, "a", changed=changed, clock=Clock(now=WHEN))
        (row,) = rows(tmp_path)
        assert moment_of(row.seen or 0.0)


def test_pipes_and_links_are_told_or_left_alone(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    (tmp_path / "b.json").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to(tmp_path)
    assert [(row.device, row.wrong) for row in rows(tmp_path)] == [
        ("a.json", ("unreadable",)),
        ("b.json", ("unreadable",)),
    ]


def test_folders_are_read_at_any_depth_and_globs_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "site/line").mkdir(parents=True)
    collected(tmp_path / "site/line", "a")
    assert wrong(tmp_path) == ()
    assert [row.device for row in read_fleet([f"{tmp_path}/*/*/*.json", str(tmp_path)], Wish(), NOW)] == ["a"]
