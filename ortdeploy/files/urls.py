"""Parses URLs, and nothing else does: how to open them, and how to show them without secrets.

A URL can hold secrets: a user with a password before the host, and signatures and tokens in its query. They are found
by their position, never by how they look, and a shown URL has none of them.
"""

import os
import re
from collections.abc import Sequence
from hashlib import sha256

from msgspec import Struct

MASK = "***"
# These are compiled when they are first needed, which takes as long as all else here: most jobs have no URL.
_SCHEME = r"(?i)([a-z][a-z0-9+._-]+):(?=//|:)|(data):(?=[^/\\])"
_WEB_QUERY = r"(?s)[?#].*"
_STORE_QUERY = r"(?s)\?[\w.~%$\[\]-]*=.*|#query-[0-9a-f]{8}\Z"
_DIGEST_OF_QUERY = r"#query-[0-9a-f]{8}\Z"
_PORT = r":[0-9]*\Z"
_WEB = frozenset({"http", "https"})
_CONTAINERS = frozenset({"az", "abfs", "abfss"})
_BETWEEN_LINKS = "::"
_BRACKETS = r"(?<=:)//([^/?#@]*@)?\[[0-9A-Fa-f:.]*\]"
_LONG_ENOUGH = 4  # characters from which a secret is looked for in other people's words: a 1 is everywhere


class Url(Struct, frozen=True, kw_only=True):
    """A URL: `full` opens it, `shown` has no secrets, and `secrets` are the texts that only `full` has.

    `host` is the name of a server or a bucket. `is_clear` is false if the parts cannot be told apart.
    """

    full: str
    shown: str
    scheme: str
    host: str
    secrets: tuple[str, ...]
    has_user: bool
    has_query: bool
    is_clear: bool

    def __repr__(self) -> str:
        """Return `shown`, because a traceback or a log line may have it."""
        return f"Url({self.shown})"

    def __str__(self) -> str:
        """Return `shown`."""
        return self.shown

    def mask(self, text: str) -> str:
        """Return a text of somebody else about this URL, without its secrets."""
        text = text.replace(self.full, self.shown)
        for secret in sorted(self.secrets, key=len, reverse=True):
            text = text.replace(secret, MASK)
        return text


def decoded(text: str) -> str:
    """Return a text with the signs that %XX stands for."""
    from urllib.parse import unquote  # noqa: PLC0415  few deployments have URLs

    return unquote(text)


def encoded(text: str) -> str:
    """Return a text that is one part of a path: every sign that may mean something there becomes %XX."""
    from urllib.parse import quote  # noqa: PLC0415  few deployments have URLs

    return quote(text, safe="")


def is_url(text: str) -> bool:
    """Return whether a path of a manifest is a URL, of whatever scheme; one letter and a colon are a drive."""
    return ":" in text and re.match(_SCHEME, text) is not None  # asked of each of many files


def path_from_here(folder: str, path: str) -> str:
    """Return a path of a manifest in `folder` as a shell in the current folder takes it; a URL as it is."""
    if is_url(path):
        return path
    whole = os.path.abspath(os.path.join(folder, path))  # noqa: PTH100, PTH118  keeps links
    try:
        return min(os.path.relpath(whole), whole, key=len)  # noqa: TID251  as the system's shell writes it
    except (OSError, ValueError):  # the current folder is gone, or on another drive
        return whole


def is_chain(text: str) -> bool:
    """Return whether a URL is a chain of file systems as in fsspec; an IPv6 address in brackets is none."""
    return _BETWEEN_LINKS in re.sub(_BRACKETS, "//", text, count=1)


def parse_url(text: str) -> Url:
    """Parse a URL. Every text for which `is_url` is true gives a Url, even if nobody can open it."""
    found = re.match(_SCHEME, text)
    scheme = (found[1] or found[2]).lower() if found else ""
    rest = text[found.end() :] if found else text
    if not rest.startswith("//") or is_chain(text):
        return _unclear(text, scheme)
    authority, slash, path = _split_authority(rest[2:])
    user, at, host = authority.rpartition("@")
    if at and scheme in _CONTAINERS and ":" not in user:
        user, at, host = "", "", authority  # a container at an account
    if ":" in re.sub(_PORT, "", host.rpartition("]")[2]) or (not at and ":" in host and "@" in path):
        return _unclear(text, scheme)  # most likely a password with a slash in it
    path, query = _split_query(path, scheme)
    kept = query if re.match(_DIGEST_OF_QUERY, query) else ""
    return Url(
        full=f"{scheme}://{rest[2:]}",
        shown=f"{scheme}://{host}{slash}{path}{kept}",
        scheme=scheme,
        host=re.sub(_PORT, "", host).strip("[]").lower() if scheme not in _CONTAINERS else host,
        secrets=_secrets(user, "" if kept else query),
        has_user=bool(at),
        has_query=query.startswith("?"),
        is_clear=True,
    )


def _split_authority(text: str) -> tuple[str, str, str]:
    end = next((place for place, sign in enumerate(text) if sign in "/?#\\"), len(text))
    return text[:end], text[end : end + 1] if text[end : end + 1] == "/" else "", text[end:].removeprefix("/")


def _split_query(path: str, scheme: str) -> tuple[str, str]:
    """Split off the query; in the name of an object on a store, a lone question mark matches any character."""
    found = re.search(_WEB_QUERY if scheme in _WEB else _STORE_QUERY, path)
    end = found.start() if found else len(path)
    return path[:end], path[end:]


def _secrets(user: str, query: str) -> tuple[str, ...]:
    """Return the texts of a user and of a query, both as written and decoded."""
    name, _, password = user.partition(":")
    values = [part.partition("=")[2] or part for part in re.split(r"[?&;#]", query) if part]
    written = [user, password or name, query, *values]
    return tuple(dict.fromkeys(one for text in written for one in (text, decoded(text)) if len(one) >= _LONG_ENOUGH))


def _unclear(text: str, scheme: str) -> Url:
    """Return a URL that shows only its scheme; a chain is shown if it has no place for secrets."""
    hides = scheme == "data" or re.search(r"[@?#]", text) is not None or not is_chain(text)
    return Url(
        full=text,
        shown=f"{scheme}:…" if hides else text,
        scheme=scheme,
        host="",
        secrets=(text,) if hides else (),
        has_user=False,
        has_query=False,
        is_clear=False,
    )


_IN_TEXT = r"""[A-Za-z][A-Za-z0-9+._-]+:(?://|:)[^\s"'<>|`{}]+"""
_ENDS_A_SENTENCE = ".,;:!)]"


def mask_urls(text: str) -> str:
    """Return a text in which every URL is replaced by its shown form."""
    return re.sub(_IN_TEXT, _shown_in_text, text) if "://" in text else text


def _shown_in_text(found: re.Match[str]) -> str:
    text = found[0].rstrip(_ENDS_A_SENTENCE)
    return f"{parse_url(text).shown if '://' in text else text}{found[0][len(text) :]}"


class Addresses(Struct, frozen=True):
    """The full URLs of one input, found by their shown names.

    URLs that differ only in their query are shown with a digest of it, so that each has a name of its own.
    """

    urls: tuple[tuple[str, Url], ...]

    def __repr__(self) -> str:
        """Return the names alone: full URLs may hold secrets."""
        return f"Addresses({', '.join(name for name, _ in self.urls)})"

    @classmethod
    def of(cls, patterns: Sequence[str]) -> "Addresses":
        """Take the paths of an input; local paths are skipped."""
        urls = dict.fromkeys(parse_url(one) for one in patterns if is_url(one))
        several = {url.shown for url in urls if sum(other.shown == url.shown for other in urls) > 1}
        return cls(tuple((_told_apart(url) if url.shown in several else url.shown, url) for url in urls))

    def shown(self, pattern: str) -> str:
        """Return the shown name of a URL of the input."""
        return next((name for name, url in self.urls if url.full == parse_url(pattern).full), parse_url(pattern).shown)

    def full(self, name: str) -> str:
        """Return the URL that opens a file; one that is not in the input gets the user that its host has there."""
        for known, url in self.urls:
            if known == name:
                return url.full
        wanted = parse_url(name)
        for _, url in self.urls:
            if url.has_user and (url.scheme, url.host) == (wanted.scheme, wanted.host):
                user = url.full.partition("://")[2].partition("/")[0].rpartition("@")[0]
                return f"{wanted.scheme}://{user}@{wanted.full.partition('://')[2]}"
        return name


def _told_apart(url: Url) -> str:
    """Return the shown URL with a digest of its query; the user is left out, as it does not change the object."""
    query = url.full.partition("?")[2]
    return f"{url.shown}#query-{sha256(query.encode()).hexdigest()[:8]}" if url.has_query else url.shown
