"""A web server on this machine, for tests: it answers by path, and remembers what it was asked."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Reply = tuple[int, dict[str, str], bytes]


class Server:
    """What it answers, by path without query; 404 to everything else."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply | Callable[[str], Reply]] = {}
        self.asked: list[tuple[str, str, str | None]] = []
        self.posted: list[bytes] = []
        self.port = 0

    def url(self, path: str, user: str = "") -> str:
        return f"http://{user}127.0.0.1:{self.port}{path}"

    def reply(self, method: str, path: str, headers: Any) -> Reply:
        self.asked.append((method, path, headers.get("Authorization")))
        found = self.replies.get(path.partition("?")[0], (404, {}, b""))
        return found(method) if callable(found) else found


@contextmanager
def running() -> Iterator[Server]:
    server = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, headers, body = server.reply(self.command, self.path, self.headers)
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        do_HEAD = do_GET  # noqa: N815  its name

        def do_POST(self) -> None:
            server.posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        server.port = listening.server_port
        thread = Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown()
            thread.join()
