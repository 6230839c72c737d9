"""What tests see of the memo, and write into it as somebody else might."""

import json
from pathlib import Path
from typing import Any

from ortdeploy.state import memo


def memo_files(state_dir: Path, kind: str) -> list[Path]:
    """Return the files of a kind, the latest one last."""
    return sorted((state_dir / memo.FOLDER / kind).glob("*"), key=lambda path: path.stat().st_mtime_ns)


def memo_values(state_dir: Path, kind: str) -> list[Any]:
    """Return the values of a kind, the latest one last."""
    return [memo_value(path) for path in memo_files(state_dir, kind)]


def memo_value(path: Path) -> Any:
    """Return the value in a file."""
    return json.loads(path.read_bytes().partition(b"\n")[2])


def rewrite(path: Path, value: Any) -> None:
    """Write another value, or any bytes, into a file, with a checksum that fits."""
    body = value if isinstance(value, bytes) else json.dumps(value).encode()
    path.write_bytes(memo._head(str(path), body) + body)  # noqa: SLF001  as somebody else might
