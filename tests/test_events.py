"""Events reach what writes them, from a level on, with the fields of the blocks that they happen in."""

import io
import json
import threading
from contextvars import copy_context
from typing import Any

import pytest
from support.logs import capture_logs

from ortdeploy.cli.output.log import configure_logging
from ortdeploy.events import bound, log


class Terminal(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def written(stream: io.StringIO, *, form: str | None = None, level: str = "info", **fields: Any) -> str:
    configure_logging(form=form, stream=stream, level=level, color=False)
    try:
        log.debug("quiet.event", **fields)
        log.info("usual.event", **fields)
        log.warning("loud.event", **fields)
    finally:
        log.send_to(None)
    return stream.getvalue()


def test_nobody_gets_events_unless_they_are_sent_somewhere() -> None:
    assert not log.is_sent
    log.error("job.failed")
    with capture_logs() as events:
        log.error("job.failed", reason="r")
    assert events == [{"event": "job.failed", "reason": "r", "log_level": "error"}]
    assert not log.is_sent


def test_blocks_give_their_fields_to_events_inside() -> None:
    with capture_logs(context=True) as events:
        with bound(run="1", job="a"), bound(job="b"):
            log.info("inside")
            thread = threading.Thread(target=copy_context().run, args=(lambda: log.info("thread"),))
            thread.start()
            thread.join()
        log.info("outside")
    assert [(one["event"], one.get("run"), one.get("job")) for one in events] == [
        ("inside", "1", "b"),
        ("thread", "1", "b"),
        ("outside", None, None),
    ]


def test_json_lines_have_event_level_and_timestamp() -> None:
    with bound(run="r", rows=0):
        lines = written(io.StringIO(), rows=64, what=KeyError("x")).splitlines()
    first, second = map(json.loads, lines)
    assert list(first) == ["rows", "what", "event", "run", "level", "timestamp"]
    assert (first["rows"], first["what"], first["level"]) == (64, "KeyError('x')", "info")
    assert first["timestamp"].endswith("Z")
    assert (second["event"], second["level"]) == ("loud.event", "warning")


@pytest.mark.parametrize(("level", "count"), [("debug", 3), ("info", 2), ("warning", 1)])
def test_what_is_below_the_level_is_not_written(level: str, count: int) -> None:
    assert len(written(io.StringIO(), level=level).splitlines()) == count


@pytest.mark.parametrize("form", ["json", "console"])
def test_secrets_are_not_written(form: str) -> None:
    assert "hidden" not in written(io.StringIO(), form=form, password="hidden", options=[{"token": "hidden"}])  # noqa: S106


def test_a_terminal_gets_lines_for_people() -> None:
    lines = written(Terminal(), rows=64).splitlines()
    assert "usual.event" in lines[0]
    assert "rows=64" in lines[0]
    assert not lines[0].startswith("{")
    assert written(Terminal(), form="json").startswith("{")
