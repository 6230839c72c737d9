"""Judges the addresses of servers: how near they are, and which nothing is ever read from."""

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

from ortdeploy.diagnostics import OrtdeployError

Address = IPv4Address | IPv6Address

_ONLY_THERE = (
    "169.254.0.0/16", "fe80::/10", "fd00:ec2::254/128", "100.100.100.200/32", "168.63.129.16/32", "0.0.0.0/8", "::/128",
)  # fmt: skip
_NEVER = tuple(ip_network(one) for one in _ONLY_THERE)
"""Addresses that mean this machine's own network link, and those at which clouds hand out its credentials."""

_WHY_NEVER = "At such addresses a machine finds its own credentials and nobody's data."

ANYWHERE = 2
"""How near a server may be that the manifest itself names: on this machine too."""

_EMBEDDED = ip_network("64:ff9b::/96")  # IPv4 addresses behind NAT64


def why_forbidden(host: str) -> str | None:
    """Return the address that a host is written as, and why nothing is read from it; None if it may be."""
    address = _literal_address(host)
    return None if address is None or not _is_forbidden(address) else f"{address}. {_WHY_NEVER}"


def require_allowed(address: str) -> None:
    """Raise OrtdeployError if nothing is ever read from an address; names of sockets are let through."""
    literal = _literal_address(address)
    if literal is not None and _is_forbidden(literal):
        raise OrtdeployError(f"it leads to {literal}. {_WHY_NEVER}".rstrip("."))


def nearness(address: Address) -> int:
    """Return 0 for an address of the internet, 1 for one of a private network, 2 for this machine."""
    address = _unwrapped(address)
    return ANYWHERE if address.is_loopback else 0 if address.is_global else 1


def reachable(host: str, port: int, most: int) -> list[str]:
    """Return the addresses of a server. Raises OrtdeployError if one is nearer than `most`, or is never allowed."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise OrtdeployError(f"the server {host} is not found: {getattr(error, 'strerror', None) or error}") from error
    addresses = [ip_address(str(one[4][0]).partition("%")[0]) for one in found]
    for address in addresses:
        if _is_forbidden(address):
            raise OrtdeployError(f"{host} leads to {address}. {_WHY_NEVER}".rstrip("."))
        if nearness(address) > most:
            raise OrtdeployError(f"{host} leads to {address}, which is nearer than the server that the manifest names")
    return [str(address) for address in addresses]


def _is_forbidden(address: Address) -> bool:
    address = _unwrapped(address)
    return address.is_multicast or any(address in network for network in _NEVER)


def _unwrapped(address: Address) -> Address:
    """Return the IPv4 address inside of an IPv6 one, or the address itself."""
    if isinstance(address, IPv4Address):
        return address
    if address in _EMBEDDED:
        return IPv4Address(int(address) & 0xFFFFFFFF)
    return address.ipv4_mapped or address.sixtofour or address


def _literal_address(host: str) -> Address | None:
    """Return the address that a host is written as, in dots, as one number or in hexadecimal; None for a name."""
    try:
        return ip_address(host.partition("%")[0])
    except ValueError:
        pass
    if not re.fullmatch(r"[0-9a-fA-FxX.]+", host):
        return None
    try:
        return IPv4Address(socket.inet_aton(host))
    except OSError:
        return None
