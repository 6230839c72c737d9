"""Spans of jobs, parts and batches: what a collector gets, and that nobody else pays for them."""

import gzip
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fakes import FakeRuntime, double, refuse_negative
from support.inbox import Inbox
from support.jobs import execute, plan_for, save
from support.logs import capture_logs
from support.power_loss import execute_there
from support.web import Server, running

from ortdeploy.diagnostics import ProviderFailedError
from ortdeploy.process import tracing
from ortdeploy.results.results import Status
from ortdeploy.sessions.runs import SessionRuns


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_SDK_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    made = tracing.tracer_provider
    made.cache_clear()
    yield
    made.cache_clear()


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    with running() as server:
        server.replies["/v1/traces"] = (200, {}, b"")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url(""))
        yield server
        tracing.tracer_provider().shutdown()


def spans(server: Server) -> list[Any]:
    proto = importlib.import_module("opentelemetry.proto.collector.trace.v1.trace_service_pb2")

    found = []
    for body in server.posted:
        plain = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        request = proto.ExportTraceServiceRequest.FromString(plain)
        found += [span for one in request.resource_spans for scope in one.scope_spans for span in scope.spans]
    return found


def told(span: Any) -> dict[str, Any]:
    return {
        one.key.removeprefix("ortdeploy."): one.value.string_value or one.value.int_value for one in span.attributes
    }


@pytest.mark.process
def test_a_collector_gets_a_job_with_its_parts_and_batches(tmp_path: Path, collector: Server) -> None:
    save(tmp_path, range(19))
    assert execute(tmp_path, plan_for(tmp_path, 19), FakeRuntime(double)).status is Status.DONE
    found = spans(collector)
    (job,) = [span for span in found if span.name == "job"]
    assert told(job) | {"run": ""} == {
        "deployment": "m", "job": "run", "model": "m", "run": "", "status": "done", "committed": 19, "failed": 0,
        "skipped": 0,
    }  # fmt: skip
    parts, batches = ([span for span in found if span.name == name] for name in ("part", "batch"))
    assert [(told(one)["part"], told(one)["rows"]) for one in parts] == [(0, 8), (1, 8), (2, 3)]
    assert sum(told(one)["rows"] for one in batches) == 19
    for one in (*parts, *batches):
        assert one.parent_span_id == job.span_id
        assert job.start_time_unix_nano <= one.start_time_unix_nano <= one.end_time_unix_nano
        assert one.end_time_unix_nano <= job.end_time_unix_nano


@pytest.mark.process
def test_a_job_that_fails_is_an_error(tmp_path: Path, collector: Server) -> None:
    save(tmp_path, [-1.0, 2.0])
    assert execute(tmp_path, plan_for(tmp_path, 2), FakeRuntime(refuse_negative)).status is Status.FAILED
    (job,) = [span for span in spans(collector) if span.name == "job"]
    assert job.status.code == 2
    assert "1 row" in job.status.message


@pytest.mark.process
@pytest.mark.parametrize("ends", ["done", "early"])
def test_rows_that_run_again_are_in_the_span_of_their_job(tmp_path: Path, collector: Server, ends: str) -> None:
    inbox = Inbox(tmp_path).make()
    inbox.put("a", [1, 2, 3, 4, 5, 6])
    inbox.apply()
    collector.posted.clear()
    inbox.put("a", [7, 8, 9, 10, 11, 12])
    inbox.put("b", [13])

    def double_until_the_end(feeds: Any) -> Any:
        if ends == "early" and (feeds["x"] == 11).any():
            raise ProviderFailedError("the device is gone")
        return double(feeds)

    ended = Status.DONE if ends == "done" else Status.FAILED
    execute_there(tmp_path, inbox.plan(), FakeRuntime(double_until_the_end), ends=[ended])
    (job,) = [span for span in spans(collector) if span.name == "job"]
    assert told(job)["status"] == str(ended)
    below = [span for span in spans(collector) if span.parent_span_id == job.span_id]
    parts = [(told(one)["part"], told(one)["rows"]) for one in below if one.name == "part"]
    assert parts == ([(0, 4), (1, 2), (2, 1)] if ends == "done" else [(0, 4)])
    assert sum(told(one)["rows"] for one in below if one.name == "batch") == (7 if ends == "done" else 4)
    assert all(job.start_time_unix_nano <= one.start_time_unix_nano for one in below)


def test_without_a_collector_no_batch_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "JobTrace", lambda *_: pytest.fail("nobody asked for spans"))
    noted: list[int] = []
    settle = SessionRuns.settle

    def settle_and_look(runs: SessionRuns) -> None:
        noted.append(len(runs._spans))  # noqa: SLF001  what would become spans
        settle(runs)

    monkeypatch.setattr(SessionRuns, "settle", settle_and_look)
    save(tmp_path, range(19))
    assert execute(tmp_path, plan_for(tmp_path, 19), FakeRuntime(double)).status is Status.DONE
    assert set(noted) == {0}


@pytest.mark.parametrize("variables", [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x", "OTEL_SDK_DISABLED": "true"}])
def test_without_a_collector_nothing_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(tracing, "tracer_provider", lambda: pytest.fail("nobody asked for spans"))
    save(tmp_path, range(4))
    assert execute(tmp_path, plan_for(tmp_path, 4), FakeRuntime(double)).status is Status.DONE


def test_without_the_packages_the_job_runs_and_the_log_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    save(tmp_path, range(4))
    with capture_logs() as logs:
        assert execute(tmp_path, plan_for(tmp_path, 4), FakeRuntime(double)).status is Status.DONE
    (said,) = [one for one in logs if one["event"] == "traces.unsent"]
    assert "ortdeploy[otel]" in said["reason"]
