"""Finds the JSON Schemas: inside the installed package, or beside it in a checkout."""

from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parent
SUFFIX = ".schema.json"


@cache
def schema_folder() -> Path:
    """Return the folder of the schemas; a wheel carries it in the package, an editable install finds the checkout's."""
    packaged = _PACKAGE / "schemas"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "schemas"


def schema_names() -> tuple[str, ...]:
    """Return the names that `ortdeploy schema` takes."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in schema_folder().glob(f"*{SUFFIX}")))


def schema_text(name: str) -> str:
    """Return one schema as it stands in its file."""
    return (schema_folder() / f"{name}{SUFFIX}").read_text(encoding="utf-8")
