"""The options of the data source ``courser``: one table, from which parsing, error messages and documentation are made.

Spark hands options over as text, with names in whatever case. Unknown names are errors that name the closest one that
exists; so are values that an option does not take. Passwords and tokens may come from the environment instead: the
driver resolves them once, so that they stand in no plan and no log.
"""

import difflib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from courser.client.contexts import resolve_target
from courser.client.targets import Target
from courser.errors import ClientFailure, ErrorCode, TargetRefused
from courser.spark.option_kinds import (
    COUNT,
    DURATION,
    FLAG,
    NAMES,
    NUMBER,
    OFFSETS,
    SIZE,
    TEXT,
    TIMES,
    TOPICS,
    Kind,
    choice,
)
from courser.spark.topic_names import listed

RETRY_PAUSE = 0.5
"""Seconds before the first attempt to reach a server that went away; doubled for each further one."""


class OptionRefused(ClientFailure):
    """An option that does not exist, is missing, or has a value that it does not take."""

    code = ErrorCode.CONFIGURATION_REFUSED


class Use(Enum):
    """What an option is for."""

    BATCH = "batch read"
    STREAM = "stream read"
    WRITE = "write"


BATCH = frozenset({Use.BATCH})
STREAM = frozenset({Use.STREAM})
READS = BATCH | STREAM
WRITE = frozenset({Use.WRITE})
EVERYTHING = frozenset(Use)


@dataclass(frozen=True, slots=True)
class Option:
    """One option."""

    name: str
    kind: Kind
    default: str | None
    """As a user would write it; None: nothing."""
    help: str
    uses: frozenset[Use]


# --- the table ----------------------------------------------------------------------------------------

OPTIONS: tuple[Option, ...] = (
    Option(
        "url", TEXT, None, "The server: `iggy://user:password@host:port`. Else as the client looks for it.", EVERYTHING
    ),
    Option("address", TEXT, None, "The server as `host:port`, in place of `url`.", EVERYTHING),
    Option("context", TEXT, None, "The name of a saved context, in place of `url`.", EVERYTHING),
    Option("username", TEXT, None, "Who logs in. Else `COURSER_USERNAME` of the driver's environment.", EVERYTHING),
    Option("password", TEXT, None, "Better not here: `COURSER_PASSWORD` of the driver's environment.", EVERYTHING),
    Option("tokenFile", TEXT, None, "A file of the driver with a personal access token.", EVERYTHING),
    Option("tls", FLAG, "false", "Whether the connection is encrypted.", EVERYTHING),
    Option("tlsCaFile", TEXT, None, "PEM file of the authority that signed the server's certificate.", EVERYTHING),
    Option(
        "connectTimeout",
        DURATION,
        None,
        "How long a connection may take to come about. Default: as `url` says, or 5 s.",
        EVERYTHING,
    ),
    Option(
        "requestTimeout", DURATION, None, "How long an answer may take. Default: as `url` says, or 30 s.", EVERYTHING
    ),
    Option(
        "retries",
        NUMBER,
        "5",
        "How often to try again, with growing pauses from half a second to 5, when the server is away.",
        EVERYTHING,
    ),
    Option("stream", TEXT, None, "Name of the stream. Required.", EVERYTHING),
    Option(
        "topic",
        TOPICS,
        None,
        "Name of the topic. Required. A read takes several topics of the stream: `orders,payments`. A comma that "
        "belongs to a name is written `\\,`.",
        EVERYTHING,
    ),
    Option(
        "source",
        choice("auto", "server", "segments"),
        "auto",
        "Where messages come from. `auto`: closed segments from their files where `path` is given and the task can "
        "read it, everything else from the server. `segments`: files only, without a server.",
        READS,
    ),
    Option("path", TEXT, None, "The server's data directory, as drivers and tasks see it.", READS),
    Option(
        "verify",
        choice("full", "off"),
        "full",
        "`full` checks the stored hashes of every batch that is read from a file; `off` only those of headers.",
        READS,
    ),
    Option(
        "onCorrupt",
        choice("fail", "skip", "quarantine"),
        "fail",
        "Damaged data in a file: `fail` stops; `skip` passes over it and logs which offsets are missing; `quarantine` "
        "does that too, and copies the damaged bytes to `quarantinePath`.",
        READS,
    ),
    Option("quarantinePath", TEXT, None, "Folder for damaged bytes, as tasks see it: a file for each place.", READS),
    Option(
        "startingOffsets",
        OFFSETS,
        None,
        "Where a batch read, or a query without a checkpoint, begins. Default: `earliest` for a batch read, `latest` "
        "for a stream; so begin partitions and topics that are not named too. The offsets of one topic may stand "
        'alone: `{"0": 23}`. `-2` is `earliest`, `-1` `latest`; a topic can have a word: `{"orders": "earliest"}`.',
        READS,
    ),
    Option("endingOffsets", OFFSETS, "latest", "Where a batch read ends: offsets are exclusive.", BATCH),
    Option(
        "startingTimestamp",
        TIMES,
        None,
        "Begin with the first message that was appended at this time or later. By topic, or by topic and partition "
        '(`{"orders": {"0": 1777636800000000}}`), if they differ; what is not named begins as without this option.',
        READS,
    ),
    Option(
        "endingTimestamp",
        TIMES,
        None,
        "End before the first message that was appended at this time or later. By topic and partition as above.",
        BATCH,
    ),
    Option("maxOffsetsPerTrigger", COUNT, None, "Messages of a micro-batch at most.", STREAM),
    # Four tasks of `maxBytesPerPartition`, and about a second on two cores: what Spark does once for each micro-batch,
    # some 200 ms, is a small part of it, and a query that fails has not much to do again.
    Option("maxBytesPerTrigger", SIZE, "512 MiB", "Bytes of a micro-batch, about.", STREAM),
    Option(
        "minOffsetsPerTrigger",
        COUNT,
        None,
        "Wait for so many messages before a micro-batch, at most `maxTriggerDelay`.",
        STREAM,
    ),
    Option("maxTriggerDelay", DURATION, "15m", "How long `minOffsetsPerTrigger` may hold messages back.", STREAM),
    Option("minPartitions", COUNT, None, "Split into at least so many tasks.", READS),
    Option("maxBytesPerPartition", SIZE, "128 MiB", "Bytes of a task, about: larger ranges are split.", READS),
    Option(
        "failOnDataLoss",
        FLAG,
        "true",
        "Messages that are gone before they were read: `true` stops, with the numbers; `false` goes on, and counts "
        "them in the offsets that Spark shows and checkpoints.",
        READS,
    ),
    Option(
        "consumer",
        TEXT,
        None,
        "A name under which the server stores how far the query got: for views of lag only.",
        STREAM,
    ),
    Option("schemaStyle", choice("native", "kafka"), "native", "The columns, and what they are called.", READS),
    Option("includeHeaders", FLAG, "false", "Whether there is a column `headers`.", READS),
    Option("columns", NAMES, None, "Only these columns. The same as a schema that names them.", READS),
    Option(
        "pushdown",
        FLAG,
        "false",
        "Use filters on `topic`, `partition`, `offset` and `timestamp` to read less. Needs the setting "
        "`spark.sql.python.filterPushdown.enabled=true`. Only for a frame that is read once, see above.",
        BATCH,
    ),
    Option(
        "partitioning",
        choice("key", "column", "balanced"),
        None,
        "Which partition a row goes to: by the hash of its column `key`, as in any client; the one that its column "
        "`partition` names; or the partitions in turn. Default: `column` if there is a column `partition`, else `key` "
        "if there is a column `key`, else `balanced`. Rows where the column is null are balanced.",
        WRITE,
    ),
    Option(
        "delivery",
        choice("exactly-once", "at-least-once"),
        "exactly-once",
        "`exactly-once` stages rows on the server and publishes them when all tasks are done; `at-least-once` sends "
        "them at once, and again when a task is run again.",
        WRITE,
    ),
    Option(
        "createTopic",
        COUNT,
        None,
        "Make streams and topics that do not exist, with so many partitions. Without it they are errors.",
        WRITE,
    ),
    Option(
        "jobId",
        TEXT,
        None,
        "Of a batch write: within seven days a job with this id is published once, however often it is run.",
        WRITE,
    ),
    Option("batchBytes", SIZE, "2 MiB", "Bytes of one Arrow batch, about.", EVERYTHING),
)


def closest(word: str, known: list[str]) -> str | None:
    """The known word that looks most like it, if any does."""
    lowered = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def parse_options(given: Mapping[str, str], *uses: Use) -> dict[str, Any]:
    """The values of all options of these uses, by their names as the table has them; defaults where nothing is said.

    Raises:
        OptionRefused: an unknown name, a value that cannot be, or an option that is for something else.
    """
    by_name = {option.name.lower(): option for option in OPTIONS}
    values: dict[str, Any] = {
        option.name: None if option.default is None else option.kind.parse(option.default)
        for option in OPTIONS
        if not option.uses.isdisjoint(uses)
    }
    for name, text in given.items():
        option = by_name.get(name.lower())
        if option is None:
            raise OptionRefused(_unknown(name, list(values)))
        if option.uses.isdisjoint(uses):
            purposes = " and ".join(sorted(use.value for use in option.uses))
            raise OptionRefused(f'option "{option.name}" is for {purposes}, not for {uses[0].value}')
        try:
            values[option.name] = option.kind.parse(text)
        except ValueError as error:
            shown = "that" if option.name == "password" else f'"{text}"'
            raise OptionRefused(f'option "{option.name}" does not take {shown}: it takes {error}') from None
    return values


def _unknown(name: str, known: list[str]) -> str:
    alike = closest(name, known)
    hint = f'; the closest is "{alike}"' if alike else f"; there are {', '.join(sorted(known))}"
    return f'there is no option "{name}"{hint}'


# --- connections --------------------------------------------------------------------------------------


def target_of(values: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Target:
    """The server and the login that options name; secrets of the environment and of files are in it.

    Raises:
        OptionRefused: they contradict each other, or make no sense.
    """
    places = [name for name in ("url", "address", "context") if values.get(name)]
    if len(places) > 1:
        raise OptionRefused(f'options "{places[0]}" and "{places[1]}" both name the server: give one of them')
    options: dict[str, object] = {
        "reconnect_attempts": values["retries"] + 1,
        "reconnect_interval": RETRY_PAUSE,
    }
    for name, field in (("connectTimeout", "connect_timeout"), ("requestTimeout", "request_timeout")):
        # What is not said here may be said in the url.
        if values[name] is not None:
            options[field] = values[name]
    if values["tls"]:
        options |= {"tls": True, "tls_ca_file": values["tlsCaFile"]}
    if values["username"]:
        options |= {"username": values["username"], "password": values["password"] or _password(environment)}
    elif values["tokenFile"]:
        options["token"] = _token(Path(values["tokenFile"]))
    try:
        target = values["url"] or values["address"]
        return resolve_target(target, context=values["context"], environment=environment, options=options).target
    except TargetRefused as error:
        raise OptionRefused(error.reason) from error


def _password(environment: Mapping[str, str]) -> str:
    password = environment.get("COURSER_PASSWORD") or environment.get("IGGY_PASSWORD")
    if password is None:
        raise OptionRefused('option "username" needs "password", or COURSER_PASSWORD in the environment of the driver')
    return password


def _token(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionRefused(f'option "tokenFile": {path} cannot be read: {error}') from error


def required(values: Mapping[str, Any], name: str) -> str:
    """The value of an option that must be there. Raises ``OptionRefused``."""
    value = values[name]
    if value is None:
        raise OptionRefused(f'option "{name}" is required')
    return str(value)


def required_topics(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The topics of a read. Raises ``OptionRefused``."""
    required(values, "topic")
    topics: tuple[str, ...] = values["topic"]
    return topics


def required_topic(values: Mapping[str, Any]) -> str:
    """The topic of what takes one only. Raises ``OptionRefused``."""
    required(values, "topic")
    (topic,) = one_topic(values)
    return topic


def one_topic(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The same where there may be none. Raises ``OptionRefused`` if there are several."""
    topics: tuple[str, ...] = values["topic"] or ()
    if len(topics) > 1:
        raise OptionRefused(
            f'option "topic" names {len(topics)} topics, {listed(topics)}, where only one can be; a comma that belongs '
            r'to a name is written "\,"'
        )
    return topics
