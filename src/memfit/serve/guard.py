"""Who may ask: whoever has the token, from a page of this server's own.

A page of another site that is open in the same browser knows neither the token nor the password, and its requests carry an Origin
of their own. A name that a hostile DNS server lets point to this machine is refused by the Host header.
"""

from __future__ import annotations

import base64
import binascii
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
TOKEN_HEADER = "x-memfit-token"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; frame-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_HEADERS = {
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclass(frozen=True, kw_only=True)
class Door:
    """What a request must bring."""

    token: str
    host: str = "127.0.0.1"
    """The interface that is listened on."""
    port: int = 0
    password: str = ""
    """Asked for in addition where others can reach the interface."""

    def why_not(self, headers: Headers, query: str) -> tuple[int, str]:
        """A status and a reason for refusing a request; 0 where there is none. The order matters: what is not for this server is
        told nothing else."""
        if not self._is_our_name(headers.get("host", "")):
            return 421, "this server answers under its own address only"
        origin = headers.get("origin")
        if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
            return 403, "requests of other sites are refused"
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "requests of other sites are refused"
        if self.password and not _same(self.password, _password(headers.get("authorization", ""))):
            return 401, "a password is needed"
        given = headers.get(TOKEN_HEADER) or parse_qs(query).get("token", [""])[0]
        return (0, "") if _same(self.token, given) else (403, "open the address that memfit serve printed: it has the token")

    def _is_our_name(self, host: str) -> bool:
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        if not name:
            name, port = host, ""
        if self.port and port and port != str(self.port):
            return False
        return name in LOOPBACK or (bool(self.password) and (_is_address(name) or name in _names_of_this_machine()))


def _same(wanted: str, given: str) -> bool:
    return secrets.compare_digest(wanted.encode(), given.encode())


def _password(authorization: str) -> str:
    """Of HTTP's basic authentication; the user's name is not looked at."""
    kind, _, encoded = authorization.partition(" ")
    if kind.lower() != "basic":
        return ""
    try:
        return base64.b64decode(encoded).decode().partition(":")[2]
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.strip("[]"))
    except ValueError:
        return False
    return True


def _names_of_this_machine() -> Iterable[str]:
    return socket.gethostname(), socket.getfqdn()


class DoorKeeper:
    """Lets in what the door lets in, and puts the headers on that keep other pages out."""

    def __init__(self, app: ASGIApp, door: Door, open_paths: tuple[str, ...] = ()) -> None:
        """``open_paths`` hold nothing of the user's (the script and the style of the page), and need no token."""
        self._app, self._door, self._open_paths = app, door, open_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        status, reason = self._door.why_not(headers, scope["query_string"].decode("latin-1"))
        if status == 403 and scope["path"] in self._open_paths and headers.get("origin") is None:
            status = 0
        if status:
            asks = {"WWW-Authenticate": 'Basic realm="memfit"'} if status == 401 else {}
            await PlainTextResponse(f"memfit: {reason}\n", status, headers=asks | _HEADERS)(scope, receive, send)
            return

        async def send_guarded(message: Any) -> None:
            if message["type"] == "http.response.start":
                had = {name.lower() for name, _ in message["headers"]}
                more = _HEADERS if b"content-security-policy" in had else _HEADERS | {"Content-Security-Policy": _POLICY}
                message["headers"] += [(name.lower().encode(), value.encode()) for name, value in more.items()]
            await send(message)

        await self._app(scope, receive, send_guarded)
