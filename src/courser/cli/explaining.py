"""Explain errors of the client and the server: one sentence, one hint, one exit code."""

import ssl
from collections.abc import Mapping
from contextlib import suppress

import click

from courser.cli.failures import ExitCode, Failure, closest
from courser.cli.naming import TopicPath
from courser.cli.terminal import harmless
from courser.client.client import Client
from courser.client.contexts import DEFAULT_SOURCE, Resolved
from courser.client.targets import DEFAULT_NAME, DEFAULT_PASSWORD, DEFAULT_PORT
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
    TooLarge,
    Uncertain,
)
from courser.model.identifiers import Identifier

_HINTS = {
    ErrorCode.DISK_FULL: "free space on the server's disk, then try again",
    ErrorCode.TOPIC_FULL: "raise the limit (courser topic update --max-topic-size), or purge the topic",
    ErrorCode.PARTITION_READ_ONLY: "check the server's disk, then restart the server",
    ErrorCode.PARTITION_OFFLINE: "courser inspect verify, on the server's machine, shows which files are in the way",
    ErrorCode.METADATA_READ_ONLY: "check the server's disk, then restart the server",
    ErrorCode.DAMAGED_DATA: "courser inspect verify, on the server's machine, shows what is damaged",
    ErrorCode.TOO_BIG_MESSAGE_PAYLOAD: "split the message, or store the data elsewhere and send a reference to it",
    ErrorCode.SERVER_BUSY: "try again in a moment",
    ErrorCode.GROUP_HAS_MEMBERS: "stop the members, or pass --force to remove them from the group",
    ErrorCode.ARCHIVE_FAILURE: "check the archive's store, then try again: the messages are not lost",
    ErrorCode.NOT_ARCHIVED: "check the archive's store, then try again",
    ErrorCode.SINK_NOT_FOUND: "courser sink list shows all sinks",
    ErrorCode.TOO_MANY_SINKS: "delete a sink whose job has finished: courser sink delete",
    ErrorCode.STAGED_PART_NOT_FOUND: "run the job again: it stages its parts again",
    ErrorCode.STAGED_PART_INCOMPLETE: "run the job again: it stages its parts again",
    ErrorCode.STAGED_TARGET_GONE: "create the topic or its partitions, then run the job again",
    ErrorCode.STAGING_FULL: "courser sink list shows what is staged, courser sink discard deletes it",
    ErrorCode.BATCH_ALREADY_PUBLISHED: "its messages are in their topics: continue with the next batch",
    ErrorCode.PUBLISH_UNFINISHED: "publish the same batch again: it continues where it stopped",
}
"""Hints for some failures of the server."""
_LIST_HINT = "courser ls lists all streams and topics"


def explain(error: CourserError, resolved: Resolved) -> Failure:
    """The failure for any error that the client raises."""
    text = harmless(str(error))
    match error:
        case Uncertain():
            return Failure(text, "check whether it took effect before you try again", ExitCode.CANNOT_CONNECT)
        case TimedOut():
            hint = "check whether the server is busy (courser stats), and whether the address is that of a server"
            return Failure(text, hint, ExitCode.CANNOT_CONNECT)
        case ConnectionFailed():
            return Failure(text, _connect_hint(error, resolved), ExitCode.CANNOT_CONNECT)
        case AuthenticationFailed():
            return _failed_login(error, resolved)
        case NotAllowed():
            hint = "a user who may manage users can grant the permission: courser user permissions"
            return Failure(f"permission denied: {text}", hint, ExitCode.NOT_ALLOWED)
        case NotFound():
            return Failure(text, _HINTS.get(error.code, _LIST_HINT), ExitCode.NOT_FOUND)
        case AlreadyExists():
            return Failure(text, "choose another name, or use the existing one")
        case OffsetsUnavailable():
            return Failure(text, f"to continue after them, pass --from {error.end_offset}")
        case TooLarge():
            advice = "split the data, or store it elsewhere and send a reference to it"
            return Failure(
                text, advice if error.setting is None else f"raise {error.setting} on the server, or {advice}"
            )
        case InvalidRequest() | Rejection():
            usage = f"for usage, run {click.get_current_context().command_path} --help"
            return Failure(text, _HINTS.get(error.code, usage))
    return Failure(text, _HINTS.get(error.code, "check the server's log for details"))


def explain_login(error: CourserError, resolved: Resolved) -> Failure:
    """The failure for an error before the login was complete: a name or password of a wrong size is a failed login."""
    if error.code in (ErrorCode.INVALID_USERNAME, ErrorCode.INVALID_PASSWORD):
        return _failed_login(error, resolved)
    failure = explain(error, resolved)
    if type(error) is ConnectionFailed and error.__cause__ is None:
        # Somebody accepted the connection and closed it.
        failure.hint = (
            f"check that a server is running at this address, which comes from {resolved.source}; "
            "if it uses TLS, append ?tls=true to the address"
        )
    return failure


def _failed_login(error: CourserError, resolved: Resolved) -> Failure:
    text = f"login to {resolved.target.address} failed: {harmless(str(error))}"
    return Failure(text, _login_hint(resolved), ExitCode.NOT_ALLOWED)


def _connect_hint(error: ConnectionFailed, resolved: Resolved) -> str:
    match error.__cause__:
        case ConnectionRefusedError() if resolved.target.is_local:
            port = resolved.target.port
            command = "courser dev" if port == DEFAULT_PORT else f"courser dev --port {port}"
            return f"start a server on this machine with {command} (the address comes from {resolved.source})"
        case FileNotFoundError():
            return f"check tls_ca_file in the address, which comes from {resolved.source}"
        case ssl.SSLCertVerificationError():
            return (
                "append ?tls_ca_file=... to the address to trust a certificate; one that the server generated is "
                "runtime/tcp_certificate.pem in its data directory"
            )
        case None:
            return f"check that the server is still running; its address comes from {resolved.source}"
    return f"check the address, which comes from {resolved.source}, and that the server is running"


def _login_hint(resolved: Resolved) -> str:
    if resolved.target.token is not None:
        return f"the token, from {resolved.source}, may have expired or been deleted; create one with courser login"
    if resolved.login_source == DEFAULT_SOURCE:
        return (
            f"no login is configured, so {DEFAULT_NAME} / {DEFAULT_PASSWORD} was tried: set COURSER_USERNAME and "
            "COURSER_PASSWORD, or save them with courser context create"
        )
    return (
        f'check the user name "{resolved.target.username}" and the password, which comes from {resolved.login_source}'
    )


# --- things that do not exist -------------------------------------------------------------------------


async def explain_missing(
    client: Client, error: NotFound, place: TopicPath | None, names: Mapping[str, Identifier]
) -> Failure:
    """Find out what is missing, the stream, the topic or another name, and suggest a similar one."""
    if error.code is ErrorCode.NO_PARTITIONS and place is not None:
        return without_partitions(place)
    found: Failure | None = None
    # A user without the permission to list things gets the server's message.
    with suppress(CourserError):
        found = await _missing_place(client, place) or await _missing_name(client, place, names)
    hint = _HINTS.get(error.code, _LIST_HINT)
    return found or Failure(harmless(str(error)), hint, ExitCode.NOT_FOUND)


def without_partitions(place: TopicPath) -> Failure:
    hint = f"courser partition create {place} 1 adds one"
    return Failure(harmless(f'topic "{place}" has no partitions'), harmless(hint), ExitCode.NOT_FOUND)


async def _missing_place(client: Client, place: TopicPath | None) -> Failure | None:
    if place is None:
        return None
    streams = {stream.name: stream.stream_id for stream in await client.get_streams()}
    if not _is_there(place.stream, streams):
        return _missing("stream", place.stream, streams, "", "courser stream create creates one")
    if place.topic is None:
        return None
    topics = {topic.name: topic.topic_id for topic in await client.get_topics(place.stream)}
    if not _is_there(place.topic, topics):
        where = f' in stream "{place.stream}"'
        return _missing("topic", place.topic, topics, where, f"courser topic create {place.stream}/... creates one")
    if place.partition_id is None:
        return None
    count = (await client.get_topic(*place.names)).topic.partition_count
    if place.partition_id < count:
        return None
    hint = f"its partitions are 0 to {count - 1}" if count else f"courser partition create {place} 1 adds one"
    return Failure(f'partition {place.partition_id} not found in topic "{place}"', hint, ExitCode.NOT_FOUND)


async def _missing_name(client: Client, place: TopicPath | None, names: Mapping[str, Identifier]) -> Failure | None:
    for kind, name in names.items():
        match kind:
            case "group" if place is not None:
                there = {group.name: group.group_id for group in await client.get_consumer_groups(*place.names)}
                where = f' in topic "{place}"'
                remedy = f"courser consumer-group create {place} {name} creates it"
            case "user":
                there = {user.name: user.user_id for user in await client.get_users()}
                where, remedy = "", "courser user list shows all users"
            case "token":
                there = {token.name: number for number, token in enumerate(await client.get_personal_access_tokens())}
                where, remedy = "", "courser pat list shows your tokens"
            case "sink":
                there = {sink.name: sink.user_id for sink in await client.get_sinks()}
                where, remedy = "", "courser sink list shows all sinks"
            case "client":
                return Failure(f"client {name} not found", "courser client list shows all clients", ExitCode.NOT_FOUND)
            case "consumer":
                sentence = (
                    f'no offset is stored for "{name}" in partition {place.partition_id if place else "?"} of "{place}"'
                )
                return Failure(harmless(sentence), "the first commit stores one", ExitCode.NOT_FOUND)
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
        return f'numbers are ids; the {kind} named "{name}" has id {there[str(name)]}'
    alike = closest(str(name), there)
    if alike is None:
        return remedy
    return f'did you mean "{alike}"?' + (f" {remedy}" if kind in ("stream", "topic") else "")
