"""``courser ui``: open the web console, logged in as the user of the context."""

import os
import webbrowser

from courser.cli.connecting import ask_server, find_target
from courser.cli.failures import Failure
from courser.cli.options import option
from courser.cli.output import emit_deed
from courser.cli.server_options import server_command
from courser.cli.terminal import write
from courser.client.client import Client
from courser.client.targets import Target


@server_command("ui", "courser ui", "courser ui --print", "courser ui --address https://console.example.com/courser")
@option("--print", "Print the link instead of opening a browser.", "is_printed")
@option(
    "--address URL",
    "Where the browser finds the server, if a proxy or TLS is in between. Default: the server's HTTP port.",
)
def ui_command(*, is_printed: bool, address: str | None, output: str) -> None:
    """Open the web console in the browser, logged in as the user of the context.

    The link logs in once, within five minutes. Without a browser it is printed.
    """
    resolved = find_target()

    async def make_link(client: Client) -> str:
        place = address or await _address(client, resolved.target)
        token = (await client.create_one_time_token()).token
        return f"{place.rstrip('/')}/ui/#login={token}"

    link = ask_server(make_link, resolved=resolved)
    is_opened = not is_printed and output == "table" and _has_display() and webbrowser.open(link)
    if output == "table" and not is_opened:
        write(f"{link}\n")
    else:
        emit_deed("opened the console in the browser", {"url": link, "is_opened": is_opened}, output)


async def _address(client: Client, target: Target) -> str:
    """The HTTP port of the server, at the address of the context."""
    port = (await client.get_cluster_metadata()).nodes[0].http_port
    if not port:
        raise Failure(
            "the server does not listen for HTTP, so it has no console",
            "set http.enabled and ui.enabled, and restart it",
        )
    host = f"[{target.host}]" if ":" in target.host else target.host
    return f"http://{host}:{port}"


def _has_display() -> bool:
    """Whether a browser can appear: over SSH one would open in the terminal."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY") or os.environ.get("BROWSER"))
