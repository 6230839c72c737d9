"""Listings of S3 a page of a thousand objects at a time: fsspec's own keep a dictionary for each object of a bucket."""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_MAGIC = re.compile(r"[*?\[]")


def matching_objects(system: Any, pattern: str) -> Iterator[Mapping[str, Any]]:
    """Yield what matches a glob (bucket/key, in which only ** crosses a slash), as `info` of fsspec describes it."""
    from fsspec.utils import glob_translate  # noqa: PLC0415  an extra

    first = _MAGIC.search(pattern)
    start = pattern[: first.start()] if first else pattern
    rest = pattern[len(start) :]
    is_flat = "/" not in rest and "**" not in rest
    meant = re.compile(glob_translate(pattern))
    return (one for one in _pages(system, start, is_flat=is_flat) if meant.match(one["name"]))


def objects_in(system: Any, folder: str) -> Iterator[Mapping[str, Any]]:
    """Yield what is right in a folder."""
    return _pages(system, f"{folder.rstrip('/')}/", is_flat=True)


def _pages(system: Any, start: str, *, is_flat: bool) -> Iterator[Mapping[str, Any]]:
    """Yield the objects whose names begin so; `is_flat`: but for those behind a further slash."""
    bucket, _, prefix = start.partition("/")
    asked = {"Bucket": bucket, "Prefix": prefix, **({"Delimiter": "/"} if is_flat else {})}
    while True:
        page = system.call_s3("list_objects_v2", **asked)
        for one in page.get("Contents", ()):
            if not one["Key"].endswith("/"):  # what consoles make so that a folder can be seen
                yield {**one, "name": f"{bucket}/{one['Key']}", "size": one["Size"], "type": "file"}
        if not page.get("IsTruncated"):
            return
        asked["ContinuationToken"] = page["NextContinuationToken"]
