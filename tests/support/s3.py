"""An S3 server in a process of its own, and a proxy before it that is as bad as networks and stores are.

The server is moto's, or the one that ORTDEPLOY_S3_SERVER names: localbucket, which keeps objects as files.
"""

import http.client
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from support.waiting import wait_for

SERVER = "from moto.server import main; main(['-H', '127.0.0.1', '-p', '0'])"
KEYS = {
    "AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}  # fmt: skip

BUSY = "busy"
"""503 SlowDown, as a store answers that gets too much on one prefix; nothing is carried out."""
CONFLICT = "conflict"
"""409 ConditionalRequestConflict: another put of the same name is under way; nothing is carried out."""
BROKEN = "broken"
"""500 InternalError after it was carried out."""
CUT_BEFORE = "cut before"
"""The connection is cut before the request gets through."""
CUT_AFTER = "cut after"
"""The request is carried out, and the connection is cut before the answer."""
CUT_WITHIN = "cut within"
"""The connection is cut in the middle of the answer's body."""
IN_PIECES = "in pieces"
"""The answer comes in pieces of a few bytes each."""
CONDITION_UNNAMED = "condition unnamed"
"""The answer to a refused put does not name the condition, as only Amazon's does."""
UNCONDITIONAL = "unconditional"
"""The server does not know If-None-Match, and overwrites."""

FORBIDDEN = "forbidden"
"""403 AccessDenied."""

_ERRORS = {
    FORBIDDEN: (403, "AccessDenied"),
    BUSY: (503, "SlowDown"),
    CONFLICT: (409, "ConditionalRequestConflict"),
    BROKEN: (500, "InternalError"),
}
Request = tuple[str, str, dict[str, str]]
Faults = Callable[[Request], str | None]
"""Says of a request (method, path with query, headers by lower-case name) what befalls it.

The header `x-forwarded-for` has the address that it came from, as proxies write it.
"""


@dataclass
class Store:
    """A bucket behind a proxy, which is the `endpoint`. `faults` decides about each request; `asked` are those that came.

    `answered` counts those that were carried out, or not, for good: their senders may be gone by then.
    """

    port: int
    bucket: str
    system: Any
    endpoint: str
    faults: Faults = lambda _request: None
    asked: list[Request] = field(default_factory=list)
    answered: "SimpleQueue[None]" = field(default_factory=SimpleQueue)

    @property
    def is_idle(self) -> bool:
        return self.answered.qsize() == len(self.asked)

    def url(self, path: str) -> str:
        return f"s3://{self.bucket}/{path}"

    def put(self, path: str, data: bytes) -> None:
        self.system.pipe_file(f"{self.bucket}/{path}", data)

    def names(self, folder: str = "") -> list[str]:
        """The objects below a folder, by their names from it on."""
        self.system.invalidate_cache()
        start = f"{self.bucket}/{folder}".rstrip("/")
        return sorted(str(one).removeprefix(f"{start}/") for one in self.system.find(start))

    def read(self, path: str) -> bytes:
        return bytes(self.system.cat_file(f"{self.bucket}/{path}"))

    def parts(self, folder: str) -> dict[str, bytes]:
        return {name: self.read(f"{folder}/{name}") for name in self.names(folder) if name.startswith("part-")}


@contextmanager
def server() -> Iterator[int]:
    """Start the server; yield its port."""
    if os.environ.get("ORTDEPLOY_S3_SERVER") == "localbucket":
        with _localbucket() as port:
            yield port
        return
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, encoding="utf-8"
    )
    try:
        if process.stderr is None:
            raise AssertionError("a pipe was asked for")
        found = next((one for line in process.stderr if (one := re.search(r"http://127.0.0.1:(\d+)", line))), None)
        if found is None:
            raise AssertionError("moto's server did not start")
        reader = threading.Thread(target=process.stderr.read, daemon=True)
        reader.start()
        yield int(found[1])
    finally:
        process.kill()
        process.wait()
    reader.join()
    process.stderr.close()


@contextmanager
def _localbucket() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = int(probe.getsockname()[1])
    with tempfile.TemporaryDirectory(prefix="localbucket-") as folder:
        command = [str(Path(sys.executable).with_name("localbucket")), folder, "--port", str(port)]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_for(lambda: _answers(port))
            yield port
        finally:
            process.kill()
            process.wait()


def _answers(port: int) -> bool:
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def bucket(port: int, patch: pytest.MonkeyPatch, listening: socket.socket | None = None) -> Iterator[Store]:
    """Yield an empty bucket; who opens s3:// in this process or a child of it goes through the proxy.

    The proxy listens on this machine, or where `listening` does.
    """
    import s3fs  # noqa: PLC0415  skipped without it

    for name, value in KEYS.items():
        patch.setenv(name, value)
    direct = s3fs.S3FileSystem(endpoint_url=f"http://127.0.0.1:{port}", skip_instance_cache=True)
    place = listening or socket.create_server(("127.0.0.1", 0))
    host, own = place.getsockname()
    store = Store(port, f"b-{uuid.uuid4().hex[:12]}", direct, f"http://{host}:{own}")
    direct.mkdir(store.bucket)
    with _proxy(store, place):
        patch.setenv("AWS_ENDPOINT_URL", store.endpoint)
        s3fs.S3FileSystem.clear_instance_cache()
        yield store
        s3fs.S3FileSystem.clear_instance_cache()


_ALONE = threading.Lock()
"""Held while an object is created: moto looks for it and then writes it, and two threads may both find none."""


class _Proxy(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    store: Store

    def _any(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if headers.get("expect") == "100-continue":
            del headers["expect"]
        headers["x-forwarded-for"] = self.client_address[0]
        body = self._body(headers)
        request = (self.command, self.path, headers)
        self.store.asked.append(request)
        try:
            self._handle(request, headers, body)
        finally:
            self.store.answered.put(None)

    def _handle(self, request: Request, headers: dict[str, str], body: bytes) -> None:
        fault = self.store.faults(request)
        if fault == CUT_BEFORE:
            self._cut()
            return
        if fault in {BUSY, CONFLICT, FORBIDDEN}:
            self._error(*_ERRORS[fault])
            return
        status, answer, content = self._forward(headers, body, strips=fault == UNCONDITIONAL)
        if fault == CONDITION_UNNAMED:
            content = content.replace(b"<Condition>If-None-Match</Condition>", b"")
        if fault == BROKEN:
            self._error(*_ERRORS[fault])
        elif fault == CUT_AFTER:
            self._cut()
        else:
            self._answer(status, answer, content, fault)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _any  # noqa: N815  their names

    def _body(self, headers: dict[str, str]) -> bytes:
        if "chunked" not in headers.get("transfer-encoding", ""):
            return self.rfile.read(int(headers.get("content-length") or 0))
        pieces = []
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        del headers["transfer-encoding"]
        headers["content-length"] = str(sum(map(len, pieces)))
        return b"".join(pieces)

    def _forward(self, headers: dict[str, str], body: bytes, *, strips: bool) -> tuple[int, Any, bytes]:
        left = {name: value for name, value in headers.items() if not (strips and name == "if-none-match")}
        alone = _ALONE if "if-none-match" in left else nullcontext()
        with alone, closing(http.client.HTTPConnection("127.0.0.1", self.store.port)) as there:
            there.request(self.command, self.path, body=body, headers=left)
            answer = there.getresponse()
            return answer.status, answer.getheaders(), answer.read()

    def _answer(self, status: int, headers: Any, content: bytes, fault: str | None) -> None:
        self.send_response_only(status)
        skipped = {"content-length", "connection", "transfer-encoding"}
        size = next((value for name, value in headers if name.lower() == "content-length"), str(len(content)))
        for name, value in headers:
            if name.lower() not in skipped:
                self.send_header(name, value)
        self.send_header("Content-Length", size if self.command == "HEAD" else str(len(content)))
        self.end_headers()
        if fault == CUT_WITHIN:
            self.wfile.write(content[: len(content) // 2])
            self._cut()
        elif fault == IN_PIECES:
            for start in range(0, len(content), 7):
                self.wfile.write(content[start : start + 7])
                self.wfile.flush()
        else:
            self.wfile.write(content)

    def _cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(socket.SHUT_RDWR)

    def _error(self, status: int, code: str) -> None:
        text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self.send_response_only(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, handler: type[_Proxy]) -> None:
        super().__init__(listening.getsockname(), handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    def handle_error(self, *_: object) -> None:
        """Say nothing of connections that were cut."""


@contextmanager
def _proxy(store: Store, listening: socket.socket) -> Iterator[None]:
    with _Quiet(listening, type("Handler", (_Proxy,), {"store": store})) as serving:
        thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            serving.shutdown()


class Once:
    """Faults that befall the first requests that match, one each; then none does."""

    def __init__(self, method: str, pattern: str, *faults: str) -> None:
        self.method, self.faults = method, faults
        self._pattern, self._used = re.compile(pattern), 0

    @property
    def is_used_up(self) -> bool:
        return self._used == len(self.faults)

    def __call__(self, request: Request) -> str | None:
        method, path, _ = request
        if self.is_used_up or method != self.method or not self._pattern.search(path):
            return None
        self._used += 1
        return self.faults[self._used - 1]


def local_copies(folder: Path) -> list[str]:
    """The files with parts in a folder, at any depth."""
    return sorted(path.name for path in folder.rglob("*part-*") if path.is_file())
