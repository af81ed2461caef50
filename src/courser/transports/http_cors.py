"""Cross-origin requests: which headers tell a browser that a page of another origin may use the server."""

from collections.abc import Mapping

from courser.transports.settings import CorsSettings

_VARY = "origin, access-control-request-method, access-control-request-headers"


class Cors:
    """The headers, from the settings."""

    def __init__(self, settings: CorsSettings) -> None:
        self._settings = settings
        self._is_open = settings.origins[:1] == ("*",)

    def headers(self, origin: str) -> dict[str, str]:
        """Those of every answer."""
        settings = self._settings
        found = {"vary": _VARY}
        if self._is_open:
            found["access-control-allow-origin"] = "*"
        elif origin in settings.origins:
            found["access-control-allow-origin"] = origin
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
