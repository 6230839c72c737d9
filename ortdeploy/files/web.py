"""Reads files on web servers with the standard library, and checks each redirect before following it.

A server that the manifest names may be anywhere, also in this machine's network. It may redirect to an address that is
as far away or farther, never to a nearer one, and never from https to http. A user and password are sent only to the
server whose URL has them.
"""

import fnmatch
import http.client
import re
import socket
import ssl
from base64 import b64encode
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cache
from html.parser import HTMLParser
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.network_policy import ANYWHERE, nearness, reachable
from ortdeploy.files.urls import parse_url

_SECONDS = 60.0
_MOST_REDIRECTS = 10
_REDIRECTS = frozenset({301, 302, 303, 307, 308})
_GONE = frozenset({404, 410})
_NO_HEAD = frozenset({405, 501})
_BLOCK = 1 << 20
_MOST_OF_A_LIST = 16 << 20
_PLAIN = "%/:=&?~+!$,;'@()*[]"


class ServerError(OSError):
    """A server answers with a status that is not success."""

    def __init__(self, answer: http.client.HTTPResponse) -> None:
        super().__init__(f"the server answers {answer.status} {answer.reason}")
        self.status = answer.status


class WebFile(Struct, frozen=True):
    """The answer of a server about a file: its size in bytes, if given, and a version that changes with its content."""

    size: int | None
    version: str


def look(url: str) -> WebFile | None:
    """Return what a server says about a file; None if it has none. Raises OrtdeployError, OSError."""
    try:
        with _answer(url, "HEAD") as answer:
            return WebFile(_size(answer), answer.headers.get("ETag") or answer.headers.get("Last-Modified") or "")
    except FileNotFoundError:
        return None


def fetch(url: str, target: Path) -> None:
    """Download a file from a server into a local file. Raises OrtdeployError, OSError."""
    with _answer(url, "GET") as answer, target.open("wb") as file:
        try:
            while block := answer.read(_BLOCK):
                file.write(block)
        except http.client.IncompleteRead as error:
            raise ConnectionError(f"the connection ended after {file.tell()} bytes") from error
        size, written = _size(answer), file.tell()
    if size is not None and written != size:
        raise ConnectionError(f"the connection ended after {written} of {size} bytes")


def post(url: str, content: bytes, *, seconds: float) -> None:
    """Send JSON to a server without following redirects; each step may take at most `seconds`.

    Raises OrtdeployError, OSError.
    """
    addresses = reachable(*_origin(url)[1:], ANYWHERE)
    with closing(_connect(url, addresses, seconds)) as connection:
        headers = {**_headers(url, _user_of(url)), "Content-Type": "application/json"}
        try:
            connection.request("POST", _target(url), body=content, headers=headers)
            answer = connection.getresponse()
        except http.client.HTTPException as error:
            raise OSError(f"the server does not speak HTTP: {error!r}") from error
        if not http.HTTPStatus.OK <= answer.status < http.HTTPStatus.MULTIPLE_CHOICES:
            raise ServerError(answer)


def list_files(pattern: str) -> list[str]:
    """Return the files that a URL names: one file, the links of a folder's page (URL ends in /), or a glob's matches.

    Raises OrtdeployError, OSError.
    """
    parts = urlsplit(pattern)
    folder, _, name = parts.path.rpartition("/")
    if re.search(r"[*\[]", folder):
        raise OrtdeployError(f"a server's folders cannot be searched; write a glob in the last part of {pattern}")
    if name and not re.search(r"[*\[]", name):
        return [pattern] if look(pattern) is not None else []
    base = parts._replace(path=f"{folder}/", query="", fragment="").geturl()
    with _answer(base, "GET") as answer:
        page = answer.read(_MOST_OF_A_LIST).decode("utf-8", errors="replace")
    return sorted(
        f"{base}{found}" for found in _names_in(page, base) if not name or fnmatch.fnmatchcase(unquote(found), name)
    )


def _names_in(page: str, base: str) -> Iterator[str]:
    """Yield the names of files directly below a folder that its page links to."""
    links = _Links()
    links.feed(page)
    path = urlsplit(base).path
    for link in dict.fromkeys(links.found):
        there = urlsplit(urljoin(parse_url(base).shown, link))
        if there.netloc == urlsplit(parse_url(base).shown).netloc and there.path.startswith(path):
            found = there.path.removeprefix(path)
            if found and "/" not in found:
                yield found


class _Links(HTMLParser):
    """Collects the links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found += [value for key, value in attrs if tag == "a" and key == "href" and value]


def _size(answer: http.client.HTTPResponse) -> int | None:
    text = answer.headers.get("Content-Length", "")
    return int(text) if text.isdecimal() else None


@contextmanager
def _answer(url: str, method: str) -> Iterator[http.client.HTTPResponse]:
    """Request a file, and follow allowed redirects. Raises OrtdeployError, OSError."""
    most, user = ANYWHERE, _user_of(url)
    origin = _origin(url)
    for _ in range(_MOST_REDIRECTS):
        addresses = reachable(*_origin(url)[1:], most)
        most = min(most, *(nearness(ip_address(one)) for one in addresses))
        with closing(_connect(url, addresses)) as connection:
            connection.request(method, _target(url), headers=_headers(url, user if _origin(url) == origin else None))
            with connection.getresponse() as answer:
                if answer.status in _REDIRECTS:
                    url = _next(url, answer.headers.get("Location", ""))
                elif method == "HEAD" and answer.status in _NO_HEAD:
                    method = "GET"
                elif answer.status in _GONE:
                    raise FileNotFoundError(f"the server answers {answer.status}")
                elif answer.status != http.HTTPStatus.OK:
                    raise ServerError(answer)
                else:
                    yield answer
                    return
    raise OSError("the server sends on and on")


def _next(url: str, location: str) -> str:
    """Return the target of a redirect. Raises OrtdeployError if it is not allowed."""
    there = urljoin(url, location)
    parts = urlsplit(there)
    if not location or parts.scheme not in {"http", "https"} or not parts.hostname:
        raise OrtdeployError("the server sends on to what is no address of a server")
    if urlsplit(url).scheme == "https" and parts.scheme == "http":
        raise OrtdeployError(f"the server sends on from https to http, at {parts.hostname}")
    return there


def _origin(url: str) -> tuple[str, str, int]:
    parts = urlsplit(url)
    return parts.scheme, parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _user_of(url: str) -> str | None:
    """Return the header with a URL's user and password; None without a user."""
    user, at, _ = urlsplit(url).netloc.rpartition("@")
    return f"Basic {b64encode(unquote(user).encode()).decode()}" if at else None


def _headers(url: str, user: str | None) -> dict[str, str]:
    netloc = urlsplit(url).netloc.rpartition("@")[2]
    own = {"Host": netloc, "Accept-Encoding": "identity", "User-Agent": "ortdeploy"}
    return own if user is None else {**own, "Authorization": user}


def _target(url: str) -> str:
    parts = urlsplit(url)
    return quote(parts.path or "/", safe=_PLAIN) + (f"?{quote(parts.query, safe=_PLAIN)}" if parts.query else "")


def _connect(url: str, addresses: list[str], seconds: float = _SECONDS) -> http.client.HTTPConnection:
    """Return a connection to one of the checked addresses, and to no other. Raises OSError."""
    scheme, host, port = _origin(url)
    connection = http.client.HTTPConnection(host, port, timeout=seconds)
    failed: OSError | None = None
    for address in addresses:
        try:
            plain = socket.create_connection((address, port), timeout=seconds)
        except OSError as error:
            failed = error
            continue
        connection.sock = _trust().wrap_socket(plain, server_hostname=host) if scheme == "https" else plain
        return connection
    raise failed or OSError("the server has no address")


@cache
def _trust() -> ssl.SSLContext:
    return ssl.create_default_context()
