"""The digest by which files are told apart."""

import hashlib
from pathlib import Path


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file, read in pieces. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
