"""Files on object stores, by URLs such as s3://bucket/scans/*.png, through fsspec (extra `objects`).

Input files are fetched one after the other, when they are read, into a temporary folder, and deleted when the reader is
past them. An output is written to a folder beside the manifest, and each part is uploaded before it is committed: an
object appears whole or not at all, and every part that the ledger has committed is on the store.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, overload

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.gate import SCHEMES, Use, admit
from ortdeploy.files.json_text import read_json
from ortdeploy.files.names import BOUND, DECISIONS, MARK, MARKER, MIRRORS
from ortdeploy.files.opening import read_whole
from ortdeploy.files.s3_pages import matching_objects, objects_in
from ortdeploy.files.store_errors import advice_on
from ortdeploy.files.urls import Addresses, Url, decoded, encoded, is_url, parse_url
from ortdeploy.retries import persist
from ortdeploy.shell import pip_install

T = TypeVar("T")

_MAGIC = "*?["
_FETCHED_INTO: set[str] = set()
"""The temporary folders of fetched files. A file elsewhere is called what it is called, even if that begins with MARK.

They stay here when they are gone, because the name of a file may be shown later.
"""
_KEPT = 3  # files behind the one that is read: sources map files, and look back at most one
_LONGEST_NAME = 200


def mirror_of(url: str) -> str:
    """Return the folder beside the manifest in which an output is written before its upload."""
    return f"{MIRRORS}/{encoded(parse_url(url).shown.rstrip('/'))}"


def url_of_mirror(folder: Path) -> str | None:
    """Return the URL without secrets for whose output `mirror_of` returns a folder; None for any other folder."""
    url = decoded(folder.name)
    return url if folder.parent.as_posix().endswith(f"/{MIRRORS}") and is_url(url) else None


def shown_url(path: str) -> str | None:
    """Return the URL of a fetched file, without secrets; None for any other file."""
    folder, name = os.path.split(path)
    return decoded(name[len(MARK) :]) if folder in _FETCHED_INTO and name.startswith(MARK) else None


@contextmanager
def in_words(url: Url, what: str) -> Iterator[None]:
    """Turn errors of a store's package, which has classes of its own, into an OrtdeployError without secrets."""
    try:
        yield
    except ImportError as error:
        from importlib.util import find_spec  # noqa: PLC0415  only when something is wrong

        package = (find_spec("fsspec") and SCHEMES[url.scheme].package) or "ortdeploy[objects]"
        raise OrtdeployError(
            f"{url} needs a package that is not installed: {error}. Install it: {pip_install(package)}"
        ) from error
    except OrtdeployError:
        raise
    except Exception as error:
        refused = _refused_by_gate(error)
        said, advice = str(error) or type(error).__name__, None if refused else advice_on(error)
        if isinstance(error, FileNotFoundError):
            said, advice = advice or _missing(url, what), None
        why = f"{refused or url.mask(said)}{'' if advice is None else f'. In other words, {advice}'}"
        raise OrtdeployError(f"{url} cannot be {what}: {why}") from error


def _missing(url: Url, what: str) -> str:
    """Return what is missing of an object that cannot be read, or written: nothing else keeps it from being made."""
    if what == "written" and not SCHEMES[url.scheme].has_server:
        return f'there is no bucket "{url.host}". Correct its name, or make the bucket'
    return "there is no such file"


def _refused_by_gate(error: BaseException) -> OrtdeployError | None:
    """Return what the gate has said of a connection; packages wrap it in exceptions of their own."""
    one: BaseException | None = error
    while one is not None:
        inner = getattr(one, "kwargs", {}).get("error") if isinstance(getattr(one, "kwargs", None), dict) else None
        if isinstance(one, OrtdeployError):
            return one
        one = inner if isinstance(inner, BaseException) else one.__cause__ or one.__context__
    return None


def is_web(url: Url) -> bool:
    """Return whether ortdeploy itself speaks with the server."""
    return SCHEMES[url.scheme].package is None


def open_store(url: Url) -> tuple[Any, str]:
    """Return the file system of an admitted URL, and the path in it."""
    if SCHEMES[url.scheme].has_server:
        from ortdeploy.files.network_policy import ANYWHERE, reachable  # noqa: PLC0415  only for servers

        reachable(url.host, 0, ANYWHERE)
    import fsspec  # noqa: PLC0415  an extra, for URLs only

    kind = fsspec.get_filesystem_class(url.scheme)  # of this one scheme: fsspec itself would follow a chain
    settings = kind._get_kwargs_from_urls(url.full)  # noqa: SLF001  what a file system is to override
    if SCHEMES[url.scheme].package == "s3fs":
        from ortdeploy.files.s3_gate import gated_settings  # noqa: PLC0415  only for S3

        settings = {**settings, **gated_settings()}
    system = kind(**settings)
    system.invalidate_cache()
    return system, str(kind._strip_protocol(url.full))  # noqa: SLF001  as above


def list_urls(pattern: str) -> list[str]:
    """Return the files that a URL, a folder or a glob on a store names, sorted. Raises OrtdeployError."""
    url = admit(pattern, Use.READ)

    def listed() -> list[str]:
        if is_web(url):
            from ortdeploy.files import web  # noqa: PLC0415  only for such URLs

            return web.list_files(url.full)
        return sorted(name for name, _ in _listed(url))

    with in_words(url, "listed"):
        return persist(listed, f"listing {url}")


def list_states(pattern: str) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield the files that a URL, a folder or a glob on a store names, in any order, each with its `state_of`.

    A listing tells a thousand at once. Raises OrtdeployError.
    """
    url = admit(pattern, Use.READ)
    with in_words(url, "listed"):
        for name, info in _listed(url):
            yield name, state_in(info)


def _listed(url: Url) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the objects that a URL names, with what the store says of them."""
    system, path = open_store(url)
    if any(sign in path for sign in _MAGIC):
        found = _matching(system, path)
    else:
        try:
            info = system.info(path)
        except FileNotFoundError:
            return
        if info["type"] == "file":
            yield url.full if url.has_query else _full_name(url, system, path), info
            return
        found = _in_folder(system, path)
    for info in found:
        if info["type"] == "file":
            yield _full_name(url, system, str(info["name"])), info


def _matching(system: Any, pattern: str) -> Iterable[Mapping[str, Any]]:
    """Return the objects that match a glob."""
    if not hasattr(system, "call_s3"):
        matching: Mapping[str, Mapping[str, Any]] = system.glob(pattern, detail=True)
        return matching.values()
    return matching_objects(system, pattern)


def _in_folder(system: Any, folder: str) -> Iterable[Mapping[str, Any]]:
    """Return the objects right in a folder."""
    if not hasattr(system, "call_s3"):
        inside: Iterable[Mapping[str, Any]] = system.ls(folder, detail=True)
        return inside
    return objects_in(system, folder)


def _full_name(url: Url, system: Any, path: str) -> str:
    """Return the URL of a listed file; the server or account comes from `url`, because listings leave it out."""
    start = url.full.partition("://")[2].partition("/")[0]
    if SCHEMES[url.scheme].has_server:
        return f"{url.scheme}://{start}/{path.lstrip('/')}"
    if "@" in start:
        return f"{url.scheme}://{start}/{path.partition('/')[2]}"
    return str(system.unstrip_protocol(path))


def state_of(path: str) -> tuple[int, int]:
    """Return an object's size, and a number that changes with its content. Raises OrtdeployError."""
    url = admit(path, Use.READ)

    def asked() -> tuple[int, int]:
        if is_web(url):
            from ortdeploy.files import web  # noqa: PLC0415  only for such URLs

            file = web.look(url.full)
            if file is None:
                raise FileNotFoundError
            return file.size or 0, _number(file.version)
        system, place = open_store(url)
        return state_in(system.info(place))

    with in_words(url, "read"):
        return persist(asked, f"reading {url}")


def state_in(info: Mapping[str, Any]) -> tuple[int, int]:
    """Return size and version of an object; some listings have split seconds that the object's own answer has not."""
    known = {key: info[key] for key in ("ETag", "etag", "md5Hash", "LastModified", "mtime", "created") if key in info}
    if hasattr(known.get("LastModified"), "microsecond"):
        known["LastModified"] = known["LastModified"].replace(microsecond=0)
    if isinstance(known.get("created"), float):  # as the listing of the store in memory has it, and not its answer
        known["created"] = datetime.fromtimestamp(known["created"], UTC)
    return int(info["size"] or 0), _number("|".join(map(str, known.values())))


def _number(version: str) -> int:
    return int(hashlib.sha256(version.encode()).hexdigest()[:15], 16)


UNVERSIONED = _number("")
"""The version of an object of which its store tells none."""


def fetch_file(address: str, target: Path) -> None:
    """Fetch what a URL names into a local file. Raises OrtdeployError."""
    url = admit(address, Use.READ)

    def fetch() -> None:
        if is_web(url):
            from ortdeploy.files import web  # noqa: PLC0415  only for such URLs

            web.fetch(url.full, target)
        else:
            system, path = open_store(url)
            system.get_file(path, str(target))

    with in_words(url, "read"):
        persist(fetch, f"fetching {url}")


class Fetched(Sequence[str]):
    """A sequence of files that fetches each URL when it is asked for; the last few fetched files are kept."""

    def __init__(self, files: Sequence[str], folder: Path, addresses: Addresses, kept: int = _KEPT) -> None:
        """Take the files by their names without secrets, the folder for fetched ones, and how many are kept."""
        _FETCHED_INTO.add(str(folder))
        self._files = files
        self._folder = folder
        self._addresses = addresses
        self._kept = kept
        self._here: dict[int, Path] = {}

    def __len__(self) -> int:
        """Return the number of files, fetched or not."""
        return len(self._files)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "Fetched": ...
    def __getitem__(self, index: int | slice) -> "str | Fetched":
        """Return the local path of a file; a URL is fetched first. Raises OrtdeployError."""
        if isinstance(index, slice):
            return Fetched(self._files[index], self._folder, self._addresses, self._kept)
        name = self._files[index]
        if not is_url(name):
            return name
        place = index % len(self._files)
        if place not in self._here:
            self._here[place] = self._fetch(name)
            for other in [one for one in self._here if one < place - self._kept]:
                self._here.pop(other).unlink(missing_ok=True)
        return str(self._here[place])

    def _fetch(self, name: str) -> Path:
        marked = MARK + encoded(name)
        if len(marked) > _LONGEST_NAME:
            raise OrtdeployError(f"{name} is too long a name to be fetched under; {_LONGEST_NAME} signs are possible")
        target = self._folder / marked
        fetch_file(self._addresses.full(name), target)
        return target


@contextmanager
def fetched(files: Sequence[str], patterns: Sequence[str] = (), *, ahead: int = 0) -> Iterator[Sequence[str]]:
    """Yield files that can be opened; fetched ones are deleted afterwards.

    `patterns` are the input's paths as the manifest has them. `files` has URLs without users and queries; the patterns
    complete them. `ahead`: how many files are asked for before the first of them is read.
    """
    if not any(map(is_url, patterns or files)):  # only URLs stand for URLs
        yield files
        return
    import tempfile  # noqa: PLC0415  only for URLs

    # Windows deletes no file that a thread still reads, which is not waited for when a job is stopped
    with tempfile.TemporaryDirectory(prefix="ortdeploy-objects-", ignore_cleanup_errors=True) as folder:
        yield Fetched(files, Path(folder), Addresses.of(patterns), _KEPT + ahead)


class Upload:
    """Keeps a folder on a store equal to an output folder beside the manifest."""

    def __init__(self, url: str, folder: Path) -> None:
        """Take URL and folder; nothing is read yet. Raises OrtdeployError for a URL that cannot be written to."""
        self._url = admit(url.rstrip("/"), Use.WRITE)
        self._folder = folder
        self._sent: dict[str, tuple[int, int]] = {}

    def claim(self) -> None:
        """Create the file there that names the output's ledger, if there is none. Many may try: one of them does it.

        Raises OrtdeployError if another machine has done it.
        """
        path = self._folder / MARKER
        if SCHEMES[self._url.scheme].decides:
            from ortdeploy.files.shared_store import SharedStore  # noqa: PLC0415  it imports this

            SharedStore(self._url.full).create(MARKER, read_whole(path))
        self.check_owner()
        self.send(MARKER.__eq__)

    def check_owner(self) -> None:
        """Raise OrtdeployError if the file there has another claim than the one here: another machine's output.

        Outputs that an earlier version began have no claim.
        """

        def claim() -> str | None:
            system, path = open_store(self._url)
            try:
                return _claim_in(system.cat_file(f"{path}/{MARKER}"))
            except FileNotFoundError:
                return None

        try:
            ours = _claim_in(read_whole(self._folder / MARKER))
        except FileNotFoundError:
            return
        theirs = self._asked(claim) if ours is not None else None
        if theirs not in (None, ours):
            raise OrtdeployError(
                f"{self._url} is the output of another machine, which began there when this one did: {MARKER} there "
                "names the run. Give this job another place; or start over there with --new-run, which keeps what is "
                "there under another name"
            )

    def check_alone(self) -> None:
        """Raise OrtdeployError if shards, or another machine, have made parts there: nothing of it is in the folder."""

        def is_shared() -> bool:
            system, path = open_store(self._url)
            try:  # not `exists`, which takes any failure for an answer
                is_there = bool(system.ls(f"{path}/{DECISIONS}", detail=False))
            except FileNotFoundError:
                return False
            begun = f"/{BOUND}"  # without it, a process was killed or refused before its plan began
            return is_there and any(str(one).endswith(begun) for one in system.find(f"{path}/{DECISIONS}"))

        if self._asked(is_shared):
            raise OrtdeployError(
                f"shards have made parts of {self._url}, and on a store only shards go on with what they have begun: "
                "save a plan (ortdeploy plan --out PLAN), then ortdeploy apply PLAN --shard 0/1 and ortdeploy finish "
                "PLAN. Or start over with --new-run"
            )
        self.check_owner()

    def check(self, *, known: bool) -> None:
        """Raise OrtdeployError if the store has files there that no run of this ledger wrote.

        Shards have been looked for; what is left of a plan that did not begin is in nobody's way.
        """

        def has_files() -> bool:
            system, path = open_store(self._url)
            found = system.ls(path, detail=False) if system.exists(path) else ()
            return any(str(one).rstrip("/").rpartition("/")[2] != DECISIONS for one in found)

        if not known and self._asked(has_files):
            raise OrtdeployError(
                f"{self._url} holds files already, and the ledger knows nothing of them; choose another place"
            )

    def send(self, wanted: Callable[[str], bool] = lambda _name: True, *, anew: bool = False) -> None:
        """Upload files that changed since the last call; `anew`: also those on the store. Raises OrtdeployError."""
        for path in sorted((*self._folder.glob("*"), *self._folder.glob("*/*"))):
            name = path.relative_to(self._folder).as_posix()
            if path.name.startswith(".") or not path.is_file() or not wanted(name):
                continue
            stat = path.stat()
            state = (stat.st_size, stat.st_mtime_ns)
            if self._sent.get(name) != state:
                self._put(path, name, stat.st_size, anew=anew)
                self._sent[name] = state

    def replace(self, names: Collection[str]) -> None:
        """Upload files in place of what the store has of these names. Raises OrtdeployError."""
        self.send(lambda name: name in names, anew=True)

    def _put(self, path: Path, name: str, size: int, *, anew: bool) -> None:
        url = admit(f"{self._url.full}/{name}", Use.WRITE)

        def put() -> None:
            system, there = open_store(url)
            is_new = anew or name in self._sent or name.startswith("_") or not system.exists(there)
            if not is_new and system.size(there) == size:
                return  # a run before has uploaded it: parts are changed by a retry alone
            if SCHEMES[url.scheme].has_server:  # a store has no folders, and would make a bucket
                system.makedirs(os.path.dirname(there), exist_ok=True)  # noqa: PTH120  as text
            system.put_file(str(path), there)

        with in_words(url, "written"):
            persist(put, f"writing {url}")

    def tidy(self) -> None:
        """Delete parts on the store that are not in the folder: a killed run may have uploaded one too many."""

        def clean() -> None:
            system, path = open_store(self._url)
            here = {one.name for one in self._folder.iterdir()}
            for one in system.ls(path, detail=False) if system.exists(path) else ():
                name = os.path.basename(one)  # noqa: PTH119  as text
                if name.startswith("part-") and name not in here:
                    system.rm_file(one)

        self._asked(clean)

    def _asked(self, act: Callable[[], T]) -> T:
        """Do something that begins with a listing, again after a failure that may pass. Raises OrtdeployError."""
        with in_words(self._url, "listed"):
            return persist(act, f"listing {self._url}")

    def put_aside(self, name: str) -> None:
        """Move what the store has there to a name beside it, object by object; if it has folders, rename.

        Shards may still be at work there. What says that their plan runs goes first, so that they decide nothing more,
        and that they were there last, so that a move that was interrupted is seen and done again.
        """
        with in_words(self._url, "moved"), suppress(FileNotFoundError):
            system, path = open_store(self._url)
            there = f"{os.path.dirname(path)}/{name}"  # noqa: PTH120  as text
            if SCHEMES[self._url.scheme].has_server:
                system.mv(path, there, recursive=True)
                return
            while found := sorted(map(str, system.find(path)), key=_turn):  # again for what was published meanwhile
                for one in found:
                    _move(system, one, f"{there}{one.removeprefix(path)}")
                system.invalidate_cache()


def _claim_in(marker: bytes) -> str | None:
    """Return the claim in a file that names an output's ledger; None if it has none."""
    with suppress(ValueError, TypeError, LookupError):
        claim = read_json(marker)["claim"]
        return claim if isinstance(claim, str) else None
    return None


def _turn(path: str) -> int:
    """Return when an object of an output is put aside: the beginnings of plans first, their other decisions last."""
    if f"/{DECISIONS}/" not in path:
        return 1
    return 0 if path.endswith(f"/{BOUND}") else 2


def _move(system: Any, path: str, there: str) -> None:
    """Move an object, unless it is gone; not by `mv`, which stumbles over folders that are only beginnings of names."""
    with suppress(FileNotFoundError):
        system.cp_file(path, there)
        system.rm_file(path)
