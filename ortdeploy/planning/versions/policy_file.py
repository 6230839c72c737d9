"""Reads policies: the one of the machine, which belongs to root, and one more that a command line may add.

A policy that is there and cannot be read, or is not understood, refuses everything: whatever it forbids is not known.
"""

import os
import stat
from typing import Any

from ortdeploy.bundles.policy import Allowed, Policy
from ortdeploy.bundles.statement import Key, read_key
from ortdeploy.diagnostics import OrtdeployError, has_errors
from ortdeploy.files import names
from ortdeploy.files.opening import open_regular
from ortdeploy.manifest.document import MAX_BYTES, parse_document
from ortdeploy.manifest.schema_check import check_document

KEEP = 3
"""Versions that stay installed if no policy says how many."""
_ROOT = 0
_LARGEST_KEY = 64 * 1024


def is_there(place: str) -> bool:
    """Return whether the machine has a policy. Raises OrtdeployError if that cannot be told."""
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise _unreadable(place, str(error.strerror)) from error
    return True


def read_policies(more: str | None) -> tuple[Policy, ...]:
    """Return the policy of this machine, if it has one, and the one of `--policy`. Raises OrtdeployError."""
    own = (_read(names.POLICY, belongs_to_root=True),) if is_there(names.POLICY) else ()
    return (*own, *(() if more is None else (_read(more, belongs_to_root=False),)))


def key_of(policies: tuple[Policy, ...]) -> list[Any]:
    """Return what policies say, for comparing."""
    return [
        [
            one.path,
            sorted(one.refuse),
            {
                name: [sorted(key.fingerprint for key in own.keys), own.oldest_version, own.allow_code]
                for name, own in one.deployments.items()
            },
        ]
        for one in policies
    ]


def keep_of(policies: tuple[Policy, ...]) -> int:
    """Return how many versions stay installed."""
    return min((one.keep for one in policies if one.keep is not None), default=KEEP)


def _read(path: str, *, belongs_to_root: bool) -> Policy:
    raw = _bytes(path, MAX_BYTES, belongs_to_root=belongs_to_root)
    document, diagnostics = parse_document(raw, path)
    if document is not None and not has_errors(diagnostics):
        diagnostics += check_document(document, "policy")
    if document is None or has_errors(diagnostics):
        first = diagnostics[0]
        raise _unreadable(
            f"{path}:{first.span.line}:{first.span.column}", f"{first.summary}. {first.detail}".rstrip(".")
        )
    data: dict[str, Any] = document.data
    deployments = {
        name: Allowed(
            keys=tuple(_key(path, key, belongs_to_root=belongs_to_root) for key in one["keys"]),
            oldest_version=one.get("oldest_version", 1),
            allow_code=one.get("allow_code", False),
        )
        for name, one in data["deployments"].items()
    }
    return Policy(
        path=path,
        deployments=deployments,
        manifests=tuple(os.path.realpath(one) for one in data.get("manifests", ())),
        refuse=frozenset(one.removeprefix("sha256:") for one in data.get("refuse", ())),
        keep=data.get("keep"),
    )


def _key(policy: str, name: str, *, belongs_to_root: bool) -> Key:
    path = os.path.join(os.path.dirname(policy), name)  # noqa: PTH118, PTH120  as text
    raw = _bytes(path, _LARGEST_KEY, belongs_to_root=belongs_to_root)
    try:
        return read_key(raw, name)
    except OrtdeployError as error:
        raise _unreadable(policy, f"{error}") from error


def _bytes(path: str, most: int, *, belongs_to_root: bool) -> bytes:
    """Return a file that nobody but root may have written, if it must belong to root. Raises OrtdeployError."""
    try:
        with open_regular(path) as file:
            folder = os.stat(os.path.dirname(os.path.realpath(path)))  # noqa: PTH116, PTH120  text
            if belongs_to_root and not all(map(_is_of_root, (os.fstat(file.fileno()), folder))):
                raise _unreadable(path, "somebody else than root may write it; chown root, and chmod go-w")
            raw = file.read(most + 1)
    except OSError as error:
        raise _unreadable(path, error.strerror or f"{error}") from error
    if len(raw) > most:
        raise _unreadable(path, f"it has more than {most:,} bytes")
    return raw


def _is_of_root(found: os.stat_result) -> bool:
    return found.st_uid == _ROOT and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _unreadable(path: str, why: str) -> OrtdeployError:
    return OrtdeployError(f"the policy cannot be used, so nothing runs: {path}: {why}")
