"""Cross-origin requests: which headers tell a browser that a page of another origin may use the server."""

from collections.abc import Mapping

from courser.transports.http_exchange import head_line
from courser.transports.settings import CorsSettings

_VARY = "origin, access-control-request-method, access-control-request-headers"


class Cors:
    """The headers, from the settings."""

    def __init__(self, settings: CorsSettings) -> None:
        self._settings = settings
        self._is_open = settings.origins[:1] == ("*",)
        self._lines = {origin.encode(): self._lines_for(origin) for origin in settings.origins}
        self._lines_for_others = self._lines_for("*" if self._is_open else None)

    def lines(self, origin: bytes) -> bytes:
        """The headers of every answer, as lines."""
        return self._lines_for_others if self._is_open else self._lines.get(origin, self._lines_for_others)

    def _lines_for(self, allowed: str | None) -> bytes:
        return b"".join(head_line(name, value) for name, value in self._headers(allowed).items())

    def _headers(self, allowed: str | None) -> dict[str, str]:
        settings = self._settings
        found = {"vary": _VARY}
        if allowed is not None:
            found["access-control-allow-origin"] = allowed
        if settings.allows_credentials:
            found["access-control-allow-credentials"] = "true"
        if settings.exposed_headers:
            found["access-control-expose-headers"] = ",".join(settings.exposed_headers)
        return found

    def preflight(self, request: Mapping[bytes, bytes]) -> dict[str, str]:
        """Those of the answer to a question what is allowed, besides the usual ones."""
        settings = self._settings
        found = {
            "access-control-allow-methods": ",".join(settings.methods),
            "access-control-allow-headers": ",".join(settings.headers),
        }
        if settings.allows_private_network and b"access-control-request-private-network" in request:
            found["access-control-allow-private-network"] = "true"
        return found
