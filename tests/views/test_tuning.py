"""What `tune` and `check` show while they work, and the table of trials in narrow terminals."""

import pytest
from msgspec.structs import replace
from support.terminals import Clock, shown_of

from ortdeploy.checks.run import CheckResult
from ortdeploy.planning.overlay_search import Bounds, Setting, Trial
from ortdeploy.views.checks import ChecksLine
from ortdeploy.views.tuning import SearchLine, render_numbered, render_table

AS_IT_IS = Trial(setting=Setting(), rows_per_second=1_000, p99=0.02, memory=2**27)
SLOW = Trial(setting=Setting(batch=64, threads=2), rows_per_second=900, p99=0.01, memory=2**27)
REFUSED = Trial(
    setting=Setting(batch=512), refused="the process that ran it was ended by the system: it took all memory"
)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("ortdeploy.views.tuning.time.monotonic", clock)
    return clock


@pytest.mark.parametrize(
    ("width", "shown"),
    [
        (100, "tuning nightly trial 12 threads 2, batch 64 0:07 fastest 1,000 rows/s"),
        (60, "tuning nightly trial 12 threads 2, batch 64"),
        (40, "tuning nightly trial 12"),
    ],
)
def test_a_search_shows_which_trial_runs(clock: Clock, width: int, shown: str) -> None:
    line = SearchLine("nightly", [AS_IT_IS] * 10)
    line.begin(Setting(batch=1))
    line.end(SLOW)
    line.begin(Setting(batch=64, threads=2))
    clock.now = 7.0
    assert shown_of(line.pieces, width) == shown


def test_a_second_try_has_a_number_of_its_own() -> None:
    line = SearchLine("nightly", [])
    numbers = []
    for _ in range(3):
        line.begin(Setting())
        numbers.append(line.number)
    assert numbers == [1, 2, 3]


def test_a_check_shows_its_session_and_what_has_ended(clock: Clock) -> None:
    line = ChecksLine([])
    line.end(CheckResult(model="digits", session="cpu", check="a", status="passed"))
    line.end(CheckResult(model="digits", session="cpu", check="b", status="failed"))
    clock.now = 61.0
    assert shown_of(line.pieces, 100) == "checking digits on cpu 2 data sets done 1 not passed 1:01"
    assert shown_of(line.pieces, 48) == "checking digits on cpu 2 data sets done"


def test_a_trial_is_one_line_for_programs_and_wrapped_for_people() -> None:
    whole = render_numbered(3, REFUSED, None)
    assert whole.count("\n") == 1
    assert whole.startswith("  3  batch 512: refused: the process")
    lines = render_numbered(3, REFUSED, 40).splitlines()
    assert all(len(line) <= 40 for line in lines)
    assert " ".join(line.strip() for line in lines) == whole.strip()


def test_settings_over_a_limit_say_so() -> None:
    fast = replace(SLOW, rows_per_second=2_000, p99=0.5)
    lines = render_table([AS_IT_IS, fast], AS_IT_IS, None, color=False, bounds=Bounds(p99=0.1)).splitlines()
    assert lines[1].endswith("threads 2, batch 64 (over the limit)")
    assert lines[2].endswith("as it is")
    assert "*" not in "".join(lines)


@pytest.mark.parametrize("width", [40, 60])
def test_a_narrow_table_keeps_the_settings_whole(width: int) -> None:
    lines = render_table([AS_IT_IS, SLOW, REFUSED], SLOW, "o.yaml", color=False, width=width).splitlines()
    assert all(len(line) <= width for line in lines)
    assert ("MEMORY" in lines[0]) == (width == 60)
    assert "* threads 2, batch 64" in " ".join(" ".join(lines).split())


def test_nothing_that_runs_is_not_a_limit() -> None:
    assert render_table([REFUSED], None, None, color=False, quiet=True) == "No setting can be run.\n"
    assert "stays within the limits" in render_table([SLOW], None, None, color=False, quiet=True)
