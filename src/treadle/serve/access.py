"""Access control: by token, and never by way of a page that somebody's browser shows.

A page may send requests from the browser of whoever looks at it, to servers that only that machine
can reach. It names the origin that it came from, and where it has its own name lead here (DNS
rebinding), the host that it believes to speak to.
"""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Collection, Mapping

from treadle.serve.protocol import RequestRefusal

_HEALTH = ("/v2/health/live", "/v2/health/ready", "/health")
"""Paths that need no token, since whoever starts and stops servers asks them."""


class Access:
    """Decides about requests.

    Args:
        token: that requests have to carry; "" for none.
        hosts: names that the server may be called by, besides numbers and localhost; None: any.
    """

    def __init__(self, token: str = "", hosts: Collection[str] | None = None) -> None:
        self._expected = f"Bearer {token}".encode() if token else b""
        self._hosts = None if hosts is None else {"localhost", *(h.lower() for h in hosts)}

    def check(self, method: str, path: str, headers: Mapping[bytes, bytes]) -> None:
        """Refuse a request that is not to be answered.

        Raises:
            Refusal: 421 for a wrong host, 403 for a page of another origin, 401 without the token.
        """
        host = headers.get(b"host", b"").decode("latin-1")
        if self._hosts is not None and host and not self._is_ours(host):
            raise RequestRefusal(
                421, f"this server is not called {_name(host)[:80]!r}; see --allow-host"
            )
        if method not in ("GET", "HEAD") and _is_of_another_page(host, headers):
            raise RequestRefusal(403, "requests of pages of another origin are not answered")
        if path not in _HEALTH:
            self.check_token(headers.get(b"authorization", b""))

    def check_token(self, given: bytes) -> None:
        """Refuse a request without the token, if one is asked for.

        Raises:
            Refusal: 401.
        """
        if self._expected and not hmac.compare_digest(given, self._expected):
            asked = b"www-authenticate", b"Bearer"
            raise RequestRefusal(401, "the request has no token, or a wrong one", asked)

    def _is_ours(self, host: str) -> bool:
        """Return whether a name is known, or a number: a page of another name cannot have that."""
        name = _name(host)
        return name in (self._hosts or ()) or is_number(name)


def _name(host: str) -> str:
    """A host without its port."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].lower().rstrip(".")


def is_number(name: str) -> bool:
    """Return whether a host is an address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _is_of_another_page(host: str, headers: Mapping[bytes, bytes]) -> bool:
    origin = headers.get(b"origin")
    if origin is not None:
        return origin.decode("latin-1").partition("://")[2].lower() != host.lower()
    return headers.get(b"sec-fetch-site", b"none") in (b"cross-site", b"same-site")


__all__ = ["Access", "is_number"]
