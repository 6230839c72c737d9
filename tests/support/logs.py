"""Collects what is logged."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ortdeploy.events import log


@contextmanager
def capture_logs(*, context: bool = False) -> Iterator[list[dict[str, Any]]]:
    """Collect the events inside the block with their levels, and with the fields of their blocks if asked to."""
    found: list[dict[str, Any]] = []

    def write(level: str, event: dict[str, Any], of_block: Mapping[str, Any]) -> None:
        found.append({**(of_block if context else {}), **event, "log_level": level})

    with log.sent_to(write):
        yield found
