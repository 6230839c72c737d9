"""Holds the connections of s3fs against the addresses that the gate allows: its HTTP client follows redirects.

Every connection is looked at when its socket is made, so neither a redirect nor a name leads to where a machine finds
its own credentials. A redirect is looked at before it is followed: it may lead as far away or farther, never nearer,
and never from https to http. The credentials of the store itself are fetched by other clients, which are not touched.
"""

import asyncio
import inspect
import socket
from functools import cache
from ipaddress import ip_address
from typing import Any
from urllib.parse import urljoin, urlsplit

from ortdeploy.diagnostics import OrtdeployError
from ortdeploy.files.network_policy import ANYWHERE, nearness, reachable, require_allowed


def gated_settings() -> dict[str, Any]:
    """Return arguments for s3fs: those of the user's own settings, with the gate in them."""
    from aiobotocore.config import AioConfig  # noqa: PLC0415  an extra, for such URLs only
    from fsspec.config import conf  # noqa: PLC0415  as above

    own: dict[str, Any] = conf.get("s3", {}).get("config_kwargs", {})
    known = inspect.signature(AioConfig).parameters
    settings = {**own, "connector_args": {**own.get("connector_args", {}), "socket_factory": _gated_socket}}
    if "http_session_cls" in known and "http_session_cls" not in own and _session_class() is not None:
        settings["http_session_cls"] = _session_class()
    return {"config_kwargs": settings}


def _gated_socket(address: Any) -> socket.socket:
    """Make the socket of a connection to a resolved address. Raises OrtdeployError if nothing is read from there."""
    family, kind, protocol, _, place = address
    require_allowed(str(place[0]))
    return socket.socket(family, kind, protocol)


@cache
def _session_class() -> Any:
    """Return an HTTP client of aiobotocore that looks at redirects; None if it uses another one than aiohttp."""
    from aiobotocore import httpsession  # noqa: PLC0415  as above

    class GatedSession(httpsession.AIOHTTPSession):  # type: ignore[misc]
        """The client of aiohttp, whose redirects are looked at."""

        async def _get_session(self, proxy_url: Any) -> Any:
            session = await super()._get_session(proxy_url)
            if _redirects() not in session.trace_configs:
                session.trace_configs.append(_redirects())
            return session

    return GatedSession if hasattr(httpsession.AIOHTTPSession, "_get_session") else None


@cache
def _redirects() -> Any:
    import aiohttp  # noqa: PLC0415  as above

    looking = aiohttp.TraceConfig()
    looking.on_request_redirect.append(_look_at_redirect)
    looking.freeze()
    return looking


async def _look_at_redirect(_session: Any, _context: Any, answer: Any) -> None:
    """Raise OrtdeployError if a redirect is not followed."""
    here, location = str(answer.url), answer.response.headers.get("Location", "")
    await asyncio.to_thread(require_redirect, here, location)


def require_redirect(here: str, location: str) -> None:
    """Raise OrtdeployError if a redirect from one URL to another one leads nearer, or from https to http."""
    origin, target = urlsplit(here), urlsplit(urljoin(here, location))
    if origin.scheme == "https" and target.scheme != "https":
        raise OrtdeployError(f"the store sends on from https to {target.scheme}, at {target.hostname}")
    most = min(nearness(ip_address(one)) for one in reachable(origin.hostname or "", 0, ANYWHERE))
    reachable(target.hostname or "", 0, most)
