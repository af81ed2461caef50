"""The options of the data source ``courser``: one table that drives parsing, error messages and documentation.

Spark passes options as text, with names in any case. Unknown names and invalid values are errors; the message suggests
the closest name. Passwords and tokens can come from the environment instead: the driver resolves them once, so that
they appear in no plan and no log.
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
    SourceOptionKind,
    choice,
    listed,
)

RETRY_PAUSE = 0.5
"""Seconds before the first attempt to reconnect; doubled for each further attempt."""


ARCHIVE_PREFIX = "archive."
"""Options that begin with it are settings of the server's archiver."""


class OptionRefused(ClientFailure):
    """An option is unknown, missing, or has an invalid value."""

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
    """An option of the data source: name, kind, default, meaning."""

    name: str
    kind: SourceOptionKind
    default: str | None
    """As a user would write it; None: no default."""
    help: str
    uses: frozenset[Use]


# --- the table ----------------------------------------------------------------------------------------

OPTIONS: tuple[Option, ...] = (
    Option(
        "url",
        TEXT,
        None,
        "The server: `iggy://user:password@host:port`. Default: found as in the client.",
        EVERYTHING,
    ),
    Option("address", TEXT, None, "The server as `host:port`, instead of `url`.", EVERYTHING),
    Option("context", TEXT, None, "The name of a saved context, instead of `url`.", EVERYTHING),
    Option(
        "username", TEXT, None, "The user name. Default: `COURSER_USERNAME` in the driver's environment.", EVERYTHING
    ),
    Option("password", TEXT, None, "Better set `COURSER_PASSWORD` in the driver's environment.", EVERYTHING),
    Option("tokenFile", TEXT, None, "A file on the driver that contains a personal access token.", EVERYTHING),
    Option("tls", FLAG, "false", "Whether to use TLS.", EVERYTHING),
    Option("tlsCaFile", TEXT, None, "PEM file of the CA that signed the server's certificate.", EVERYTHING),
    Option(
        "connectTimeout",
        DURATION,
        None,
        "How long connecting may take. Default: from `url`, or 5 s.",
        EVERYTHING,
    ),
    Option("requestTimeout", DURATION, None, "How long a reply may take. Default: from `url`, or 30 s.", EVERYTHING),
    Option(
        "retries",
        NUMBER,
        "5",
        "How often to retry when the server cannot be reached, with pauses that grow from 0.5 s to 5 s.",
        EVERYTHING,
    ),
    Option("stream", TEXT, None, "Name of the stream. Required.", EVERYTHING),
    Option(
        "topic",
        TOPICS,
        None,
        "Name of the topic. Required. A read accepts several topics of the stream: `orders,payments`. Write a comma "
        "inside a name as `\\,`.",
        EVERYTHING,
    ),
    Option(
        "source",
        choice("auto", "server", "segments", "archive"),
        "auto",
        "Where messages are read from. `auto`: sealed segments from their files if `path` is set and the task can read "
        "it, messages that the server no longer has on its disk from the archive if its place is set, everything else "
        "from the server. `segments`: from files only, `archive`: from the archive only; both without a server.",
        READS,
    ),
    Option(
        f"{ARCHIVE_PREFIX}*",
        TEXT,
        None,
        "Where the archive is: the settings of the server's `[data_maintenance.archiver]`, such as `archive.kind`, "
        "`archive.path`, `archive.s3.bucket`.",
        READS,
    ),
    Option(
        "archiveConfig",
        TEXT,
        None,
        "The server's configuration file, as seen by the driver: its settings say where the archive is.",
        READS,
    ),
    Option("path", TEXT, None, "The server's data directory, as seen by the driver and the tasks.", READS),
    Option(
        "verify",
        choice("full", "off"),
        "full",
        "For reads from files: `full` checks the hashes of batch headers and bodies, `off` only those of headers.",
        READS,
    ),
    Option(
        "onCorrupt",
        choice("fail", "skip", "quarantine"),
        "fail",
        "What to do about damaged data in a file: `fail` stops; `skip` skips it and logs the missing offsets; "
        "`quarantine` also copies the damaged bytes to `quarantinePath`.",
        READS,
    ),
    Option(
        "quarantinePath",
        TEXT,
        None,
        "Folder for damaged bytes, as seen by the tasks; one file per damaged spot.",
        READS,
    ),
    Option(
        "startingOffsets",
        OFFSETS,
        None,
        "Where a batch read, or a query without a checkpoint, starts. Default: `earliest` for a batch read, `latest` "
        "for a stream; this also applies to partitions and topics that are not named. With a single topic, its name "
        'can be omitted: `{"0": 23}`. `-2` means `earliest`, `-1` means `latest`; a topic can also have one word for '
        'all its partitions: `{"orders": "earliest"}`.',
        READS,
    ),
    Option("endingOffsets", OFFSETS, "latest", "Where a batch read ends (exclusive).", BATCH),
    Option(
        "startingTimestamp",
        TIMES,
        None,
        "Start with the first message appended at this time or later. Can be given by topic, or by topic and partition "
        '(`{"orders": {"0": 1777636800000000}}`); topics and partitions that are not named start as without it.',
        READS,
    ),
    Option(
        "endingTimestamp",
        TIMES,
        None,
        "End before the first message appended at this time or later. By topic and partition as above.",
        BATCH,
    ),
    Option("maxOffsetsPerTrigger", COUNT, None, "Maximum number of messages in a micro-batch.", STREAM),
    # Four tasks of `maxBytesPerPartition`, about a second on two cores. Spark's fixed cost of some 200 ms for each
    # micro-batch is then a small part of it, and a query that fails has little to repeat.
    Option("maxBytesPerTrigger", SIZE, "512 MiB", "Approximate maximum number of bytes in a micro-batch.", STREAM),
    Option(
        "minOffsetsPerTrigger",
        COUNT,
        None,
        "Wait for this many messages before starting a micro-batch, but no longer than `maxTriggerDelay`.",
        STREAM,
    ),
    Option("maxTriggerDelay", DURATION, "15m", "How long `minOffsetsPerTrigger` may hold messages back.", STREAM),
    Option("minPartitions", COUNT, None, "Minimum number of tasks.", READS),
    Option(
        "maxBytesPerPartition",
        SIZE,
        "128 MiB",
        "Approximate maximum number of bytes per task; larger ranges are split.",
        READS,
    ),
    Option(
        "failOnDataLoss",
        FLAG,
        "true",
        "What to do if messages are gone before they were read: `true` stops and reports how many; `false` continues "
        "and counts them in the offsets that Spark shows and checkpoints.",
        READS,
    ),
    Option(
        "consumer",
        TEXT,
        None,
        "A consumer name under which the server stores the query's progress. Used for lag reporting only.",
        STREAM,
    ),
    Option("schemaStyle", choice("native", "kafka"), "native", "Which columns there are, and their names.", READS),
    Option("includeHeaders", FLAG, "false", "Whether to include the column `headers`.", READS),
    Option("columns", NAMES, None, "Read only these columns. The same as a schema that names them.", READS),
    Option(
        "partitioning",
        choice("key", "column", "balanced"),
        None,
        "How to choose the partition of a row: `key` by the hash of the column `key`, as all clients do; `column` by "
        "the number in the column `partition`; `balanced` by rotating over the partitions. Default: `column` if there "
        "is a column `partition`, else `key` if there is a column `key`, else `balanced`. Rows with null in that "
        "column are balanced.",
        WRITE,
    ),
    Option(
        "delivery",
        choice("exactly-once", "at-least-once"),
        "exactly-once",
        "`exactly-once` stages rows on the server and publishes them when all tasks are done; `at-least-once` sends "
        "them immediately, and again if a task is retried.",
        WRITE,
    ),
    Option(
        "createTopic",
        COUNT,
        None,
        "Create missing streams and topics, with this many partitions. Without it, they are an error.",
        WRITE,
    ),
    Option(
        "jobId",
        TEXT,
        None,
        "For batch writes: a job with this id is published only once within seven days, however often it runs.",
        WRITE,
    ),
    Option("batchBytes", SIZE, "2 MiB", "Approximate size of an Arrow batch.", EVERYTHING),
)


def closest(word: str, known: list[str]) -> str | None:
    """The most similar known word, if there is one."""
    lowered = {name.lower(): name for name in known}
    found = difflib.get_close_matches(word.lower(), lowered, n=1, cutoff=0.6)
    return lowered[found[0]] if found else None


def parse_options(given: Mapping[str, str], *uses: Use) -> dict[str, Any]:
    """The values of all options of these uses, by name; defaults for those that are not given.

    Raises:
        OptionRefused: a name is unknown, a value is invalid, or an option is not for this use.
    """
    by_name = {option.name.lower(): option for option in OPTIONS}
    values: dict[str, Any] = {
        option.name: None if option.default is None else option.kind.parse(option.default)
        for option in OPTIONS
        if not option.uses.isdisjoint(uses)
    }
    for name, text in given.items():
        option = by_name.get(f"{ARCHIVE_PREFIX}*" if name.lower().startswith(ARCHIVE_PREFIX) else name.lower())
        if option is None:
            raise OptionRefused(_unknown(name, list(values)))
        if option.uses.isdisjoint(uses):
            purposes = " and ".join(sorted(use.value for use in option.uses))
            raise OptionRefused(f'option "{option.name}" is for {purposes}, not for {uses[0].value}')
        if option.name.startswith(ARCHIVE_PREFIX):
            # `open_archive.archive_access` checks these.
            continue
        try:
            values[option.name] = option.kind.parse(text)
        except ValueError as error:
            shown = "(hidden)" if option.name == "password" else f'"{text}"'
            raise OptionRefused(f'invalid value {shown} for option "{option.name}"; expected {error}') from None
    return values


def _unknown(name: str, known: list[str]) -> str:
    alike = closest(name, known)
    hint = f'; did you mean "{alike}"?' if alike else f"; the options are {', '.join(sorted(known))}"
    return f'unknown option "{name}"{hint}'


# --- connections --------------------------------------------------------------------------------------


def target_of(values: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Target:
    """The server and login that the options specify, with secrets from the environment and from files filled in.

    Raises:
        OptionRefused: they conflict or are invalid.
    """
    places = [name for name in ("url", "address", "context") if values.get(name)]
    if len(places) > 1:
        raise OptionRefused(f'options "{places[0]}" and "{places[1]}" both name the server; set only one of them')
    options: dict[str, object] = {
        "reconnect_attempts": values["retries"] + 1,
        "reconnect_interval": RETRY_PAUSE,
    }
    for name, field in (("connectTimeout", "connect_timeout"), ("requestTimeout", "request_timeout")):
        # If they are not set here, the url may set them.
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
        raise OptionRefused('option "username" needs "password", or COURSER_PASSWORD in the driver\'s environment')
    return password


def _token(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise OptionRefused(f'option "tokenFile": could not read {path}: {error}') from error


def required(values: Mapping[str, Any], name: str) -> str:
    """The value of a required option. Raises ``OptionRefused``."""
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
    """The topic, where only one is allowed. Raises ``OptionRefused``."""
    required(values, "topic")
    (topic,) = one_topic(values)
    return topic


def one_topic(values: Mapping[str, Any]) -> tuple[str, ...]:
    """The only topic that is named, or None. Raises ``OptionRefused`` if there are several."""
    topics: tuple[str, ...] = values["topic"] or ()
    if len(topics) > 1:
        raise OptionRefused(
            f'option "topic" names {len(topics)} topics, {listed(topics)}, but only one is allowed here; write a comma '
            r'inside a name as "\,"'
        )
    return topics
