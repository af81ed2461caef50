"""The limits of the broker, as one value that is handed in.

Operators cannot set them. Tests use smaller ones: a few requests then reach what takes thousands in production.
"""

from dataclasses import dataclass

from courser.catalog.rules import SINK_COUNT_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLimits:
    """Counts at which the broker refuses a request, and how soon it retries. The defaults are those of production."""

    stream_count_max: int = 10_000
    """Streams: each is a directory and a row in the lists that clients request."""
    topic_count_of_stream_max: int = 10_000
    """Topics of a stream, for the same reason."""
    partition_count_of_topic_max: int = 10_000
    """Partitions of a topic: each is a directory, open files and about 10 KiB of memory."""
    group_count_of_server_max: int = 100_000
    """Consumer groups of all topics: limits the snapshot, and what a user who may read many topics can add to it."""
    member_count_max: int = 1000
    """Members of a group: every join and leave affects all other members."""
    membership_count_max: int = 1000
    """How many groups one connection may join."""
    connectionless_count_max: int = 4000
    """Members of groups over HTTP, which outlive their connections: they are not limited by those."""
    connectionless_count_of_user_max: int = 3000
    """The same for one user: a quarter is always left for other users."""
    row_count_max: int = 200_000
    """Partitions that all waits for arrivals together may wait for: about 50 MiB."""
    row_count_of_user_max: int = 50_000
    """The same for one user, so that nobody uses it up: 50 connections that each wait for a thousand partitions."""
    scan_count_max: int = 8
    """Searches over HTTP at the same time: each holds up to 32 MiB, and they take turns."""
    scan_count_of_user_max: int = 6
    """The same for one user: a quarter is always left for other users."""
    sink_count_of_user_max: int = SINK_COUNT_MAX * 3 // 4
    """Sinks of one user: a quarter of all is left for other users."""
    unfinished_count_max: int = 1000
    """Staged parts that are being written at the same time: each has an open file."""
    unfinished_count_of_user_max: int = 750
    """The same for one user: a quarter is always left for other users."""
    part_count_max: int = 100_000
    """All staged parts: each is a file in one directory, and a start checks all of them."""
    part_count_of_user_max: int = 75_000
    """The same for one user."""
    change_retry_delay: float = 0.1
    """Seconds before a metadata change that the disk refused is applied to it again, while its client waits."""
    disk_retry_delay: float = 1.0
    """Seconds before failed disk work that is still due is retried: a full disk does not empty faster."""


DEFAULT_BROKER_LIMITS = BrokerLimits()
"""What production uses."""
