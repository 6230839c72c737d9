"""Statistics of shards are added part by part, whoever measured them."""

from typing import Any

import pytest

from ortdeploy.reports.statistics import STAGES, check_statistics, sum_of_statistics


def measured(times: int) -> dict[str, Any]:
    """What a shard measured that did everything this number of times."""
    stage = {"count": times, "total": 0.5 * times, "cpu": 0.25 * times, "buckets": {"3": times}}
    counts = {"retries": times, "batches_cut_anew": 2 * times, "batches_halved": 3 * times}
    return {
        "seconds": 1.5 * times,
        "session_seconds": 2.5 * times,
        "stages": {name: dict(stage) for name in STAGES},
        "adapter_rows": {"none": 10 * times},
        **counts,
        "peak_memory_bytes": 1000,
        "process": {"cpu_seconds_user": 0.125 * times},
        "timeline": [],
        "samples": [],
        "events": [],
    }


def test_the_statistics_of_shards_are_added() -> None:
    assert sum_of_statistics(measured(1), measured(2)) == measured(3)
    assert sum_of_statistics({}, measured(2)) == measured(2)


def test_times_that_overlap_have_no_course() -> None:
    course = {"timeline": [[1.0, 5]], "samples": [[1.0, 5, None]], "events": [[1.0, "began"]]}
    assert sum_of_statistics({}, measured(1) | course) == measured(1)
    assert sum_of_statistics(measured(1) | course, measured(1) | course) == measured(2)


def test_the_highest_peak_of_all_shards_counts() -> None:
    for one, other, highest in ((1, 2, 2), (2, 1, 2), (None, 2, 2), (1, None, 1), (None, None, None)):
        peaks = [measured(1) | {"peak_memory_bytes": peak} for peak in (one, other)]
        assert sum_of_statistics(*peaks)["peak_memory_bytes"] == highest


@pytest.mark.parametrize("name", sorted(set(measured(1)) - {"timeline", "samples", "events"}))
def test_what_an_older_ortdeploy_did_not_measure_counts_as_nothing(name: str) -> None:
    older = {key: value for key, value in measured(1).items() if key != name}
    added = sum_of_statistics(older, measured(1))
    assert added == measured(2) | {name: measured(1)[name]}
    assert sum_of_statistics(measured(1), older) == added
    check_statistics(added)
