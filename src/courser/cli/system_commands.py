"""``courser ping``, ``options``, ``snapshot`` and ``ui``: the server as a whole."""

import asyncio
import os
import time
import webbrowser
from pathlib import Path

import click
from msgspec.structs import asdict

from courser.cli.connecting import ask_server, find_target
from courser.cli.explaining import explain
from courser.cli.failures import Failure
from courser.cli.fields import Record, fields, plain, size_text
from courser.cli.options import option
from courser.cli.output import emit_deed, emit_list
from courser.cli.server_options import server_command
from courser.cli.terminal import write
from courser.client.client import Client
from courser.client.connection import open_connection
from courser.client.targets import Target
from courser.errors import CourserError
from courser.model.quantities import NEVER

_SNAPSHOT_COMPRESSIONS = ("stored", "deflated", "bzip2", "zstd", "lzma", "xz")
_SNAPSHOT_KINDS = {
    "filesystem_overview": "filesystem",
    "process_list": "processes",
    "resource_usage": "resources",
    "test": "test",
    "server_logs": "logs",
    "server_config": "configuration",
    "all": "all",
}
"""Names of the Iggy CLI, and those of the client."""


_PING_FIELDS = fields("number#, milliseconds#, address")
_OPTION_FIELDS = fields(
    "key, default, description", default=lambda value: "no limit" if value is None else plain(value)
)


@server_command("ping", "courser ping", "courser ping --count 5 -o json")
@option("-c, --count COUNT", "How many.", type=click.IntRange(1, 10_000), default=1)
def ping_command(*, count: int, output: str) -> None:
    """Check whether the server responds, and how fast. Needs no login."""
    resolved = find_target(needs_login=False)
    try:
        records = asyncio.run(_ping(resolved.target, count))
    except CourserError as error:
        raise explain(error, resolved) from error
    emit_list(_PING_FIELDS, records, output)


async def _ping(target: Target, count: int) -> list[Record]:
    records: list[Record] = []
    connection = await open_connection(target)
    try:
        for number in range(1, count + 1):
            begin = time.perf_counter()
            await connection.greet(target.connect_timeout)
            milliseconds = round((time.perf_counter() - begin) * 1000, 3)
            records.append({"number": number, "milliseconds": milliseconds, "address": target.address})
    finally:
        connection.close()
    return records


@server_command("options", "courser options", "courser options user -o json")
@click.argument("scope", type=click.Choice(("topic", "stream", "user")), default="topic")
def options_command(*, scope: str, output: str) -> None:
    """List the options of topics, streams or users, with the server's defaults."""
    options = ask_server(lambda client: client.describe_options(scope))
    records = [{**asdict(option), "default": None if option.default == NEVER else option.default} for option in options]
    emit_list(_OPTION_FIELDS, records, output, empty=f"a {scope} has no options")


@server_command("snapshot", "courser snapshot", "courser snapshot --snapshot-types server_logs --out-dir /tmp")
@option("-c, --compression", "Compression of the files.", type=click.Choice(_SNAPSHOT_COMPRESSIONS), default="deflated")
@option(
    "-s, --snapshot-types KIND",
    f"What to include: {', '.join(_SNAPSHOT_KINDS)}. Default: everything. May be repeated.",
    "kinds",
    type=click.Choice(tuple(_SNAPSHOT_KINDS)),
    multiple=True,
)
@option(
    "--out-dir DIRECTORY",
    "The directory for the file. Default: the current directory.",
    type=click.Path(path_type=Path),
    default=Path(),
    show_default=False,
)
def snapshot_command(*, compression: str, kinds: tuple[str, ...], out_dir: Path, output: str) -> None:
    """Collect logs, configuration and process data for troubleshooting in a ZIP file. Secrets are masked."""
    wanted = [_SNAPSHOT_KINDS[kind] for kind in kinds]
    data = ask_server(lambda client: client.get_snapshot(*wanted, compression=compression))
    path = out_dir / f"snapshot-{time.strftime('%Y%m%d-%H%M%S')}.zip"
    try:
        with path.open("xb") as file:
            file.write(data)
    except OSError as error:
        hint = "choose a writable directory with --out-dir"
        raise Failure(f"cannot write {path}: {error.strerror or error}", hint) from error
    emit_deed(f"wrote {path}, {size_text(len(data))}", {"path": str(path), "size": len(data)}, output)


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
