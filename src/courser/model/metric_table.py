"""Every metric of a server: name, kind, meaning, labels.

The parts that count register them; documentation and dashboard are generated from this table.
"""

from dataclasses import dataclass

from courser.model.metrics import Metric, MetricKind

_COUNTER, _GAUGE, _HISTOGRAM = MetricKind.COUNTER, MetricKind.GAUGE, MetricKind.HISTOGRAM
_PARTITION = ("stream", "topic", "partition")
_GROUP = ("stream", "topic", "group", "partition")


# --- messages ---

APPENDED_MESSAGES = Metric("courser_appended_messages_total", _COUNTER, "Messages appended.")
APPENDED_BYTES = Metric("courser_appended_bytes_total", _COUNTER, "Bytes appended.")
POLLED_MESSAGES = Metric("courser_polled_messages_total", _COUNTER, "Messages in replies to polls.")
POLLED_BYTES = Metric("courser_polled_bytes_total", _COUNTER, "Bytes in replies to polls.")
APPEND_SIZE = Metric("courser_append_size_bytes", _HISTOGRAM, "Sizes of appended batches.")
POLLS_BELOW_START = Metric(
    "courser_polls_below_start_total", _COUNTER, "Polls that asked for messages that were already deleted."
)
POLLS_DAMAGED = Metric("courser_polls_damaged_total", _COUNTER, "Polls that met damaged or lost messages.")

# --- consumer groups ---

GROUP_LAG = Metric(
    "courser_group_lag_messages", _GAUGE, "Messages that a consumer group has not committed yet.", _GROUP
)
GROUP_LAG_SECONDS = Metric(
    "courser_group_lag_seconds", _GAUGE, "Age of the oldest message that a consumer group has not committed.", _GROUP
)

# --- partitions ---

PARTITION_APPENDED_MESSAGES = Metric(
    "courser_partition_appended_messages_total", _COUNTER, "Messages appended to a partition.", _PARTITION
)
PARTITION_APPENDED_BYTES = Metric(
    "courser_partition_appended_bytes_total", _COUNTER, "Bytes appended to a partition.", _PARTITION
)
PARTITION_POLLED_MESSAGES = Metric(
    "courser_partition_polled_messages_total", _COUNTER, "Messages of a partition in replies to polls.", _PARTITION
)
PARTITION_POLLED_BYTES = Metric(
    "courser_partition_polled_bytes_total", _COUNTER, "Bytes of a partition in replies to polls.", _PARTITION
)
PARTITION_MESSAGES = Metric("courser_partition_messages", _GAUGE, "Messages of a partition on disk.", _PARTITION)
PARTITION_BYTES = Metric("courser_partition_bytes", _GAUGE, "Bytes of a partition on disk.", _PARTITION)
PARTITION_SEGMENTS = Metric("courser_partition_segments", _GAUGE, "Segments of a partition.", _PARTITION)
PARTITIONS = Metric("courser_partitions", _GAUGE, "Open partitions.")
READ_ONLY = Metric("courser_partitions_read_only", _GAUGE, "Partitions that take no writes.")
SEGMENTS = Metric("courser_segments", _GAUGE, "Segments of all partitions.")
SEGMENTS_MAX = Metric("courser_segments_max", _GAUGE, "Segments of the partition that has the most.")
STORED_BYTES = Metric("courser_stored_bytes", _GAUGE, "Bytes of all partitions on disk.")
STORED_MESSAGES = Metric("courser_stored_messages", _GAUGE, "Messages of all partitions on disk.")

# --- storage ---

SEGMENTS_CREATED = Metric("courser_segments_created_total", _COUNTER, "Segments created.")
SEGMENTS_DELETED = Metric(
    "courser_segments_deleted_total",
    _COUNTER,
    "Segments deleted, by reason: expired and size (retention), pressure (too little free disk space), requested (by a "
    "client), purged, dropped (with their partition).",
    ("reason",),
)
RETENTION_MESSAGES = Metric(
    "courser_retention_deleted_messages_total",
    _COUNTER,
    "Messages in segments that retention or a client deleted, by reason.",
    ("reason",),
)
RETENTION_BYTES = Metric(
    "courser_retention_deleted_bytes_total",
    _COUNTER,
    "Bytes of segments that retention or a client deleted, by reason.",
    ("reason",),
)
READ_BYTES = Metric("courser_read_bytes_total", _COUNTER, "Bytes read from segments.")
INDEX_LOOKUPS = Metric("courser_index_lookups_total", _COUNTER, "Look-ups in indexes.")
INDEX_REBUILDS = Metric("courser_index_rebuilds_total", _COUNTER, "Indexes that were rebuilt.")
CHECKSUM_FAILURES = Metric("courser_checksum_failures_total", _COUNTER, "Batches whose checksum did not match.")
STAGED_BYTES = Metric("courser_staged_bytes", _GAUGE, "Bytes of staged messages that are not published.")
STAGED_PARTS = Metric("courser_staged_parts", _GAUGE, "Staged parts that are not published.")

# --- disk ---

SYNC_DURATION = Metric("courser_sync_duration_seconds", _HISTOGRAM, "Duration of syncs of partition data.")
SLOW_SYNCS = Metric("courser_slow_syncs_total", _COUNTER, "Syncs that took longer than one second.")
APPENDS_PER_SYNC = Metric("courser_appends_per_sync", _HISTOGRAM, "Batches that one sync of a partition covered.")
UNSYNCED_BYTES = Metric("courser_unsynced_bytes", _GAUGE, "Bytes that are written and not yet synced.")
DISK_SIZE = Metric("courser_disk_size_bytes", _GAUGE, "Size of the disk with the data.")
DISK_FREE = Metric("courser_disk_free_bytes", _GAUGE, "Free space on the disk with the data.")
DISK_USED = Metric("courser_disk_used_bytes", _GAUGE, "Space on the disk with the data that is not free.")
DISK_BELOW_MINIMUM = Metric(
    "courser_disk_below_minimum",
    _GAUGE,
    "1 while sends are refused because the disk has less free space than data_maintenance.disk.min_free_space, else 0.",
)
SCRUBBED_SEGMENTS = Metric(
    "courser_scrubbed_segments_total", _COUNTER, "Segments that the scrubber has read to the end."
)
SCRUBBED_BYTES = Metric("courser_scrubbed_bytes_total", _COUNTER, "Bytes that the scrubber has read.")
SCRUB_DAMAGES = Metric(
    "courser_scrub_damages_total", _COUNTER, "Damaged ranges that the scrubber was the first to find."
)
SCRUB_UNREADABLE = Metric(
    "courser_scrub_unreadable_segments_total", _COUNTER, "Segments that the disk could not read for the scrubber."
)
SCRUB_REPAIRS = Metric(
    "courser_scrub_repairs_total", _COUNTER, "Damaged segments that were replaced by an intact copy."
)
SCRUB_ROUNDS = Metric("courser_scrub_rounds_total", _COUNTER, "Rounds of the scrubber that were completed.")
DISK_FULL = Metric("courser_disk_full", _GAUGE, "1 while the disk is full or has just refused a write, else 0.")

# --- archive ---

ARCHIVE_UPLOADS = Metric("courser_archive_uploads_total", _COUNTER, "Objects uploaded to the archive.")
ARCHIVE_UPLOADED_BYTES = Metric("courser_archive_uploaded_bytes_total", _COUNTER, "Bytes uploaded to the archive.")
ARCHIVE_FAILURES = Metric(
    "courser_archive_failures_total",
    _COUNTER,
    "Archive runs that failed, partitions that failed in a run, and damaged segments.",
)
ARCHIVE_PRUNED = Metric(
    "courser_archive_pruned_objects_total", _COUNTER, "Objects that the retention of the archive has removed."
)
ARCHIVE_PRUNED_BYTES = Metric("courser_archive_pruned_bytes_total", _COUNTER, "Bytes of these objects.")
ARCHIVE_BACKLOG = Metric("courser_archive_backlog_bytes", _GAUGE, "Bytes of sealed segments that are not archived yet.")
ARCHIVE_OLDEST_AGE = Metric(
    "courser_archive_oldest_age_seconds", _GAUGE, "Age of the oldest message in a sealed segment that is not archived."
)

ARCHIVE_GONE = Metric(
    "courser_archive_gone",
    _GAUGE,
    "1 while the store is not the one that the server has claimed, such as an empty mount point, else 0.",
)
ARCHIVE_READS = Metric("courser_archive_reads_total", _COUNTER, "Reads of messages that only the archive has.")
ARCHIVE_CACHE_HITS = Metric(
    "courser_archive_cache_hits_total", _COUNTER, "Blocks of archived messages that were in memory when needed."
)
ARCHIVE_CACHE_MISSES = Metric(
    "courser_archive_cache_misses_total", _COUNTER, "Blocks of archived messages that a reader had to wait for."
)
ARCHIVE_FETCHED_BYTES = Metric(
    "courser_archive_fetched_bytes_total", _COUNTER, "Bytes fetched from the archive for readers."
)
ARCHIVE_FETCH_FAILURES = Metric(
    "courser_archive_fetch_failures_total", _COUNTER, "Fetches from the archive for readers that failed."
)

# --- requests ---

REQUEST_DURATION = Metric(
    "courser_request_duration_seconds", _HISTOGRAM, "Time from a request to its reply, by command.", ("command",)
)
FAILED_REQUESTS = Metric(
    "courser_failed_requests_total", _COUNTER, "Requests that failed, by command and error.", ("command", "error")
)
HTTP_REQUESTS = Metric("courser_http_requests_total", _COUNTER, "Requests received over HTTP.")
CONNECTIONS = Metric(
    "courser_connections", _GAUGE, "Open connections, by transport and client library.", ("transport", "sdk")
)
CONNECTIONS_REFUSED = Metric(
    "courser_connections_refused_total", _COUNTER, "Connections refused because all places were taken."
)
CONNECTIONS_CUT_OFF = Metric(
    "courser_connections_cut_off_total", _COUNTER, "Connections closed because they missed a deadline."
)

# --- process ---

INFORMATION = Metric("courser_info", _GAUGE, "Always 1; the label has the version of the server.", ("version",))
START_TIME = Metric("courser_start_time_seconds", _GAUGE, "When the server started, in seconds since 1970.")
PROCESS_UP = Metric(
    "courser_process_up",
    _GAUGE,
    "1 if a process of the server answers, else 0. Process 0 is the first one, which is the only one by default.",
    ("process",),
)
CPU_SECONDS = Metric("courser_cpu_seconds_total", _COUNTER, "CPU time that the server has used.")
MEMORY = Metric("courser_memory_bytes", _GAUGE, "Memory that the server occupies.")
THREADS = Metric("courser_threads", _GAUGE, "Threads of the server.")
LOOP_DELAY = Metric(
    "courser_event_loop_delay_seconds", _HISTOGRAM, "How long work that was ready had to wait for the event loop."
)
LOOP_BLOCKS = Metric(
    "courser_event_loop_blocks_total",
    _COUNTER,
    "How often the event loop was blocked for 20 ms or more, by who did it: kind is command, task, callback, "
    "garbage collection, processor (the machine ran something else), or unknown.",
    ("kind", "name"),
)
LOOP_BLOCKED_SECONDS = Metric(
    "courser_event_loop_blocked_seconds_total",
    _COUNTER,
    "For how long these blocks kept others waiting.",
    ("kind", "name"),
)
COLLECTION_PAUSE = Metric(
    "courser_collection_pause_seconds", _HISTOGRAM, "How long garbage collections stopped the server."
)


@dataclass(frozen=True, slots=True)
class MetricSection:
    """Metrics that belong together."""

    title: str
    metrics: tuple[Metric, ...]


SECTIONS = (
    MetricSection(
        "Messages",
        (
            APPENDED_MESSAGES,
            APPENDED_BYTES,
            POLLED_MESSAGES,
            POLLED_BYTES,
            APPEND_SIZE,
            POLLS_BELOW_START,
            POLLS_DAMAGED,
        ),
    ),
    MetricSection("Consumer groups", (GROUP_LAG, GROUP_LAG_SECONDS)),
    MetricSection(
        "Partitions",
        (
            PARTITION_APPENDED_MESSAGES,
            PARTITION_APPENDED_BYTES,
            PARTITION_POLLED_MESSAGES,
            PARTITION_POLLED_BYTES,
            PARTITION_MESSAGES,
            PARTITION_BYTES,
            PARTITION_SEGMENTS,
            PARTITIONS,
            READ_ONLY,
            SEGMENTS,
            SEGMENTS_MAX,
            STORED_BYTES,
            STORED_MESSAGES,
        ),
    ),
    MetricSection(
        "Storage",
        (
            SEGMENTS_CREATED,
            SEGMENTS_DELETED,
            RETENTION_MESSAGES,
            RETENTION_BYTES,
            READ_BYTES,
            INDEX_LOOKUPS,
            INDEX_REBUILDS,
            CHECKSUM_FAILURES,
            STAGED_BYTES,
            STAGED_PARTS,
        ),
    ),
    MetricSection(
        "Disk",
        (
            SYNC_DURATION,
            SLOW_SYNCS,
            APPENDS_PER_SYNC,
            UNSYNCED_BYTES,
            DISK_SIZE,
            DISK_FREE,
            DISK_USED,
            DISK_FULL,
            DISK_BELOW_MINIMUM,
            SCRUBBED_SEGMENTS,
            SCRUBBED_BYTES,
            SCRUB_DAMAGES,
            SCRUB_UNREADABLE,
            SCRUB_REPAIRS,
            SCRUB_ROUNDS,
        ),
    ),
    MetricSection(
        "Archive",
        (
            ARCHIVE_UPLOADS,
            ARCHIVE_UPLOADED_BYTES,
            ARCHIVE_FAILURES,
            ARCHIVE_PRUNED,
            ARCHIVE_PRUNED_BYTES,
            ARCHIVE_BACKLOG,
            ARCHIVE_OLDEST_AGE,
            ARCHIVE_GONE,
            ARCHIVE_READS,
            ARCHIVE_CACHE_HITS,
            ARCHIVE_CACHE_MISSES,
            ARCHIVE_FETCHED_BYTES,
            ARCHIVE_FETCH_FAILURES,
        ),
    ),
    MetricSection(
        "Requests",
        (
            REQUEST_DURATION,
            FAILED_REQUESTS,
            HTTP_REQUESTS,
            CONNECTIONS,
            CONNECTIONS_REFUSED,
            CONNECTIONS_CUT_OFF,
        ),
    ),
    MetricSection(
        "Process",
        (
            INFORMATION,
            START_TIME,
            PROCESS_UP,
            CPU_SECONDS,
            MEMORY,
            THREADS,
            LOOP_DELAY,
            LOOP_BLOCKS,
            LOOP_BLOCKED_SECONDS,
            COLLECTION_PAUSE,
        ),
    ),
)
