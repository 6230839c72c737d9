"""The systemd unit under which a deployment runs, as `service` has written it: what it denies a version.

Under a unit that denies it something, a version would run otherwise than planned: its provider would open no device, or
another profile would be chosen. What whoever looks after the machine has changed in the unit, or beside it, counts too.
"""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from ortdeploy.files import names
from ortdeploy.files.names import is_file
from ortdeploy.files.opening import read_text
from ortdeploy.planning.service import Needs
from ortdeploy.shell import command
from ortdeploy.views.systemd import HOMES, TEMPORARY, any_in, unit_name

_YES = frozenset({"yes", "y", "true", "t", "on", "1"})


class Unit(Struct, frozen=True, kw_only=True):
    """A unit: its path, and the values of its settings in their order, those of its drop-in files last."""

    path: str
    settings: Mapping[str, Sequence[str]]


def unit_files(name: str) -> list[str]:
    """Return the files of a deployment's unit: its own, then its drop-in files; none if it has no unit."""
    own = [os.path.join(folder, f"{unit_name(name)}.service") for folder in names.UNITS]  # noqa: PTH118  text
    first = next(filter(is_file, own), None)
    if first is None:
        return []
    dropped = {os.path.basename(path): path for unit in reversed(own) for path in _dropped(f"{unit}.d")}  # noqa: PTH119
    return [first, *(dropped[one] for one in sorted(dropped))]


def _dropped(folder: str) -> Iterator[str]:
    with suppress(OSError):
        yield from (one.path for one in os.scandir(folder) if one.name.endswith(".conf"))


def find_unit(name: str, root: str) -> Unit | None:
    """Return the unit of a deployment in a root; None if there is none, or it is of another root."""
    files = unit_files(name)
    settings: dict[str, list[str]] = {}
    for path in files:
        with suppress(OSError, ValueError):
            _add_settings(read_text(path), settings)
    unit = Unit(path=files[0], settings=settings) if files else None
    return unit if unit is not None and f"--root={root}" in _command(unit) else None


def _add_settings(text: str, settings: dict[str, list[str]]) -> None:
    """Add what a file sets in [Service]; an empty value ends what was set before."""
    section = ""
    for line in map(str.strip, text.replace("\\\n", " ").splitlines()):
        if line.startswith("["):
            section = line
        elif section == "[Service]" and not line.startswith(("#", ";")) and "=" in line:
            setting, _, value = line.partition("=")
            known = settings.setdefault(setting.strip(), [])
            known.append(value.strip()) if value.strip() else known.clear()


def denied(unit: Unit, needs: Needs) -> Iterator[str]:
    """Yield the settings that a unit lacks, each as it is written."""
    if needs.network and _is_on(unit, "PrivateNetwork"):
        yield "PrivateNetwork=no"
    if needs.compiles and _is_on(unit, "MemoryDenyWriteExecute"):
        yield "MemoryDenyWriteExecute=no"
    yield from _denied_devices(unit, needs)
    places = (*needs.folders, *needs.writable)
    if (_is_on(unit, "ProtectHome") or _says(unit, "ProtectHome") == "tmpfs") and any_in(places, HOMES):
        yield "ProtectHome=read-only"
    if _is_on(unit, "PrivateTmp") and any_in(places, TEMPORARY):
        yield "PrivateTmp=no"
    if _says(unit, "ProtectSystem") == "strict":
        granted = [one.replace("%%", "%").lstrip("-+") for one in _words(unit, "ReadWritePaths")]
        yield from (f"ReadWritePaths={folder}" for folder in needs.writable if not any_in([folder], granted))
    watchdog = _says(unit, "WatchdogSec")
    if watchdog.isdecimal() and 0 < int(watchdog) < needs.watchdog:
        yield f"WatchdogSec={needs.watchdog}"


def _denied_devices(unit: Unit, needs: Needs) -> Iterator[str]:
    is_private = _is_on(unit, "PrivateDevices")
    if not is_private and _says(unit, "DevicePolicy") not in {"closed", "strict"}:
        return
    if needs.devices is None:
        yield "DevicePolicy=auto"
        return
    granted = set() if is_private else {one.split()[0] for one in unit.settings.get("DeviceAllow", ())}
    yield from (f"DeviceAllow={node} rw" for node in needs.devices if node not in granted)


def to_renew(unit: Unit) -> str:
    """Return the command that writes a unit anew, with the flags that its service has."""
    words = _command(unit)
    begin = next((at for at, word in enumerate(words, 1) if word in {"apply", "watch"}), len(words))
    given = [word for word in words[begin:] if word != "--last-good"]
    return command("ortdeploy", "service", f"--output={os.path.dirname(unit.path)}", *given)  # noqa: PTH120  text


def _command(unit: Unit) -> list[str]:
    return [one.replace("%%", "%").replace("$$", "$") for one in _words(unit, "ExecStart")]


def _is_on(unit: Unit, setting: str) -> bool:
    return _says(unit, setting).lower() in _YES


def _says(unit: Unit, setting: str) -> str:
    """Return the value of a setting that counts, the last one; empty if it is not set."""
    return next(iter(unit.settings.get(setting, ())[-1:]), "")


def _words(unit: Unit, setting: str) -> list[str]:
    found: list[str] = []
    for value in unit.settings.get(setting, ()):
        with suppress(ValueError):  # a quote that is not closed
            found += shlex.split(value)
    return found
