"""Listings of S3 in pages: what fsspec finds, without what fsspec keeps; and states, each or in a listing."""

from itertools import islice
from typing import Any

import pytest
from support import s3

from ortdeploy.files.object_store import list_states, list_urls, state_of
from ortdeploy.files.s3_pages import matching_objects, objects_in
from ortdeploy.sources.files import file_states, find_changed


class Pages:
    """Stands for s3fs: a million objects, a thousand an answer."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    def call_s3(self, _method: str, **asked: Any) -> dict[str, Any]:
        start = int(asked.get("ContinuationToken", 0))
        self.asked.append(asked)
        found = [{"Key": f"in/{number:07d}.png", "Size": 1} for number in range(start, start + 1000)]
        more = {"IsTruncated": True, "NextContinuationToken": str(start + 1000)} if start < 999_000 else {}
        return {"Contents": [*found, {"Key": "in/", "Size": 0}], **more}


def test_no_more_than_a_page_is_held() -> None:
    system = Pages()
    names = [one["name"] for one in islice(objects_in(system, "b/in"), 1500)]
    assert (names[0], names[-1]) == ("b/in/0000000.png", "b/in/0001499.png")
    assert [one.get("ContinuationToken") for one in system.asked] == [None, "1000"]
    assert all((one["Prefix"], one["Delimiter"]) == ("in/", "/") for one in system.asked)


@pytest.mark.parametrize(
    ("pattern", "prefix", "delimiter"),
    [("b/in/*.png", "in/", "/"), ("b/**", "", None), ("b/in/**/*.png", "in/", None)],
)
def test_only_what_may_match_is_listed(pattern: str, prefix: str, delimiter: str | None) -> None:
    pytest.importorskip("fsspec")
    system = Pages()
    found = matching_objects(system, pattern)
    assert list(islice(found, 1))
    assert (system.asked[0]["Prefix"], system.asked[0].get("Delimiter")) == (prefix, delimiter)


NAMES = ("in/a.png", "in/b.png", "in/b.txt", "in/deep/c.png", "in/deep/er/d.png", "in2/e.png", "in/")


@pytest.mark.process
def test_globs_and_folders_mean_what_fsspec_says(bucket: s3.Store) -> None:
    for name in NAMES:
        bucket.put(name, b"x")
    for pattern in ("in/*.png", "in/**/*.png", "in*/*.png", "in/**", "in/?.png", "in/[ab].*", "**", "none/*"):
        found = bucket.system.glob(f"{bucket.bucket}/{pattern}")
        wanted = sorted(f"s3://{one}" for one in found if bucket.system.isfile(one) and not one.endswith("/"))
        assert list_urls(bucket.url(pattern)) == wanted, pattern
    assert list_urls(bucket.url("in")) == [bucket.url(f"in/{name}") for name in ("a.png", "b.png", "b.txt")]
    assert list_urls(bucket.url("in/a.png")) == [bucket.url("in/a.png")]
    assert list_urls(bucket.url("none")) == []


@pytest.mark.process
def test_a_listing_says_of_an_object_what_it_says_itself(bucket: s3.Store) -> None:
    for name in ("in/a.png", "in/b.png"):
        bucket.put(name, name.encode())
    assert dict(list_states(bucket.url("in/*"))) == {url: state_of(url) for url in list_urls(bucket.url("in/*"))}


@pytest.mark.slow
@pytest.mark.process
def test_the_states_of_many_objects_are_listed_and_of_few_are_asked_for(bucket: s3.Store) -> None:
    for number in range(20):
        bucket.put(f"in/{number:02d}.png", b"x")
    files, patterns = list_urls(bucket.url("in/*.png")), [bucket.url("in/*.png")]
    bucket.asked.clear()
    states = file_states(files, "/", patterns)
    assert [method for method, _, _ in bucket.asked] == ["GET"]
    assert find_changed(states, "/", patterns) is None
    bucket.put("in/07.png", b"other")
    assert find_changed(states, "/", patterns) == bucket.url("in/07.png")
    bucket.asked.clear()
    assert find_changed(states[:7], "/", patterns) is None
    assert {method for method, _, _ in bucket.asked} == {"HEAD"}
    assert file_states(files[:3], "/", patterns) == states[:3]
