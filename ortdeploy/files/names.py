"""Names of files: which there are, how one is seen from a folder, and whether anything has one.

The checks return False, not OSError, for a name that no file can have:
Path.exists, is_file and is_dir raise OSError for a name that is too long (until Python 3.14); those of os.path do not.
"""

import os
from collections.abc import Iterator
from itertools import chain, count
from pathlib import Path

STATE_DIR = ".ortdeploy"
"""The state directory beside a manifest: its ledger and everything that is remembered about it."""
KEPT = "last-good"
"""The folder of the state directory with the last good version of each manifest."""
BUNDLES = "bundles"
"""The folder of the state directory with a record of each deployment that came in bundles."""
TEXTS = "manifests"
"""The folder of the state directory with the text with which each output was last run."""
COMPILED = "cache"
"""The folder of the state directory with optimized graphs and compiled models."""
TOLD = "told"
"""The folder of the state directory with the last news of `on_end`: a digest, and the manifest in the line below."""

POLICY = "/etc/ortdeploy/policy.yaml"
"""The policy of the machine, which says which bundles may run."""
UNITS = ("/etc/systemd/system", "/run/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system")
"""Where systemd looks for units; of two with one name, the first counts."""

MIRRORS = f"{STATE_DIR}/outputs"
"""The folder beside the manifest that has the local copies of uploaded outputs."""
MARK = "url="
"""How the names of fetched files begin."""

DECISIONS = "_parts"
"""The folder of an output in which processes that make its parts together decide. Outputs without it have one owner."""
BOUND = "bound.json"
"""The file in a plan's folder there that lists the plan's parts. If it is not there, nothing is decided."""

MARKER = "_output.json"
"""The file in an output folder that names its ledger. On a store, its `claim` says which run has created it there."""
REPORT = "_run.json"
"""The file in an output folder with the report of the last run."""
DUE = f".{REPORT}.due"
"""The hidden file in an output folder that is there while committed rows change: the report is to be written anew."""
REPORTS = {"html": "_run.html", "prometheus": "_run.prom"}
"""The files beside it with further forms of the report, by form."""


def relative(path: Path | str, folder: Path | str) -> str:
    """Return a path as seen from a folder, with forward slashes; on another drive of Windows, the whole path."""
    try:
        seen = os.path.relpath(path, folder)  # noqa: TID251  here alone
    except ValueError:
        seen = str(path)
    return seen.replace(os.sep, "/")


def names_bundle(path: str) -> bool:
    """Return whether a path on a command line is a bundle, also a folder that was not copied whole, or an `@NAME`."""
    own = (os.path.join(path, name) for name in ("oci-layout", "blobs/sha256"))  # noqa: PTH118  text
    return path.startswith("@") or path.endswith(".tar") or any(map(os.path.lexists, own))


def is_there(path: Path | str) -> bool:
    """Return whether anything has this name."""
    return os.path.exists(path)  # noqa: PTH110  see above


def is_file(path: Path | str) -> bool:
    """Return whether a file has this name."""
    return os.path.isfile(path)  # noqa: PTH113


def is_folder(path: Path | str) -> bool:
    """Return whether a folder has this name."""
    return os.path.isdir(path)  # noqa: PTH112


def is_there_now(path: Path) -> bool:
    """Return whether anything has this name, also if another machine has just made it: see `open_anew`."""
    return is_there(path) or (open_anew(path.parent) and is_there(path))


def open_anew(folder: Path) -> bool:
    """Open a folder, after the one above it if it seems not to be there; return whether it is.

    An NFS client remembers for up to a minute which names are not there, and asks the server when a folder is opened.
    """
    missing = []
    for one in (folder, *folder.parents):
        try:
            os.scandir(one).close()
        except FileNotFoundError:
            missing.append(one)
        except OSError:
            return False
        else:
            return all(map(is_folder, reversed(missing)))
    return False


def name_aside(folder: Path, started: str) -> Path:
    """Return a free name to keep an old output under."""
    return next(path for path in names_aside(folder, started) if not is_there(path))


def names_aside(folder: Path, started: str) -> Iterator[Path]:
    """Yield the names to keep an old output under: its own name with the time at which it was begun, and a number."""
    stamp = started.partition("+")[0].replace(":", "-")
    return (folder.with_name(f"{folder.name}.{stamp}{suffix}") for suffix in chain([""], (f".{n}" for n in count(2))))
