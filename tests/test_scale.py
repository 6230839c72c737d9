"""docs/scale.md says what its script says, and its model of a store behaves as a store does."""

import json
from dataclasses import replace

import pytest
import scale
from conftest import REPOSITORY

PAGE = (REPOSITORY / "docs/scale.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_page_has_the_tables_of_the_script() -> None:
    tables = scale.render(json.loads(scale.MEASURED.read_text()))
    assert all(f"<!-- {name} -->\n" in PAGE for name in tables)
    assert scale.page_with(PAGE, tables) == PAGE


def test_the_text_has_the_numbers_of_the_model() -> None:
    text = " ".join(PAGE.split())
    object_store, nfs = scale.S3, scale.NFS
    for said in (
        f"about {object_store.writes_per_second / object_store.writes:.0f} parts a second on S3",
        f"about {nfs.writes_per_second / nfs.writes:.0f} on such an NFS server",
        f"the median is {object_store.median * 1000:.0f} ms, and one request in a hundred takes {object_store.p99 * 1000:.0f} ms",
        f"for NFS, {nfs.median * 1000:.0f} ms and {nfs.p99 * 1000:.0f} ms",
        f"One in {1 / object_store.fails:,.0f} requests to the object store fails",
        f"A prefix takes {object_store.writes_per_second:,.0f} writes a second",
        f"the NFS server takes {nfs.writes_per_second:,.0f}.",
        f"A prefix takes {object_store.reads_per_second:,.0f} reads a second",
        f"that takes about {scale.begin_seconds():.0f} seconds more",
    ):
        assert said in text, said


def test_a_process_that_joins_makes_the_requests_of_the_text() -> None:
    assert scale.BEGIN_READS + scale.BEGIN_WRITES == 8
    assert "A process that joins a plan makes eight requests" in PAGE


def test_the_start_is_limited_by_own_requests_or_by_the_prefix() -> None:
    assert scale.start_seconds(10**6, 10) == pytest.approx(8 * 0.03 + 10**5 * 0.03 / 16)
    assert scale.start_seconds(10**6, 10_000) == pytest.approx((10**6 + 5 * 10_000) / 5500)
    assert scale.start_seconds(100, 10_000) == pytest.approx((100 + 5 * 10_000) / 5500)


def test_the_model_gives_the_same_each_time_and_other_numbers_for_another_store() -> None:
    assert scale.simulate(scale.S3, 10, 1) == scale.simulate(scale.S3, 10, 1)
    assert scale.simulate(replace(scale.S3, name="other"), 10, 1) != scale.simulate(scale.S3, 10, 1)


def test_few_workers_are_limited_by_their_own_requests_alone() -> None:
    store = replace(scale.S3, fails=0.0, median=0.1, p99=0.1)
    found = scale.simulate(store, 10, 10)
    assert found.refused == 0
    assert found.decisions_per_second == pytest.approx(10 / (10 + 8 * 0.1), rel=0.1)
    assert found.share_of_work == pytest.approx(10 / (10 + 8 * 0.1), rel=0.02)


def test_a_prefix_decides_no_more_parts_than_it_takes_writes() -> None:
    store = replace(scale.S3, writes_per_second=20)
    found = scale.simulate(store, 100, 1)
    assert found.refused > 0
    assert 0.7 * 20 / 4 < found.decisions_per_second < 1.3 * 20 / 4


def test_requests_that_fail_take_their_time_again() -> None:
    sure, unsure = (scale.simulate(replace(scale.S3, fails=share), 10, 1) for share in (0.0, 0.5))
    assert unsure.share_of_work < sure.share_of_work
