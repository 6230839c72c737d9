"""Prints systemd unit files: a service that watches, or one that a timer starts; both are hardened."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.terminal_text import first_control, name_of_control, printable

if TYPE_CHECKING:
    from ortdeploy.planning.service import Needs

_PAUSED = 5
HOMES = ("/home", "/root", "/run/user")
TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108  places that a service is kept from, unless its files are there
_AFTER = "remote-fs.target time-sync.target"
"""What a start waits for, where the system has it: mounted shares (bare folders get no output), and the right time."""
_ALWAYS = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectKernelLogs=yes",
    "ProtectControlGroups=yes",
    "ProtectHostname=yes",
    "ProtectProc=invisible",
    "RestrictNamespaces=yes",
    "RestrictRealtime=yes",
    "RestrictSUIDSGID=yes",
    "LockPersonality=yes",
    "KeyringMode=private",
    "UMask=0027",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallFilter=~@privileged",
    "SystemCallErrorNumber=EPERM",
)


class Service(Struct, frozen=True, kw_only=True):
    """The content of a unit: the command line, the user, and the seconds between two starts; None: it watches.

    `program_folders` hold the program and its libraries.
    """

    command: Sequence[str]
    user: str | None
    program_folders: Sequence[str]
    every: float | None


def render_units(service: Service, needs: "Needs") -> Mapping[str, str]:
    """Return the unit files by name. Raises OrtdeployError if a value would end its line: units run as root."""
    name = unit_name(needs.name)
    units = {f"{name}.service": _section_text(_service(service, needs))}
    if service.every is not None:
        units[f"{name}.timer"] = _section_text(_timer(needs.name, service.every))
    return units


def _section_text(sections: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f"[{title}]\n" + "".join(f"{_one(line)}\n" for line in lines) for title, lines in sections.items())


def _one(line: str) -> str:
    """Return a setting that systemd reads as one line. Raises OrtdeployError for a value that it would read as more.

    systemd ends lines at carriage returns too, and ignores a setting that is not UTF-8, whatever it protects.
    """
    control = first_control(line)
    if control is None:
        return line
    setting, _, value = line.partition("=")
    raise OrtdeployError(
        f"a unit cannot hold the character {name_of_control(control)}, and {setting}= would: {printable(value)}. "
        "Rename the file, the folder or the deployment that has it, or leave out the flag"
    )


def _service(service: Service, needs: "Needs") -> dict[str, list[str]]:
    watches = service.every is None
    unit = [f"Description=ortdeploy {_free_text(needs.name)}", f"After={_AFTER}"]
    if needs.network:
        unit += ["Wants=network-online.target", "After=network-online.target"]
    run = ["Type=notify", f"WatchdogSec={needs.watchdog}", "Restart=on-failure", "RestartSec=30"]
    program, *arguments = service.command
    lines = [
        *(run if watches else ["Type=oneshot"]),
        f"ExecStart={' '.join([_quoted(program), *map(_argument, arguments)])}",
        f"SuccessExitStatus={_PAUSED}",
        "KillMode=mixed",
        "TimeoutStopSec=300",
        *([f"User={service.user}"] if service.user else []),
        *_hardening(service, needs),
    ]
    install = {"Install": ["WantedBy=multi-user.target"]} if watches else {}
    return {"Unit": unit, "Service": lines, **install}


def _hardening(service: Service, needs: "Needs") -> Iterator[str]:
    """Yield the settings that deny the service everything it does not need."""
    yield from _ALWAYS
    yield from (f"ReadWritePaths={_quoted(folder)}" for folder in needs.writable)
    folders = (*needs.folders, *needs.writable, *service.program_folders)
    yield f"ProtectHome={'read-only' if any_in(folders, HOMES) else 'yes'}"
    yield f"PrivateTmp={'no' if any_in(folders, TEMPORARY) else 'yes'}"
    yield from _devices(needs)
    families = ["AF_UNIX", *(["AF_INET", "AF_INET6"] if needs.network else []), *(["AF_NETLINK"] * needs.compiles)]
    yield f"RestrictAddressFamilies={' '.join(families)}"
    if not needs.network:
        yield "PrivateNetwork=yes"
        yield "IPAddressDeny=any"
    if not needs.compiles:
        yield "MemoryDenyWriteExecute=yes"


def _devices(needs: "Needs") -> Iterator[str]:
    """Yield the settings of visible devices; none, so all stay visible, if a provider's devices are not known."""
    if needs.devices is None:
        return
    yield "ProtectClock=yes"
    if not needs.devices:
        yield "PrivateDevices=yes"
        return
    yield "DevicePolicy=closed"
    yield from (f"DeviceAllow={node} rw" for node in needs.devices)


def _timer(name: str, every: float) -> dict[str, list[str]]:
    return {
        "Unit": [f"Description=ortdeploy {_free_text(name)}, every {every:g} s"],
        "Timer": ["OnBootSec=1min", f"OnUnitInactiveSec={every:g}", "AccuracySec=1s"],
        "Install": ["WantedBy=timers.target"],
    }


def any_in(folders: Sequence[str], places: Sequence[str]) -> bool:
    """Return whether one of some folders is a place, or lies in one."""
    return any(f"{folder}/".startswith(f"{place}/") for folder in folders for place in places)


def unit_name(name: str) -> str:
    """Return the name of a deployment's units, without the characters that a unit name cannot have."""
    return "ortdeploy-" + "".join(
        sign if sign.isascii() and (sign.isalnum() or sign in ":-_.") else "-" for sign in name
    )


def _free_text(text: str) -> str:
    """Return text for a setting that is not split into words; a lone backslash at its end would join the next line."""
    return text.replace("%", "%%").replace("\\", "\\\\")


def _argument(word: str) -> str:
    """Quote an argument of a command line: there a dollar sign begins a variable, as it does not in the program."""
    return _quoted(word.replace("$", "$$"))


def _quoted(word: str) -> str:
    """Quote a word for a unit file, so that it stays one word and is no specifier."""
    plain = word.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return plain if plain and not set(plain) & set(" \t'\"\\;") else f'"{plain}"'
