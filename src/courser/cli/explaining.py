"""What went wrong between client and server, in words: one sentence, one hint, one exit code."""

import ssl
from collections.abc import Mapping
from contextlib import suppress

import click

from courser.cli.cells import harmless
from courser.cli.failures import ExitCode, Failure, closest
from courser.cli.naming import Place
from courser.client.client import Client
from courser.client.contexts import Resolved
from courser.errors import (
    AlreadyExists,
    AuthenticationFailed,
    ConnectionFailed,
    CourserError,
    ErrorCode,
    InvalidRequest,
    NotAllowed,
    NotFound,
    OffsetsUnavailable,
    Rejection,
    TimedOut,
    Uncertain,
)
from courser.model.identifiers import Identifier

_HINTS = {
    ErrorCode.DISK_FULL: "make room on the server's disk, then try again",
    ErrorCode.TOPIC_FULL: "raise the limit (courser topic update --max-topic-size), or purge the topic",
    ErrorCode.PARTITION_READ_ONLY: "check the server's disk, then restart the server",
    ErrorCode.PARTITION_OFFLINE: "courser inspect verify, on the server's machine, shows whose files lie there",
    ErrorCode.METADATA_READ_ONLY: "check the server's disk, then restart the server",
    ErrorCode.DAMAGED_DATA: "courser inspect verify, on the server's machine, shows what is damaged",
    ErrorCode.TOO_BIG_MESSAGE_PAYLOAD: "send it in parts, or store it elsewhere and send where",
    ErrorCode.SERVER_BUSY: "try again in a moment",
    ErrorCode.SINK_NOT_FOUND: "courser sink list shows them",
    ErrorCode.TOO_MANY_SINKS: "courser sink delete forgets one whose job is over",
    ErrorCode.STAGED_PART_NOT_FOUND: "run the job again: it stages its parts anew",
    ErrorCode.STAGED_PART_INCOMPLETE: "run the job again: it stages its parts anew",
    ErrorCode.STAGED_TARGET_GONE: "create the topic or its partitions, and run the job again: it stages its parts anew",
    ErrorCode.STAGING_FULL: "courser sink list shows whose it is, courser sink discard makes room",
    ErrorCode.BATCH_ALREADY_PUBLISHED: "its messages are in their topics: go on with the next batch",
    ErrorCode.PUBLISH_UNFINISHED: "publish the same batch again: it goes on where it stopped",
}
"""What to do about some failures of the server."""


def explain(error: CourserError, resolved: Resolved) -> Failure:
    """Anything that the client raises."""
    text = harmless(str(error))
    match error:
        case Uncertain():
            return Failure(text, "look whether it was done, then try again if not", ExitCode.CANNOT_CONNECT)
        case TimedOut():
            hint = "see whether the server is busy (courser stats), and whether it is a server that listens there"
            return Failure(text, hint, ExitCode.CANNOT_CONNECT)
        case ConnectionFailed():
            return Failure(text, _connect_hint(error, resolved), ExitCode.CANNOT_CONNECT)
        case AuthenticationFailed():
            return Failure(
                f"login refused by {resolved.target.address}: {text}", _login_hint(resolved), ExitCode.NOT_ALLOWED
            )
        case NotAllowed():
            hint = "somebody who may manage users can grant it: courser user permissions"
            return Failure(f"not allowed: {text}", hint, ExitCode.NOT_ALLOWED)
        case NotFound():
            return Failure(text, _HINTS.get(error.code, "courser ls shows what is there"), ExitCode.NOT_FOUND)
        case AlreadyExists():
            return Failure(text, "choose another name, or use the one that is there")
        case OffsetsUnavailable():
            return Failure(text, f"--from {error.end_offset} goes on behind them")
        case InvalidRequest() | Rejection():
            usage = f"{click.get_current_context().command_path} --help shows how it is used"
            return Failure(text, _HINTS.get(error.code, usage))
    return Failure(text, _HINTS.get(error.code, "the server's log may say more"))


def _connect_hint(error: ConnectionFailed, resolved: Resolved) -> str:
    match error.__cause__:
        case ConnectionRefusedError() if resolved.target.is_local:
            return f"courser dev starts a server on this machine (the address is from {resolved.source})"
        case ssl.SSLCertVerificationError():
            return (
                "name the certificate to trust with ?tls_ca_file=... behind the address; one that a server made itself "
                "is runtime/tcp_certificate.pem in its data directory"
            )
        case None:
            return (
                f"see whether a server runs at this address, which is from {resolved.source}; "
                "one with TLS needs ?tls=true behind it"
            )
    return f"check the address, which is from {resolved.source}, and that the server runs"


def _login_hint(resolved: Resolved) -> str:
    if resolved.target.token is not None:
        return f"the token, from {resolved.source}, may have expired or been deleted: courser login makes another"
    return (
        f"user {resolved.target.username}, from {resolved.source}: check COURSER_USERNAME and COURSER_PASSWORD, "
        "or courser context show"
    )


# --- things that are not there ------------------------------------------------------------------------


async def explain_missing(
    client: Client, error: NotFound, place: Place | None, names: Mapping[str, Identifier]
) -> Failure:
    """Look for what is missing: the stream, the topic, or one of the other names; and for what was perhaps meant."""
    if error.code is ErrorCode.NO_PARTITIONS and place is not None:
        return without_partitions(place)
    found: Failure | None = None
    # Who may not list things gets the server's own words.
    with suppress(CourserError):
        found = await _missing_place(client, place) or await _missing_name(client, place, names)
    hint = _HINTS.get(error.code, "courser ls shows what is there")
    return found or Failure(harmless(str(error)), hint, ExitCode.NOT_FOUND)


def without_partitions(place: Place) -> Failure:
    """A topic in which no message can be."""
    hint = f"courser partition create {place} 1 makes one"
    return Failure(harmless(f'topic "{place}" has no partitions'), harmless(hint), ExitCode.NOT_FOUND)


async def _missing_place(client: Client, place: Place | None) -> Failure | None:
    if place is None:
        return None
    streams = {stream.name: stream.stream_id for stream in await client.get_streams()}
    if not _is_there(place.stream, streams):
        return _missing("stream", place.stream, streams, "", "courser stream create makes one")
    if place.topic is None:
        return None
    topics = {topic.name: topic.topic_id for topic in await client.get_topics(place.stream)}
    if not _is_there(place.topic, topics):
        where = f' in stream "{place.stream}"'
        return _missing("topic", place.topic, topics, where, f"courser topic create {place.stream}/... makes one")
    if place.partition_id is None:
        return None
    count = (await client.get_topic(*place.names)).topic.partition_count
    if place.partition_id < count:
        return None
    hint = f"its partitions are 0 to {count - 1}" if count else f"courser partition create {place} 1 makes one"
    return Failure(f'partition {place.partition_id} not found in topic "{place}"', hint, ExitCode.NOT_FOUND)


async def _missing_name(client: Client, place: Place | None, names: Mapping[str, Identifier]) -> Failure | None:
    for kind, name in names.items():
        match kind:
            case "group" if place is not None:
                there = {group.name: group.group_id for group in await client.get_consumer_groups(*place.names)}
                where = f' in topic "{place}"'
                remedy = f"courser consumer-group create {place} {name} makes one"
            case "user":
                there = {user.name: user.user_id for user in await client.get_users()}
                where, remedy = "", "courser user list shows them"
            case "token":
                there = {token.name: number for number, token in enumerate(await client.get_personal_access_tokens())}
                where, remedy = "", "courser pat list shows them"
            case "sink":
                there = {sink.name: sink.user_id for sink in await client.get_sinks()}
                where, remedy = "", "courser sink list shows them"
            case "client":
                return Failure(f"client {name} not found", "courser client list shows them", ExitCode.NOT_FOUND)
            case "consumer":
                sentence = (
                    f'no offset is stored for "{name}" in partition {place.partition_id if place else "?"} of "{place}"'
                )
                return Failure(harmless(sentence), "it gets one with its first commit", ExitCode.NOT_FOUND)
            case _:
                continue
        if not _is_there(name, there):
            return _missing(kind, name, there, where, remedy)
    return None


def _is_there(name: Identifier, there: Mapping[str, int]) -> bool:
    return name in there.values() if isinstance(name, int) else name in there


def _missing(kind: str, name: Identifier, there: Mapping[str, int], where: str, remedy: str) -> Failure:
    text = harmless(f'{kind} "{name}" not found{where}')
    return Failure(text, harmless(_closest_hint(kind, name, there, remedy)), ExitCode.NOT_FOUND)


def _closest_hint(kind: str, name: Identifier, there: Mapping[str, int], remedy: str) -> str:
    if str(name) in there:
        return f'a number is an id: the {kind} called "{name}" has id {there[str(name)]}'
    alike = closest(str(name), there)
    if alike is None:
        return remedy
    return f'did you mean "{alike}"?' + (f" {remedy}" if kind in ("stream", "topic") else "")
