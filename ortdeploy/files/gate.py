"""The gate that every path and URL of a manifest, an overlay, an option or a saved plan goes through.

Local files must be below the manifest's folder or a root that the command line allows, whatever their names look like.
A URL must have a known scheme and be a single link; a chain of file systems could end anywhere.
"""

import ntpath
import os
import re
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError, did_you_mean
from ortdeploy.files.listing import links_below
from ortdeploy.files.urls import Url, decoded, is_chain, is_url, parse_url
from ortdeploy.redaction import remember_secret, shown_path


class Use(StrEnum):
    """The purpose for which a path is named."""

    READ = "read"
    WRITE = "written"
    LOCAL = "local"
    FETCH = "fetched"
    POST = "posted to"


class Scheme(Struct, frozen=True, kw_only=True):
    """A kind of URL: the package that opens it beside fsspec, whether it takes outputs, and whether it names a server.

    `package` None: ortdeploy itself opens it. `decides`: of two processes that create the same object, one is refused.
    """

    package: str | None
    writable: bool = True
    has_server: bool = False
    has_user: bool = False
    decides: bool = False


SCHEMES: dict[str, Scheme] = {
    "s3": Scheme(package="s3fs", decides=True),
    "s3a": Scheme(package="s3fs", decides=True),
    "gs": Scheme(package="gcsfs", decides=True),
    "gcs": Scheme(package="gcsfs", decides=True),
    "az": Scheme(package="adlfs", decides=True),
    "abfs": Scheme(package="adlfs", decides=True),
    "abfss": Scheme(package="adlfs", decides=True),
    "hf": Scheme(package="huggingface_hub", writable=False),
    "https": Scheme(package=None, writable=False, has_server=True, has_user=True),
    "http": Scheme(package=None, writable=False, has_server=True, has_user=True),
    "sftp": Scheme(package="paramiko", has_server=True, has_user=True),
    "ssh": Scheme(package="paramiko", has_server=True, has_user=True),
}
"""The URLs that are taken; nothing else is."""

_LOCAL = frozenset({"file", "local"})
_POSTED_TO = frozenset({"http", "https"})


def objection(path: str, use: Use) -> str | None:
    """Say in full sentences why the text of a path or URL is not allowed; None if it is."""
    if not is_url(path):
        if use is Use.POST:
            return f'"{path}" is no URL. Write the address of a server: https://example.org/hook.'
        return "A path holds no NUL." if "\0" in path else None
    url = parse_url(path)
    local = _local_spelling(path, url)
    if local is not None:
        is_behind = "://" in path.partition("::")[0] and is_chain(path)  # its end may hold a secret of that URL
        like = "" if is_behind else f', like "{local}"'
        return (
            f'"{url}" is a local path, however it is written. Write it as a path, relative to the manifest{like}; it '
            "must lie below the manifest or an --allow-root."
        )
    if is_chain(path):
        return (
            f'"{url}" is a chain of file systems, and a chain can lead anywhere. Name the files themselves; unpack '
            f"what is packed. {_ESCAPE}"
        )
    if url.scheme not in SCHEMES:
        return f'"{url}" has the scheme {url.scheme}, which is not taken. {did_you_mean(url.scheme, SCHEMES)} {_ESCAPE}'
    if use is Use.LOCAL:
        return f'"{url}" is a URL, and this must be a local file. Fetch it, and name the file.'
    return _objection_to_parts(url, use)


_ESCAPE = "A local file that is called so is written with ./ before its name."


def _objection_to_parts(url: Url, use: Use) -> str | None:
    scheme = SCHEMES[url.scheme]
    no_host = scheme.has_server and not url.host
    if not url.is_clear or no_host or " " in url.host or re.search(r"[\x00-\x1f\x7f\\]", url.full):
        return f'"{url}" cannot be read as a URL. Write signs such as / and @ of a password as %2F and %40.'
    if url.has_user and not scheme.has_user:
        return f'"{url}" names a user, whom {url.scheme} takes from no URL. {scheme.package} has settings of its own.'
    if use is Use.POST and url.scheme not in _POSTED_TO:
        return f'"{url}" is no address to which a message can be posted: write an https:// one.'
    if use is Use.FETCH and (url.has_user or url.has_query):
        return (
            f'"{url}" has a user or a query, and plans and reports name models and adapters as they are written here. '
            "Leave it out: packages of object stores have settings for credentials of their own."
        )
    if use is Use.WRITE and not scheme.writable:
        return f'"{url}" cannot be written to: {url.scheme} is for reading.'
    if use is Use.WRITE and url.has_query:
        return f'"{url}" has a query, and an output is a folder of many files. Leave the query out.'
    if not scheme.has_server:
        return None
    from ortdeploy.files.network_policy import why_forbidden  # noqa: PLC0415  few deployments name a server

    why_not = why_forbidden(url.host)
    return None if why_not is None else f'"{url}" leads to {why_not}'


def _local_spelling(path: str, url: Url) -> str | None:
    """Return the local path to which a URL or a chain leads; None if it leads elsewhere."""
    for link in path.split("::"):
        scheme, mark, rest = link.partition("://")
        if mark and scheme.lower() in _LOCAL:
            return shown_path(decoded(rest).removeprefix("localhost")) or "."
    return path.partition(":")[2] if url.scheme in _LOCAL else None


def admit(path: str, use: Use) -> Url:
    """Return a URL that may be opened. Raises OrtdeployError for any other, and for a local path."""
    why = objection(path, use)
    if why is not None or not is_url(path):
        raise OrtdeployError((why or f'"{path}" is no URL.').rstrip("."))
    url = parse_url(path)
    for secret in url.secrets:
        remember_secret(secret)
    return url


def decides(url: str) -> bool:
    """Return whether stores of a kind let only the first of two processes create an object."""
    scheme = SCHEMES.get(parse_url(url).scheme)
    return scheme is not None and scheme.decides


def leaves_as_text(path: str, folder: str, roots: Sequence[str]) -> bool:
    """Return whether the text of a local path leads out of the tree, on this system or on Windows."""
    full = os.path.normpath(os.path.join(folder, path))  # noqa: PTH118  joined as text, nothing is looked at
    allowed = map(os.path.normpath, (folder, *roots))  # of ../digits.yaml the folder ends in ..
    if not any(f"{full}{os.sep}".startswith(root.rstrip(os.sep) + os.sep) for root in allowed):
        return True
    return os.name != "nt" and not path.startswith("/") and _leaves_on_windows(path)


def _leaves_on_windows(path: str) -> bool:
    """Return whether a path is one of Windows, on a drive or a share, or goes up there; elsewhere, a:b is a name."""
    on_drive = re.match(r"(?s)[A-Za-z]:(/|.*\\)", path) is not None
    return on_drive or path.startswith("\\") or ("\\" in path and ntpath.normpath(path).startswith(".."))


def outside(path: str, roots: Sequence[str]) -> bool:
    """Return whether a local path leads out of every root once links are followed."""
    real = Path(os.path.realpath(path))  # unlike Path.resolve, no exception for a link to itself
    return not any(real.is_relative_to(os.path.realpath(root)) for root in roots)


def first_outside(paths: Iterable[str], roots: Sequence[str]) -> str | None:
    """Return the first of many local paths that leads out of every root; URLs are let through."""
    guard = PathGuard(roots)
    for path in paths:
        if not is_url(path) and guard.is_left_by(path, is_link=os.path.islink(path)):  # noqa: PTH114  many
            return path
    return None


class PathEscapesError(OrtdeployError):
    """A path leads out of every root, by its own name or through a link."""

    def __init__(self, path: str, *, by_link: bool = False) -> None:
        how = " is a link, or lies behind one, that" if by_link else ""
        super().__init__(f"{path}{how} leads out of the manifest's folder tree. Allow its root with --allow-root")


class PathGuard:
    """Tells of many local paths whether they lead out of every root; a folder is looked at once."""

    def __init__(self, roots: Sequence[str]) -> None:
        self._roots = roots
        self._folders: dict[str, bool] = {}

    def is_left_by(self, path: str, *, is_link: bool) -> bool:
        """Return whether a path leads out."""
        folder, name = _split(path)
        if is_link or name in {"", ".", ".."}:
            return outside(path, self._roots)
        if folder not in self._folders:
            self._folders[folder] = outside(folder, self._roots)
        return self._folders[folder]


def _split(path: str) -> tuple[str, str]:
    """Return a path's folder and its name, as `os.path.split` does in three times as long."""
    if os.altsep:
        return os.path.split(path)
    end = path.rfind(os.sep) + 1
    return path[:end], path[end:]


def require_inside(paths: Iterable[str], roots: Sequence[str]) -> None:
    """Raise OrtdeployError if a path of a plan leads out of its tree, or is a URL that is not allowed."""
    named = list(paths)
    stray = first_outside(named, roots)
    if stray is not None:
        raise PathEscapesError(stray)
    for path in filter(is_url, named):
        admit(path, Use.READ)


def link_out(folder: Path, roots: Sequence[str], *, skipped: str = "") -> str | None:
    """Return a link in a folder, at any depth, that leads out of it and of the roots; one subfolder may be skipped."""
    allowed = (os.path.realpath(folder), *roots)
    return next((path for path in links_below(os.fspath(folder), skipped) if outside(path, allowed)), None)
