"""The columns of a table that say which message a row comes from.

They stand beside the columns of the payload, so they begin with ``_topic``. No format reserves these names: Iceberg
reserves ``_partition`` and others, and Spark then refuses the whole table.
"""

TOPIC = "_topic_name"
"""The stream and the topic, as ``shop/orders``: for a table that several topics are written to."""
PARTITION = "_topic_partition"
OFFSET = "_topic_offset"
TIMESTAMP = "_topic_timestamp"
KEY = "_topic_key"
MESSAGE_COLUMNS = (TOPIC, PARTITION, OFFSET, TIMESTAMP, KEY)

RESERVED = frozenset(
    {
        # Iceberg's metadata columns, and those of its changelog.
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
        # Delta's change data feed, and what Spark adds to the rows of a file.
        "_commit_version",
        "_commit_timestamp",
        "_metadata",
    }
)
"""Names that a format, or Spark, keeps for itself. They are refused for both formats, so that a table can change it."""
