"""What a file is by its first bytes, whatever it is called.

Most often it stands in for one that is not there, as Git LFS and download pages leave them, or was mixed up.
"""

from dataclasses import dataclass

HEAD = 256
"""Bytes that `recognise` looks at."""


@dataclass(frozen=True, slots=True)
class Content:
    """What a file is, with its article, and what to do where another was wanted."""

    what: str
    advice: str


ADAPTER = Content("an ONNX Runtime adapter file", "Name it under adapters:.")
ORT_MODEL = Content("a model in ORT format", "Name it under models:.")
POINTER = Content("a Git-LFS pointer", "Run git lfs pull.")
_PAGE = Content("a web page", "Download the file itself.")
_AGAIN = "Name the right file."
_ARCHIVE = Content("a zip archive (also .npz and PyTorch checkpoints are such)", "Unpack or convert it.")
_PICKLE = Content("a Python pickle", "Export the model to ONNX.")

_SIGNS = (
    (0, b"version https://git-lfs.github.com/spec/", POINTER),
    (4, b"TORT", ADAPTER),
    (4, b"ORTM", ORT_MODEL),
    (0, b"PK\x03\x04", _ARCHIVE),
    (0, b"\x1f\x8b", Content("gzip-compressed", "Unpack it.")),
    (0, b"\xfd7zXZ\x00", Content("xz-compressed", "Unpack it.")),
    (0, b"(\xb5/\xfd", Content("zstd-compressed", "Unpack it.")),
    (0, b"\x89PNG\r\n\x1a\n", Content("a PNG image", _AGAIN)),
    (0, b"\xff\xd8\xff", Content("a JPEG image", _AGAIN)),
    (0, b"\x93NUMPY", Content("a .npy array", _AGAIN)),
    (0, b"PAR1", Content("a Parquet table", _AGAIN)),
    (0, b"ARROW1\x00\x00", Content("an Arrow table", _AGAIN)),
    (0, b"\x89HDF\r\n\x1a\n", Content("an HDF5 file", "Export the model to ONNX.")),
    (4, b"TFL3", Content("a TensorFlow Lite model", "Convert it to ONNX.")),
    (0, b"GGUF", Content("a GGUF model", "Export the model to ONNX.")),
    (0, b"%PDF-", Content("a PDF document", _AGAIN)),
    (0, b"\x80\x02c", _PICKLE),
    (0, b"\x80\x02}", _PICKLE),
    (0, b"\x80\x04\x95", _PICKLE),
)


def recognise(head: bytes) -> Content | None:
    """Return what a file that begins so certainly is; None for an ONNX model and for what is not known."""
    for start, sign, content in _SIGNS:
        if head.startswith(sign, start) and (start == 0 or head[3] == 0):  # a flatbuffer begins with a small number
            return content
    if head[8:9] == b"{" and 0 < int.from_bytes(head[:8], "little") < 2**32:
        return Content("in safetensors format", "Convert it.")
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if text[:1] == b"<" and text[:15].lower().startswith((b"<!doctype html", b"<html", b"<head", b"<?xml")):
        return _PAGE
    if text[:1] in {b"{", b"["} and text[1:].lstrip()[:1] in {b'"', b"{", b"[", b"}", b"]"}:
        return Content("JSON text", _AGAIN)
    return None
