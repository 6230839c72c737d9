"""`deployment.json`: what a bundle is, and every file in it with its SHA-256. Its own SHA-256 is the bundle's id.

The text is canonical: UTF-8, keys sorted, no blanks, no numbers but whole ones, one line feed at the end. A text that
says the same in other bytes is refused, so that one bundle has one id.
"""

import hashlib
import json
import re
import unicodedata
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.terminal_text import first_control, safe, shortened

NAME = "deployment.json"
FORMAT_VERSION = 1
LARGEST = 4 * 1024 * 1024
"""Bytes that a document of a bundle may have: index, manifest, config, deployment.json, a signature."""
MOST_FILES = 10_000
HIGHEST = 2**53 - 1
"""The highest version; every reader of JSON keeps whole numbers up to it."""

KINDS = {
    "weight": "application/vnd.cncf.model.weight.v1.raw",
    "config": "application/vnd.cncf.model.weight.config.v1.raw",
    "dataset": "application/vnd.cncf.model.dataset.v1.raw",
    "code": "application/vnd.cncf.model.code.v1.raw",
}
"""The kinds of files, and the media types of their layers. Signatures have one of their own."""

_LONGEST_NAME, _LONGEST_PART = 1024, 200
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f<>:"|?*\\]')
_DEVICES = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(\.|\Z)", re.IGNORECASE)
_DEPLOYMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_RELEASE = re.compile(r"[0-9A-Za-z.+!-]{1,100}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


class BundledFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of a bundle; `stands_for` is the URL that a manifest names it by."""

    name: str
    sha256: str
    size: int
    kind: str
    stands_for: str | None = None


class Needs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a device must have or allow: a version of ortdeploy, at least; and libraries of the bundle as code."""

    ortdeploy: str
    allow_code: bool


class Description(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A bundle: the deployment's name and version, its manifest with overlays and profiles, its files by name.

    `base`: it may run without a profile. `label` is for people, such as a commit.
    """

    format_version: int
    name: str
    version: int
    label: str
    manifest: str
    overlays: tuple[str, ...]
    profiles: tuple[str, ...]
    base: bool
    needs: Needs
    files: tuple[BundledFile, ...]

    @property
    def digests(self) -> dict[str, str]:
        """The SHA-256 of each file by its name."""
        return {file.name: file.sha256 for file in self.files}


def canonical(value: Any) -> bytes:
    """Return a value as canonical JSON."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return f"{text}\n".encode()


def dump(description: Description) -> bytes:
    """Return the text of a description."""
    return canonical(msgspec.to_builtins(description))


def identity(raw: bytes) -> str:
    """Return the id of the bundle with this deployment.json."""
    return hashlib.sha256(raw).hexdigest()


def parse(raw: bytes) -> Description:
    """Read a deployment.json. Raises OrtdeployError if it is not canonical, or says what no bundle may say."""
    try:
        found = msgspec.json.decode(raw, type=Description)
        if dump(found) != raw:
            raise OrtdeployError(f"{NAME} is not canonical: it was written by hand, or changed")
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise OrtdeployError(f"{NAME} cannot be read: {safe(str(error))}") from error
    wrong = _objection(found)
    if wrong is not None:
        raise OrtdeployError(f"{NAME}: {wrong}")
    return found


def objection_to_names(names: Iterable[str]) -> str | None:
    """Say which name some system would take for another file than a second one, or would not take; None if none."""
    seen: dict[str, str] = {}
    for name in names:
        wrong = objection_to_name(name)
        if wrong is not None:
            return wrong
        key = _confusable(name)
        if key in seen:
            are = "is there twice" if seen[key] == name else f"and {shown(name)} are one name to some systems"
            return f"{shown(seen[key])} {are}"
        seen[key] = name
    folders = {"/".join(parts[:end]) for key in seen for parts in [key.split("/")] for end in range(1, len(parts))}
    both = next((key for key in seen if key in folders), None)
    return None if both is None else f"{shown(seen[both])} is a file and a folder"


def objection_to_name(name: str) -> str | None:
    """Say why a name cannot be that of a file in a bundle; None if it can."""
    try:
        length = len(name.encode())
    except UnicodeEncodeError:
        return f"{shown(name)} is no text"
    parts = name.split("/")
    if _FORBIDDEN.search(name) or any(unicodedata.category(sign) in {"Cf", "Co", "Cn"} for sign in name):
        return f"{shown(name)} has a sign that not every system takes in a name"
    if length > _LONGEST_NAME or any(len(part.encode()) > _LONGEST_PART for part in parts):
        return f"{shown(name)} is too long a name"
    if any(part in {"", ".", ".."} or part[-1] in " ." or part[0] == " " or _DEVICES.match(part) for part in parts):
        return f"{shown(name)} is not a plain name below a folder, for every system"
    if unicodedata.normalize("NFC", name) != name:
        return f"{shown(name)} has another form of Unicode than NFC"
    return None


def is_digest(text: Any) -> bool:
    """Return whether a value is a SHA-256 in small hexadecimal digits."""
    return isinstance(text, str) and _DIGEST.fullmatch(text) is not None


def shown(text: str) -> str:
    """Return a stranger's text as messages show it: quoted, on one line, and not long."""
    return shortened(json.dumps(text, ensure_ascii=True), 80)


def _confusable(name: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold()).casefold()


def _objection(found: Description) -> str | None:
    names = [file.name for file in found.files]
    documents = (found.manifest, *found.overlays)
    lasting = (
        (found.format_version != FORMAT_VERSION, f"format_version {found.format_version} is not known here"),
        (not _DEPLOYMENT.fullmatch(found.name), "name is none of a deployment"),
        (not 1 <= found.version <= HIGHEST, f"version must be from 1 to {HIGHEST}"),
        (len(found.label) > 200, "label is too long"),  # noqa: PLR2004
        (first_control(found.label) is not None, "label has a control character, or more than one line"),
        (not _RELEASE.fullmatch(found.needs.ortdeploy), "needs.ortdeploy is no version"),
        (len(names) > MOST_FILES, f"it has more than {MOST_FILES:,} files"),
        (names != sorted(set(names)), "files are not sorted by name, each once"),
        (not set(documents) <= set(names), "the manifest or an overlay is not among the files"),
        ("/" in found.manifest, "the manifest does not lie at the top"),
        (len(set(documents)) < len(documents), "an overlay is named twice"),
        (len(set(found.profiles)) < len(found.profiles), "a profile is named twice"),
        (not found.base and not found.profiles, "it has no profile and no base, so nothing in it could run"),
    )
    return (
        next((why for is_wrong, why in lasting if is_wrong), None)
        or objection_to_names((*names, NAME))
        or next(filter(None, map(_objection_to_file, found.files)), None)
        or _objection_to_needs(found)
    )


def _objection_to_file(file: BundledFile) -> str | None:
    name = shown(file.name)
    if not is_digest(file.sha256):
        return f"the sha256 of {name} is none"
    if not 0 <= file.size <= HIGHEST:
        return f"the size of {name} is none"
    if file.kind not in KINDS:
        return f"{name} is of the kind {shown(file.kind)}, which is not known here"
    return None


def _objection_to_needs(found: Description) -> str | None:
    has_code = any(file.kind == "code" for file in found.files)
    if has_code != found.needs.allow_code:
        return "needs.allow_code does not say whether there are libraries among the files"
    return None
