"""Redirects of a store's endpoint are held against the gate for addresses, and its answers say what to do.

Nothing is ever sent to the addresses in question: a hook forbids the connection, and records it.
"""

import socket
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.s3 import KEYS

from ortdeploy import retries
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files import s3_gate
from ortdeploy.files.object_store import fetch_file, list_urls

s3fs = pytest.importorskip("s3fs")

CREDENTIALS = "169.254.169.254"
Answer = tuple[int, dict[str, str], bytes]


class Endpoint:
    """A server of this machine that answers every request with what `answer` returns for its path."""

    def __init__(self) -> None:
        self.answer: Callable[[str], Answer] = lambda _path: (200, {}, b"")
        self.asked: list[str] = []
        own = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                own.asked.append(self.path)
                status, headers, content = own.answer(self.path)
                self.send_response_only(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_HEAD = do_PUT = do_GET  # noqa: N815

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[Endpoint]:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    made = Endpoint()
    monkeypatch.setenv("AWS_ENDPOINT_URL", made.url)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.0)
    s3fs.S3FileSystem.clear_instance_cache()
    yield made
    s3fs.S3FileSystem.clear_instance_cache()
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(autouse=True)
def connections(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The addresses to which this process has tried to connect; all but this machine's are forbidden."""
    tried: list[str] = []

    class Guarded(socket.socket):
        def connect(self, address: Any) -> None:
            tried.append(str(address[0]))
            if not str(address[0]).startswith("127."):
                raise PermissionError(f"a test must not connect to {address[0]}")
            super().connect(address)

    monkeypatch.setattr(socket, "socket", Guarded)
    return tried


def error_of(status: int, code: str, headers: dict[str, str] | None = None) -> Answer:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>as the store has it</Message></Error>"
    return status, {"Content-Type": "application/xml", **(headers or {})}, text.encode()


def refusal(tmp_path: Path, url: str = "s3://bucket/x.bin") -> str:
    with pytest.raises(OrtdeployError) as raised:
        fetch_file(url, tmp_path / "x.bin")
    return str(raised.value)


HOSTS = (CREDENTIALS, "[::ffff:169.254.169.254]", "[fd00:ec2::254]", "0xa9fea9fe", "metadata.test", "0.0.0.0")  # noqa: S104


@pytest.mark.quick("169.254.169.254-307", "0xa9fea9fe-302", "metadata.test-307")
@pytest.mark.parametrize("status", [301, 302, 307, 308])
@pytest.mark.parametrize("host", HOSTS)
def test_a_redirect_to_where_a_machine_finds_its_credentials_is_not_followed(
    endpoint: Endpoint,
    connections: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    status: int,
) -> None:
    real = socket.getaddrinfo

    def found(name: Any, port: Any, *arguments: Any, **more: Any) -> Any:
        return real(CREDENTIALS if name == "metadata.test" else name, port, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    endpoint.answer = lambda _path: (status, {"Location": f"http://{host}/latest/meta-data"}, b"")
    said = refusal(tmp_path)
    assert "At such addresses a machine finds its own credentials" in said or status in {301, 308}, said
    assert set(connections) == {"127.0.0.1"}
    assert len(endpoint.asked) >= 1


def test_an_endpoint_whose_name_leads_there_is_not_asked(
    endpoint: Endpoint, connections: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = socket.getaddrinfo

    def found(name: Any, port: Any, *arguments: Any, **more: Any) -> Any:
        return real(CREDENTIALS if str(name).endswith("store.test") else name, port, *arguments, **more)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://store.test:9")
    s3fs.S3FileSystem.clear_instance_cache()
    assert "At such addresses a machine finds its own credentials" in refusal(tmp_path)
    assert connections == []
    assert endpoint.asked == []


def test_a_redirect_on_this_machine_is_followed(endpoint: Endpoint, tmp_path: Path) -> None:
    """As an S3 server of one's own may send to the node that has the object."""
    other = Endpoint()
    other.answer = lambda _path: (200, {"ETag": '"1"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}, b"content")
    endpoint.answer = lambda path: (307, {"Location": other.url + path}, b"")
    fetch_file("s3://bucket/x.bin", tmp_path / "x.bin")
    assert (tmp_path / "x.bin").read_bytes() == b"content"
    other.server.shutdown()
    other.server.server_close()


@pytest.mark.parametrize(
    ("here", "there", "words"),
    [
        ("http://8.8.8.8/a", "http://10.0.0.1/b", "nearer"),
        ("http://10.0.0.1/a", "http://127.0.0.1/b", "nearer"),
        ("http://8.8.8.8/a", "http://127.0.0.1/b", "nearer"),
        ("https://8.8.8.8/a", "http://8.8.8.8/b", "from https to http"),
        ("http://8.8.8.8/a", "http://8.8.4.4/b", None),
        ("http://127.0.0.1/a", "http://10.0.0.1/b", None),
        ("https://8.8.8.8/a", "/b", None),
    ],
)
def test_a_redirect_leads_as_far_away_or_farther(here: str, there: str, words: str | None) -> None:
    if words is None:
        s3_gate.require_redirect(here, there)
        return
    with pytest.raises(OrtdeployError, match=words):
        s3_gate.require_redirect(here, there)


@pytest.mark.quick(0, 4)
@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (404, "NoSuchBucket", "there is no such bucket: make it, or correct its name"),
        (403, "AccessDenied", "these credentials may not do that there"),
        (403, "InvalidAccessKeyId", "the store does not know the key"),
        (403, "SignatureDoesNotMatch", "the secret is not that of the key"),
        (403, "RequestTimeTooSkewed", "this machine's clock is wrong: set it"),
        (400, "ExpiredToken", "the credentials have expired: fetch new ones"),
        (400, "AuthorizationHeaderMalformed", "the bucket is in another region: set AWS_DEFAULT_REGION"),
        (400, "IllegalLocationConstraintException", "the bucket is in another region: set AWS_DEFAULT_REGION"),
    ],
)
def test_what_a_store_refuses_says_what_to_do(endpoint: Endpoint, status: int, code: str, words: str) -> None:
    endpoint.answer = lambda _path: error_of(status, code)
    with pytest.raises(OrtdeployError) as raised:
        list_urls("s3://bucket/in/*.npy")
    assert words in str(raised.value)


@pytest.mark.usefixtures("endpoint")
def test_without_credentials_the_variables_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    s3fs.S3FileSystem.clear_instance_cache()
    assert "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY" in refusal(tmp_path)


def test_a_missing_object_is_no_missing_bucket(endpoint: Endpoint, tmp_path: Path) -> None:
    endpoint.answer = lambda _path: error_of(404, "NoSuchKey")
    assert refusal(tmp_path) == "s3://bucket/x.bin cannot be read: there is no such file"


def test_settings_of_the_user_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from fsspec.config import conf  # noqa: PLC0415

    monkeypatch.setitem(conf, "s3", {"config_kwargs": {"read_timeout": 5, "connector_args": {"force_close": True}}})
    settings = s3_gate.gated_settings()["config_kwargs"]
    assert settings["read_timeout"] == 5
    assert settings["connector_args"]["force_close"] is True
    assert callable(settings["connector_args"]["socket_factory"])
