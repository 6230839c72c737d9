"""Recognises the kind of a file by its first bytes, whatever its name is.

Such a file often stands in for the right one, as Git LFS pointers and download pages do, or was mixed up with another.
"""

from msgspec import Struct

HEAD = 512
"""Bytes that `recognise` looks at."""


class Content(Struct, frozen=True):
    """The kind of a file, with its article, and what to do if a model or an adapter was expected instead.

    `formats` are the input formats that read it, `packed` is the suffix of files that are compressed so, and `as_input`
    says what to do if an input of another format was expected.
    """

    what: str
    advice: str = "Name the right file."
    formats: tuple[str, ...] = ()
    packed: str = ""
    as_input: str = ""


_Sign = tuple[tuple[int, bytes], ...]
"""The bytes that identify a kind of file, each with its offset."""


def _image(what: str) -> Content:
    return Content(what, formats=("image",))


def _recording(what: str) -> Content:
    return Content(what, formats=("audio",))


def _video(what: str) -> Content:
    return Content(what, formats=("video",))


_UNPACK = "Unpack it."
_EXPORT = "Export the model to ONNX."

ADAPTER = Content("an ONNX Runtime adapter file", "Name it under adapters:.")
ORT_MODEL = Content("a model in ORT format", "Name it under models:.")
POINTER = Content("a Git-LFS pointer", "Run git lfs pull.")
_PAGE = Content("a web page", "Download the file itself.", formats=("text",), as_input="Download the file itself.")
_JSON = Content("JSON text", formats=("jsonl", "text"))
_TEXT = Content("text", formats=("csv", "jsonl", "text"), as_input="Write format: csv, jsonl or text.")
_UTF16 = Content("text in UTF-16", as_input="Save it as UTF-8.")
_NPZ = Content("an .npz archive", "Unpack or convert it.", formats=("npz",))
_ARCHIVE = Content(
    "a zip archive (also .npz, .xlsx and PyTorch checkpoints are such)",
    "Unpack or convert it.",
    formats=("npz",),
    as_input="Unpack or convert it; of an .npz archive, write format: npz.",
)
_PICKLE = Content("a Python pickle", _EXPORT, as_input="Save it as .npy, .npz or Parquet.")

_ZIP = b"PK\x03\x04"
_ZIPPED_NAME = 30
"""Offset of the name of a zip archive's first file; bytes 26 and 27 have the length of the name."""

_SIGNS: tuple[tuple[_Sign, Content], ...] = (
    (((0, b"version https://git-lfs.github.com/spec/"),), POINTER),
    (((3, b"\x00TORT"),), ADAPTER),  # a flatbuffer begins with a small number
    (((3, b"\x00ORTM"),), ORT_MODEL),
    (((0, b"\x1f\x8b"),), Content("gzip-compressed", _UNPACK, packed=".gz")),
    (((0, b"BZh"), (4, b"1AY&SY")), Content("bzip2-compressed", _UNPACK, packed=".bz2")),
    (((0, b"\xfd7zXZ\x00"),), Content("xz-compressed", _UNPACK, packed=".xz")),
    (((0, b"(\xb5/\xfd"),), Content("zstd-compressed", _UNPACK)),
    (((0, b"7z\xbc\xaf\x27\x1c"),), Content("a 7-Zip archive", _UNPACK)),
    (((257, b"ustar"),), Content("a tar archive", _UNPACK)),
    (((0, b"\x89PNG\r\n\x1a\n"),), _image("a PNG image")),
    (((0, b"\xff\xd8\xff"),), _image("a JPEG image")),
    (((0, b"GIF8"),), _image("a GIF image")),
    (((0, b"BM"), (6, bytes(4))), _image("a BMP image")),
    (((0, b"II*\x00"),), _image("a TIFF image")),
    (((0, b"MM\x00*"),), _image("a TIFF image")),
    (((0, b"RIFF"), (8, b"WEBP")), _image("a WebP image")),
    (((0, b"RIFF"), (8, b"WAVE")), Content("a WAV recording", formats=("wav", "audio"))),
    (((0, b"fLaC"),), _recording("a FLAC recording")),
    (((0, b"OggS"),), Content("an Ogg recording", formats=("audio", "video"))),
    (((0, b"ID3"),), _recording("an MP3 recording")),
    (((0, b"RIFF"), (8, b"AVI ")), _video("an AVI video")),
    (((0, b"\x1aE\xdf\xa3"),), _video("a Matroska or WebM video")),
    (((4, b"ftypheic"),), Content("a HEIC picture", as_input="Convert it to PNG or JPEG.")),
    (((4, b"ftypavif"),), Content("an AVIF picture", as_input="Convert it to PNG or JPEG.")),
    (((4, b"ftyp"),), _video("an MP4 or QuickTime video")),
    (((0, b"\x93NUMPY"),), Content("a .npy array", formats=("npy",))),
    (((0, b"PAR1"),), Content("a Parquet table", formats=("parquet",))),
    (((0, b"ARROW1\x00\x00"),), Content("an Arrow table", formats=("arrow",))),
    (((0, b"ORC"),), Content("an ORC table", as_input="Convert it to Parquet.")),
    (((0, b"SQLite format 3\x00"),), Content("an SQLite database", as_input="Export a table of it to Parquet.")),
    (
        ((0, b"\x89HDF\r\n\x1a\n"),),
        Content("an HDF5 file", _EXPORT, as_input="Convert it to .npz."),
    ),
    (((3, b"\x00TFL3"),), Content("a TensorFlow Lite model", "Convert it to ONNX.")),
    (((0, b"GGUF"),), Content("a GGUF model", _EXPORT)),
    (((0, b"%PDF-"),), Content("a PDF document")),
    (((0, b"\x80\x02c"),), _PICKLE),
    (((0, b"\x80\x02}"),), _PICKLE),
    (((0, b"\x80\x04\x95"),), _PICKLE),
)

_SIGNED = frozenset(name for _, content in _SIGNS for name in content.formats) | {"npz", "pb"}
"""Input formats whose files begin with a signature, or never with a letter, so text is none of them."""

_LEAST_BYTES = {"raw": 4}
"""Formats whose files may begin with any bytes; a shorter signature may be there by chance."""


_LEAST_BYTES_OF_TEXT = 5
"""Text may begin with a shorter signature of letters: a column may be called ID3, ORC or PAR1."""


def recognise(head: bytes) -> Content | None:
    """Return the kind of a file with these first bytes; None for an ONNX model and for unknown content."""
    return _by_sign(head) or _by_look(head)


def mistaken(name: str, head: bytes) -> Content | None:
    """Return the kind of a file with these first bytes if the input format `name` cannot read it; else None."""
    text = _by_letters(head)
    content = _by_sign(head, _LEAST_BYTES_OF_TEXT if text else _LEAST_BYTES.get(name, 1))
    if content is None and name not in _LEAST_BYTES:
        content = _by_look(head) or text
    if content is None or name in content.formats:
        return None
    return content if content is not _TEXT or name in _SIGNED else None


def _by_sign(head: bytes, least: int = 1) -> Content | None:
    if head.startswith(_ZIP):
        begin = _ZIPPED_NAME + int.from_bytes(head[26:28], "little")
        return _NPZ if head[:begin].endswith(b".npy") else _ARCHIVE
    for sign, content in _SIGNS:
        if all(head.startswith(part, place) for place, part in sign) and sum(len(part) for _, part in sign) >= least:
            return content
    return None


def _by_look(head: bytes) -> Content | None:
    if head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 2**32:
        return Content("in safetensors format", "Convert it.")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] == b"<" and text[:15].lower().startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return _PAGE
    if text[:1] in {b"{", b"["} and text[1:].lstrip()[:1] in {b'"', b"{", b"[", b"}", b"]"}:
        return _JSON
    return None


def _by_letters(head: bytes) -> Content | None:
    """Return the kind if the bytes are text; the last letter may be cut off."""
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return _UTF16
    text = head.decode("utf-8", errors="ignore")
    whole = len(head) - len(text.encode()) < 4  # noqa: PLR2004  bytes of a letter
    return _TEXT if text and whole and all(sign.isprintable() or sign.isspace() for sign in text) else None
