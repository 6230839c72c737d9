"""Files on web servers: what is fetched, and where no redirect may lead. Every server is on this machine."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.web import Server, running

from ortdeploy import retries
from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files import web
from ortdeploy.files.network_policy import ANYWHERE, reachable
from ortdeploy.files.object_store import fetch_file
from ortdeploy.retries import limited


@pytest.fixture
def server() -> Iterator[Server]:
    with running() as one:
        yield one


def test_a_file_is_looked_at_and_fetched_with_its_user_and_its_query(server: Server, tmp_path: Path) -> None:
    server.replies["/a b.csv"] = server.replies["/a%20b.csv"] = (200, {"ETag": '"1"'}, b"x\n1\n")
    url = server.url("/a b.csv?sig=s%2F1", "me:p%40ss@")
    assert web.look(url) == web.WebFile(4, '"1"')
    web.fetch(url, tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"x\n1\n"
    assert server.asked[-1] == ("GET", "/a%20b.csv?sig=s%2F1", "Basic bWU6cEBzcw==")


def test_what_is_not_there_is_nothing_and_another_answer_is_an_error(server: Server, tmp_path: Path) -> None:
    assert web.look(server.url("/none")) is None
    assert web.list_files(server.url("/none")) == []
    server.replies["/no"] = (403, {}, b"")
    with pytest.raises(OSError, match="the server answers 403"):
        web.look(server.url("/no"))
    server.replies["/cut"] = (200, {"Content-Length": "9"}, b"1234")
    with pytest.raises(OSError, match="ended after 4 of 9 bytes"):
        web.fetch(server.url("/cut"), tmp_path / "cut")


@pytest.mark.parametrize(("answer", "attempts"), [(503, 3), (429, 3), (403, 1)])
def test_a_server_that_is_busy_is_asked_again(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int, attempts: int
) -> None:
    monkeypatch.setattr(retries, "_wait", lambda _seconds, _stop: None)
    server.replies["/busy"] = (answer, {}, b"")
    with limited(2, lambda: False), pytest.raises(OrtdeployError, match=f"the server answers {answer}"):
        fetch_file(server.url("/busy"), tmp_path / "a")
    assert len(server.asked) == attempts
    server.replies["/cut"] = lambda _: (
        200,
        {"Content-Length": "4"},
        b"1234" if len(server.asked) > attempts + 1 else b"1",
    )
    with limited(2, lambda: False):
        fetch_file(server.url("/cut"), tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"1234"


def test_a_server_that_knows_no_head_is_asked_for_the_file(server: Server) -> None:
    server.replies["/a"] = lambda method: (405, {}, b"") if method == "HEAD" else (200, {"ETag": "2"}, b"12")
    assert web.look(server.url("/a")) == web.WebFile(2, "2")


def test_a_page_of_links_is_a_folder(server: Server) -> None:
    page = (
        b'<a href="b.csv">b</a><a href="/in/a.csv">a</a><a href="../x.csv">up</a><a href="deep/c.csv">c</a>'
        b'<a href="http://elsewhere.example/in/d.csv">d</a><a href="e.txt">e</a><a href="sub/">s</a>'
    )
    server.replies["/in/"] = (200, {}, page)
    user = "me:word@"
    assert web.list_files(server.url("/in/*.csv", user)) == [server.url(f"/in/{one}.csv", user) for one in "ab"]
    assert len(web.list_files(server.url("/in/"))) == 3


def test_a_redirect_is_followed_and_its_target_is_told_no_password(server: Server, tmp_path: Path) -> None:
    with running() as other:
        server.replies["/old"] = (302, {"Location": "/new"}, b"")
        server.replies["/new"] = (307, {"Location": other.url("/there")}, b"")
        other.replies["/there"] = (200, {}, b"rows")
        web.fetch(server.url("/old", "me:word@"), tmp_path / "a")
        assert (tmp_path / "a").read_bytes() == b"rows"
        assert [user is not None for _, _, user in server.asked] == [True, True]
        assert other.asked == [("GET", "/there", None)]


NOWHERE = [
    "http://169.254.169.254/latest/meta-data/",
    "http://2852039166/latest/",
    "http://0xa9fea9fe/latest/",
    "http://[::ffff:a9fe:a9fe]/latest/",
    "http://[64:ff9b::a9fe:a9fe]/latest/",
    "http://[fe80::1]/x",
    "http://[fd00:ec2::254]/latest/",
    "http://100.100.100.200/latest/",
    "http://0.0.0.0/x",
]


@pytest.mark.parametrize("target", NOWHERE)
def test_no_redirect_leads_to_where_a_machine_finds_its_own_credentials(
    server: Server, tmp_path: Path, target: str
) -> None:
    server.replies["/a"] = (302, {"Location": target}, b"")
    with pytest.raises(OrtdeployError, match="finds its own credentials"):
        web.fetch(server.url("/a"), tmp_path / "a")
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://127.0.0.1/x", "", "gopher://127.0.0.1/x"])
def test_a_redirect_leads_to_a_web_server_or_nowhere(server: Server, tmp_path: Path, target: str) -> None:
    server.replies["/a"] = (302, {"Location": target}, b"")
    with pytest.raises(OrtdeployError, match="no address of a server"):
        web.fetch(server.url("/a"), tmp_path / "a")


def test_a_circle_of_redirects_ends(server: Server, tmp_path: Path) -> None:
    server.replies["/a"] = (302, {"Location": "/a"}, b"")
    with pytest.raises(OSError, match="sends on and on"):
        web.fetch(server.url("/a"), tmp_path / "a")


def names(monkeypatch: pytest.MonkeyPatch, known: dict[str, str]) -> None:
    def getaddrinfo(host: str, port: int, *_: object, **__: object) -> list[tuple[Any, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (known[host], port))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


def test_a_name_that_leads_to_such_an_address_is_refused_by_what_it_leads_to(monkeypatch: pytest.MonkeyPatch) -> None:
    names(monkeypatch, {"data.example": "169.254.169.254"})
    with pytest.raises(OrtdeployError, match=r"data\.example leads to 169\.254\.169\.254"):
        web.look("http://data.example/a")


@pytest.mark.parametrize(
    ("near", "most", "refused"),
    [
        ("93.184.215.14", 0, False),
        ("10.0.0.7", 0, True),
        ("192.168.1.7", 1, False),
        ("127.0.0.1", 0, True),
        ("127.0.0.1", 1, True),
        ("127.0.0.1", ANYWHERE, False),
        ("100.64.0.9", 0, True),
    ],
)
def test_a_server_sends_on_to_one_as_far_away_or_farther(
    monkeypatch: pytest.MonkeyPatch, near: str, most: int, refused: bool
) -> None:
    names(monkeypatch, {"next.example": near})
    if refused:
        with pytest.raises(OrtdeployError, match="nearer than the server"):
            reachable("next.example", 80, most)
    else:
        assert reachable("next.example", 80, most) == [near]


def test_a_server_of_the_internet_cannot_send_on_to_this_machine(
    monkeypatch: pytest.MonkeyPatch, server: Server, tmp_path: Path
) -> None:
    """The server here plays one of the internet: its name's address is looked at, and the connection is led here."""
    names(monkeypatch, {"far.example": "93.184.215.14", "127.0.0.1": "127.0.0.1"})
    connect = socket.create_connection
    monkeypatch.setattr(socket, "create_connection", lambda to, **more: connect(("127.0.0.1", to[1]), **more))
    server.replies["/a"] = (302, {"Location": server.url("/secret")}, b"")
    with pytest.raises(OrtdeployError, match=r"127\.0\.0\.1, which is nearer"):
        web.fetch(f"http://far.example:{server.port}/a", tmp_path / "a")
    assert [path for _, path, _ in server.asked] == ["/a"]
