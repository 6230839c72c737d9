"""Recognises input files that hold another format than they should, and says what to write in the manifest."""

from collections.abc import Sequence
from pathlib import PurePath

from ortdeploy.files.content import HEAD, Content, mistaken, recognise
from ortdeploy.files.stored_file import open_plain
from ortdeploy.sources.compression import is_compressed

_OTHER_FORMAT = "Write format: "


def find_mistaken(name: str, files: Sequence[str], *, declared: bool, may_be_packed: bool) -> str | None:
    """Return what the first file of another format is, and what to write instead; None if there is none.

    `declared`: the format is from the manifest, not from the suffix. Files that are declared as `bytes` may hold
    anything.
    """
    if declared and name in {"bytes", "raw"}:
        return None
    for path in files:
        wrong = _wrong_suffix(path) or _wrong_content(name, path, declared=declared, may_be_packed=may_be_packed)
        if wrong is not None:
            return wrong
    return None


def what_it_is(name: str, path: str) -> str:
    """Return what an undecodable file of many is, and what to do; empty if that is not known.

    The format of the input is right if its other files are, so another one is advised only in case they are not.
    """
    head = _begin(path)
    if not head:
        return "; it is empty"
    content = mistaken(name, head)
    if content is None:
        return ""
    remedy = _remedy(content).removesuffix(".")
    if remedy.startswith(_OTHER_FORMAT):
        remedy = f"Replace the file. If the whole input is like this, {remedy[0].lower()}{remedy[1:]}"
    return f"; it is {content.what}. {remedy}"


def _wrong_suffix(path: str) -> str | None:
    """Return that a file is not compressed as its suffix says; empty if it is."""
    if not is_compressed(path):
        return None
    suffix, head = PurePath(path).suffix, _begin(path)
    content = recognise(head)
    if not head or (content is not None and content.packed == suffix.lower()):
        return None
    what = f"is {content.what}" if content is not None else "is not compressed"
    return f"{what}, and its suffix {suffix} says otherwise. Name it by what it holds."


def _wrong_content(name: str, path: str, *, declared: bool, may_be_packed: bool) -> str | None:
    content = mistaken(name, _begin_decompressed(path))
    if content is None:
        return None
    said = f"format: {name} is written" if declared else f"by its suffix its format is {name}"
    remedy = f"Give it the suffix {content.packed}." if content.packed and may_be_packed else _remedy(content)
    return f"is {content.what}, and {said}. {remedy}"


def _remedy(content: Content) -> str:
    return content.as_input or (f"{_OTHER_FORMAT}{content.formats[0]}." if content.formats else content.advice)


def _begin(path: str) -> bytes:
    with open_plain(path) as file:
        return file.read(HEAD)


def _begin_decompressed(path: str) -> bytes:
    """Return the beginning of a file; nothing if it cannot be decompressed, which reading it will report."""
    if not is_compressed(path):
        return _begin(path)
    from ortdeploy.sources.compressed import BROKEN, open_compressed  # noqa: PLC0415  few files are compressed

    try:
        with open_compressed(path, PurePath(path).suffix.lower()) as file:
            return file.read(HEAD)
    except (OSError, *BROKEN):
        return b""
