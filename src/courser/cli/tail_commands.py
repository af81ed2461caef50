"""``courser tail``: read a topic, from anywhere, to its end or for ever."""

from collections.abc import AsyncIterator

import click

from courser.cli.connecting import ask_server
from courser.cli.message_printing import MessagePrinter, Style, check_template
from courser.cli.naming import Place, identifier, sought, topic_argument
from courser.cli.payloads import payload_kind_option
from courser.cli.quantity_words import LATEST, START
from courser.cli.server_options import SERVER_EXITS, server_command
from courser.cli.tailing import Reading, read, read_as_member
from courser.cli.terminal import say
from courser.client.client import Client
from courser.client.messages import Message, PollingStrategy

_USUAL_COUNT = 10


@server_command(
    "tail",
    "courser tail demo/orders",
    "courser tail demo/orders --from earliest --follow",
    "courser tail demo/orders --from 2026-01-31T12:00 -o jsonl",
    "courser tail demo/orders --from 10m --format '{offset} {payload}'",
    "courser tail demo/orders --from earliest --raw | gzip > orders.gz",
    exits=f"{SERVER_EXITS[:-1]}, 130 interrupted.",
)
@topic_argument()
@click.option("-f", "--follow", "is_followed", is_flag=True, help="Go on with what arrives, until Ctrl-C.")
@click.option(
    "--from",
    "start",
    type=START,
    metavar="WHERE",
    help="earliest, latest, an offset, a time (2026-01-31T12:00, 12:00; local unless it has a zone), or how long ago "
    "(10m).",
)
@click.option(
    "-n", "--last", type=click.IntRange(min=1), metavar="N", help="The newest N messages. 10 if nothing else is said."
)
@click.option(
    "-e", "--exit-at-end", is_flag=True, help="End where the topic ended at the beginning; as without --follow."
)
@click.option(
    "-p",
    "--partition",
    type=click.IntRange(min=0),
    metavar="NUMBER",
    help="Only this one. Otherwise all, merged by time.",
)
@click.option(
    "-g",
    "--group",
    metavar="GROUP",
    help="Read as a member of this consumer group, and commit what was printed.",
)
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="End after so many messages.")
@payload_kind_option
@click.option("--headers", "with_headers", is_flag=True, help="Show headers too (JSON and CSV always have them).")
@click.option("--raw", "is_raw", is_flag=True, help="Only the bytes of the payloads, a line end behind each.")
@click.option(
    "--format",
    "template",
    metavar="TEMPLATE",
    callback=check_template,
    help="A line of one's own: {partition} {offset} {time} {timestamp} {id} {key} {headers} {payload}, \\t, \\n.",
)
def tail_command(
    *,
    place: Place,
    is_followed: bool,
    start: PollingStrategy | str | None,
    last: int | None,
    exit_at_end: bool,
    partition: int | None,
    group: str | None,
    limit: int | None,
    payload_kind: str,
    with_headers: bool,
    is_raw: bool,
    template: str | None,
    output: str,
) -> None:
    """Print messages of a topic: the newest ten, or from anywhere, and on as they arrive.

    A line has the offset (with the partition before it, if there are several), the time at which the server got the
    message, its key if it has one, and the payload: text as it is, anything else as hexadecimal digits.
    """
    _check(is_followed=is_followed, start=start, last=last, exit_at_end=exit_at_end, group=group)
    # "Only what is new" without waiting for it would be nothing.
    is_followed = is_followed or (start == LATEST and not exit_at_end)
    place = Place(place.stream, place.topic, partition)
    if start is None and last is None and group is None:
        last = _USUAL_COUNT
    style = Style(output, payload_kind, with_headers, is_raw, template)
    reading = Reading(place, start, last, is_followed)

    async def show(client: Client) -> None:
        count = (await client.get_topic(*place.names)).topic.partition_count
        printer = MessagePrinter(style, with_partitions=count > 1 and partition is None)
        try:
            if group is None:
                is_empty = not await _print(read(client, reading), printer, limit)
            else:
                # It minds the limit itself: what is polled and not printed must not be committed.
                member = read_as_member(client, place, identifier(group), is_followed=is_followed, limit=limit)
                is_empty = not await _print(member, printer, None)
            if is_empty:
                say(_nothing(place, group, start))
        finally:
            # Also after Ctrl-C: what was written is a whole document.
            printer.close()

    names = sought(group=None if group is None else identifier(group))
    ask_server(show, place, names, is_patient=is_followed)


def _check(*, is_followed: bool, start: object, last: int | None, exit_at_end: bool, group: str | None) -> None:
    if is_followed and exit_at_end:
        raise click.UsageError("--follow and --exit-at-end exclude each other")
    if start is not None and last is not None:
        raise click.UsageError("--from and --last exclude each other")
    if group is not None and (start is not None or last is not None):
        raise click.UsageError("a group goes on where it stopped: --group goes without --from and --last")


def _nothing(place: Place, group: str | None, start: object) -> str:
    """What is said where nothing was printed."""
    if group is not None:
        return f'nothing to read in {place} for group "{group}"'
    return f"nothing to read in {place}" + ("" if start is None else " from there on")


async def _print(source: AsyncIterator[list[Message]], printer: MessagePrinter, limit: int | None) -> int:
    """Return how many there were."""
    count = 0
    async for messages in source:
        shown = messages if limit is None else messages[: limit - count]
        printer.put(shown)
        count += len(shown)
        if count == limit:
            break
    return count
