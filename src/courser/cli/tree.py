"""The tree of commands: their names, summaries and short names, and the modules that contain them.

A verb that is one request is a row here; ``requests`` makes the command.

This is all that ``courser --help`` needs: the modules are imported when a command is called.
"""

from collections.abc import Mapping

import click

from courser import __version__
from courser.cli.lazy import Entry, Function, LazyGroup, Verb
from courser.cli.server_options import server_parameters

_EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed: the last line on stderr is a hint
  2    wrong usage or configuration; damage found (inspect verify, audit)
  3    cannot connect to the server
  4    login failed or permission denied
  5    not found
  130  interrupted
  141  the reader of the output closed it early

\b
Getting started:
  courser dev
  echo '{"n":1}' | courser send demo/orders --create
  courser tail demo/orders --follow
"""

_VERBS = {"l": "list", "g": "get", "c": "create", "u": "update", "d": "delete", "p": "purge", "s": "set"}


def _noun(
    name: str,
    module: str,
    description: str,
    verbs: Mapping[str, Entry],
    *examples: str,
    aliases: Mapping[str, str] | None = None,
) -> LazyGroup:
    """A group with the verbs of one noun. Short names are those of the Iggy CLI: ``l`` is list."""
    usual = {short: verb for short, verb in _VERBS.items() if verb in verbs}
    epilog = "\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples) + "\n"
    short = usual if aliases is None else aliases
    return LazyGroup(name, module, description, {"Commands": verbs}, aliases=short, epilog=epilog)


_STREAM = _noun(
    "stream",
    "topic_commands",
    "Streams: groups of topics.",
    {
        "list": Verb(
            "GetStreams",
            "List all streams.",
            ("courser stream list", "courser s l -o json"),
            empty="no streams yet; create one with courser stream create NAME",
        ),
        "get": Function("topic_commands", "Show one stream and its topics.", "stream_get"),
        "create": Function("topic_commands", "Create a stream.", "stream_create"),
        "update": Verb(
            "UpdateStream",
            "Rename a stream.",
            ("courser stream update demo production",),
            done='renamed stream "{place}" to "{name}"',
            words={"name": "new_name"},
        ),
        "delete": Verb(
            "DeleteStream",
            "Delete a stream with all its topics and messages. This cannot be undone.",
            ("courser stream delete demo --yes",),
            confirm='delete stream "{place}" with all its topics and messages',
            done='deleted stream "{place}"',
            effect="deleted",
        ),
        "purge": Verb(
            "PurgeStream",
            "Delete all messages of a stream, but keep its topics. Offsets are not reused.",
            ("courser stream purge demo --yes",),
            summary="Delete all messages of a stream.",
            confirm='delete all messages of stream "{place}"',
            done='purged stream "{place}"',
            effect="purged",
        ),
    },
    "courser stream create demo",
    "courser s l",
)
_TOPIC = _noun(
    "topic",
    "topic_commands",
    "Topics: messages, divided into partitions.",
    {
        "list": "List the topics of a stream.",
        "get": "Show one topic: its settings, its partitions, deletions, damage.",
        "create": "Create a topic.",
        "update": "Change a topic's name or settings.",
        "delete": Verb(
            "DeleteTopic",
            "Delete a topic with all its messages. This cannot be undone.",
            ("courser topic delete demo/orders --yes",),
            confirm='delete topic "{place}" with all its messages',
            done='deleted topic "{place}"',
            effect="deleted",
        ),
        "purge": Verb(
            "PurgeTopic",
            "Delete all messages of a topic and its stored offsets. Offsets are not reused.",
            ("courser topic purge demo/orders --yes",),
            summary="Delete all messages of a topic.",
            confirm='delete all messages of topic "{place}"',
            done='purged topic "{place}"',
            effect="purged",
        ),
    },
    "courser topic create demo/orders 3",
    "courser topic get demo orders",
)
_PARTITION = _noun(
    "partition",
    "topic_commands",
    "Partitions: the logs that make up a topic.",
    {
        "list": Function("topic_commands", "List the partitions of a topic and their offsets.", "partition_list"),
        "get": Function("topic_commands", "Show one partition: its offsets, deletions, damage.", "partition_get"),
        "create": Verb(
            "CreatePartitions",
            "Add partitions to a topic. Afterwards, messages with a key may go to another partition than before.",
            ("courser partition create demo/orders 3",),
            done='added {count} partitions to "{place}"',
            effect="created",
        ),
        "delete": Verb(
            "DeletePartitions",
            "Delete the partitions with the highest ids and their messages. This cannot be undone.",
            ("courser partition delete demo/orders 1 --yes",),
            summary="Delete the partitions with the highest ids.",
            confirm='delete the last {count} partitions of "{place}" and their messages',
            done='deleted {count} partitions of "{place}"',
            effect="deleted",
        ),
    },
    "courser partition create demo/orders 3",
)
_SEGMENT = _noun(
    "segment",
    "",
    "Segments: the files that make up a partition.",
    {
        "list": Verb(
            "GetSegments",
            "List the segments of a partition, oldest first.\n\n"
            "The state is active (takes new messages), rolled, expired (the cleaner deletes it next) or archived "
            "(the archive has confirmed it).",
            ("courser segment list demo/orders 0", "courser seg l demo orders 0 -o json"),
            also=("directory",),
        ),
        "delete": Verb(
            "DeleteSegments",
            "Delete the oldest sealed segments of a partition that no stored offset needs. This cannot be undone.\n\n"
            "The newest segment is never deleted, nor are segments with messages that a consumer has not read yet. A "
            "server with an archive deletes only segments that are archived.",
            ("courser segment delete demo/orders 0 2 --yes",),
            summary="Delete the oldest segments that no consumer needs.",
            confirm='delete up to {count} segments of partition {partition_id} of "{place}"',
            done='deleted up to {count} segments of partition {partition_id} of "{place}"',
        ),
    },
    "courser segment list demo/orders 0",
)
_MESSAGE = _noun(
    "message",
    "message_commands",
    "Messages, one request at a time; see also send and tail.",
    {
        "send": "Send messages.",
        "poll": "Read messages of one partition with a single request.",
        "flush": "Sync the messages of a partition to disk.",
    },
    "courser message poll demo/orders 0 --first",
    aliases={"s": "send", "p": "poll", "f": "flush"},
)
_GROUP = _noun(
    "consumer-group",
    "group_commands",
    "Consumer groups: readers that share the partitions of a topic.",
    {
        "list": Verb(
            "GetConsumerGroups",
            "List the consumer groups of a topic.",
            ("courser consumer-group list demo/orders", "courser g l demo orders -o json"),
            empty="no groups yet; create one with courser consumer-group create {place} NAME",
        ),
        "get": "Show one group: its members and its progress.",
        "create": Verb(
            "CreateConsumerGroup",
            "Create a consumer group.",
            ("courser consumer-group create demo/orders billing",),
            done='created group "{name}" of "{place}" with id {group_id}',
        ),
        "reset": "Set where a group continues to read.",
        "delete": Verb(
            "DeleteConsumerGroup",
            "Delete a consumer group and its stored offsets.",
            ("courser consumer-group delete demo/orders billing --yes",),
            confirm='delete group "{group}" of "{place}" with its stored offsets',
            done='deleted group "{group}" of "{place}"',
            effect="deleted",
        ),
    },
    "courser consumer-group create demo/orders billing",
    "courser group reset demo/orders billing --to earliest --dry-run",
    "courser g l demo/orders",
)
_OFFSET = _noun(
    "consumer-offset",
    "offset_commands",
    "Stored offsets: the progress of consumers and groups.",
    {
        "get": "Show the stored offset of a consumer or a group.",
        "set": "Store an offset.",
        "delete": "Delete the stored offset.",
    },
    "courser consumer-offset get my-app demo/orders 0",
)
_USER = _noun(
    "user",
    "user_commands",
    "Users, their passwords and permissions.",
    {
        "list": "List all users.",
        "get": "Show one user and its permissions.",
        "create": "Create a user.",
        "delete": Verb(
            "DeleteUser",
            "Delete a user and its tokens. Its connections are closed.",
            ("courser user delete reader --yes",),
            confirm='delete user "{user}"',
            done='deleted user "{user}"',
            effect="deleted",
        ),
        "name": "Rename a user.",
        "status": "Activate or deactivate a user.",
        "password": "Change a password.",
        "permissions": "Replace all permissions of a user.",
        "can": "Say whether a user may do something, and why.",
        "reset-root": Function("root_commands", "Set the root user's password, offline."),
    },
    "courser user create reader --allow shop/orders:read",
    "courser user can reader send shop/orders",
    aliases={
        "l": "list",
        "g": "get",
        "c": "create",
        "d": "delete",
        "n": "name",
        "s": "status",
        "pwd": "password",
        "p": "permissions",
    },
)
_TOKEN = _noun(
    "pat",
    "login_commands",
    "Personal access tokens: log in without a password.",
    {
        "list": Verb(
            "GetTokens",
            "List your tokens, without their secrets.",
            ("courser pat list", "courser pat l -o json"),
            summary="List your tokens.",
            empty="no tokens yet; create one with courser pat create NAME",
        ),
        "create": "Create a token and print it.",
        "delete": Verb(
            "DeleteToken",
            "Delete a token. Connections that logged in with it are closed.",
            ("courser pat delete backup --yes",),
            confirm='delete token "{name}"',
            done='deleted token "{name}"',
            effect="deleted",
            sought={"name": "token"},
        ),
    },
    "courser pat create backup 30 days",
)
_CLIENT = _noun(
    "client",
    "",
    "Connections to the server.",
    {
        "list": Verb("GetClients", "List all connections.", ("courser client list", "courser c l -o json")),
        "get": Verb(
            "GetClient",
            "Show one connection and the consumer groups that it is a member of.",
            ("courser client get 7",),
            summary="Show one connection and its consumer groups.",
            words={"client_id": "id"},
            sought={"client_id": "client"},
        ),
    },
    "courser client list",
)
_SINK = _noun(
    "sink",
    "sink_commands",
    "Sinks: writers that publish each batch exactly once.",
    {
        "list": "List the sinks with their published and staged batches.",
        "get": "Show one sink and its staged parts.",
        "discard": "Delete the staged, unpublished parts of a sink.",
        "delete": "Delete a sink and its record of published batches.",
    },
    "courser sink list",
    "courser sink get nightly-backfill",
)
_CONTEXT = _noun(
    "context",
    "context_commands",
    "Saved servers and logins.",
    {
        "list": "List the saved contexts.",
        "show": "Show the server and login in use, and their source.",
        "create": "Save a server and a login.",
        "use": "Select a context.",
        "delete": "Delete a context.",
    },
    "courser context create prod 10.0.0.5:8090 --user app --use",
    "courser context show",
    aliases={"l": "list", "s": "show", "c": "create", "u": "use", "d": "delete"},
)
_BENCH = _noun(
    "bench",
    "bench_commands",
    "Measure a server with the Python client.",
    {
        "send": "Send messages.",
        "poll": "Read messages.",
        "both": "Send and read at the same time.",
        "end-to-end": "Measure the time from a send until the sender reads it.",
        "compare": "Show two saved runs side by side.",
    },
    "courser bench both --seconds 5",
    "courser bench send --server --batch 1..100 --save run.json",
    "courser bench compare before.json after.json",
    aliases={"e2e": "end-to-end"},
)
_INSPECT = _noun(
    "inspect",
    "inspect_commands",
    "Inspect files on disk. Read-only; safe while a server is running.",
    {
        "log": "Print the batches and messages of a segment's log.",
        "index": "Print the blocks and entries of a segment's index.",
        "ledger": "Print the records of a partition's ledger.",
        "offsets": "Print the stored consumer offsets of a partition.",
        "session": "Print how the last server stopped in a data directory.",
        "journal": "Print the entries of a metadata journal, secrets masked.",
        "snapshot": "Print the contents of a metadata snapshot, secrets masked.",
        "descriptor": "Print the descriptor of a stream or topic.",
        "verify": "Check every partition in a directory, and the metadata.",
    },
    "courser inspect verify local_data",
    "courser inspect log 00000000000000000000.log --messages --limit 10",
    aliases={},
)
_ARCHIVE = _noun(
    "archive",
    "archive_commands",
    "The archive: list, check, restore. Needs no server.",
    {
        "ls": "List what the archive has of each partition.",
        "verify": "Check every object of the archive.",
        "restore": "Make a data directory from the archive.",
        "prune": "Remove objects that no restore needs.",
    },
    "courser archive ls --config server.toml",
    "courser archive restore new_data --config server.toml",
    aliases={},
)
_CONFIG = _noun(
    "config",
    "config_commands",
    "Show the configuration. Does not start a server.",
    {
        "show": "Print the effective configuration, secrets masked.",
        "keys": "Print the reference of all keys.",
        "example": "Print an example configuration file.",
    },
    "courser config show --config server.toml",
    "courser config example production > server.toml",
    "courser config keys",
    aliases={},
)

_PIPELINE = _noun(
    "pipeline",
    "pipeline_commands",
    "Data pipelines on Spark: from a topic through SQL to a lake or a topic.",
    {
        "run": "Run pipelines.",
        "check": "Check whether pipelines would run. Writes nothing.",
        "list": "List current and past pipelines on this machine.",
        "status": "Show the status of a pipeline.",
        "stop": "Stop a running pipeline.",
        "reset": "Start a new checkpoint; the old one is kept.",
    },
    "courser pipeline run orders.toml",
    "courser pipeline status orders_to_lake",
    aliases={},
)

_SPARK = _noun(
    "spark",
    "spark_commands",
    "Spark's workers.",
    {"pack": "Pack this Python with Courser into an archive for workers."},
    "courser spark pack",
    aliases={},
)

_SECTIONS: Mapping[str, Mapping[str, Entry]] = {
    "Run a server": {
        "dev": Function("serve_commands", "Run a server for development, ready to use."),
        "serve": Function("serve_commands", "Run the server."),
        "config": _CONFIG,
        "doctor": Function("doctor_commands", "Check whether this machine is suitable for a server."),
    },
    "Messages": {
        "send": Function("send_commands", "Send messages."),
        "tail": Function("tail_commands", "Print messages of a topic, optionally as they arrive."),
        "message": _MESSAGE,
    },
    "Streams and topics": {
        "ls": Function("ls_commands", "List topics, partitions and the lag of consumer groups."),
        "stream": _STREAM,
        "topic": _TOPIC,
        "partition": _PARTITION,
        "segment": _SEGMENT,
    },
    "Readers and writers": {
        "consumer-group": _GROUP,
        "consumer-offset": _OFFSET,
        "lag": Function("lag", "Show how far consumer groups are behind."),
        "sink": _SINK,
    },
    "Users and logins": {
        "user": _USER,
        "pat": _TOKEN,
        "context": _CONTEXT,
        "login": Function("login_commands", "Log in once: save a token instead of a password."),
        "logout": Function("login_commands", "Delete the token that login created."),
    },
    "Look after a server": {
        "ping": Function("system_commands", "Check whether the server responds."),
        "stats": Verb(
            "GetStats",
            "Show statistics about the server: version, memory, disk, stored data.",
            ("courser stats", "courser stats -o json"),
            summary="Show statistics about the server.",
        ),
        "top": Function("top_commands", "Show rates, lag, slow commands and the disk, live."),
        "ui": Function("system_commands", "Open the web console, logged in."),
        "client": _CLIENT,
        "me": Verb(
            "GetMe",
            "Show the connection of this command: the user and the address.",
            ("courser me", "courser me -o json"),
            summary="Show the connection of this command.",
        ),
        "options": Function("system_commands", "List the options of topics, streams or users."),
        "cluster": Verb(
            "GetClusterMetadata",
            "List the servers of the cluster. There is always one.",
            ("courser cluster", "courser cluster -o json"),
        ),
        "snapshot": Function("system_commands", "Collect logs and state for troubleshooting."),
        "inspect": _INSPECT,
        "archive": _ARCHIVE,
        "bench": _BENCH,
    },
    "Spark": {
        "pipeline": _PIPELINE,
        "spark": _SPARK,
        "export": Function("job_commands", "Write a topic to a lake of Parquet files."),
        "replay": Function("job_commands", "Send the messages of a topic, or of segment files, to another topic."),
        "compact": Function("job_commands", "Write the latest message of each key to a topic or to Parquet."),
        "backfill": Function("job_commands", "Send the rows of files to a topic."),
        "merge": Function("job_commands", "Merge many small files of a lake into few large ones."),
        "audit": Function("audit_commands", "Check every segment of a data directory in parallel."),
        "usage": Function("audit_commands", "Show volumes, rates, sizes and when limits are reached."),
        "demo": Function("demo_commands", "Run a sample pipeline on Spark, from orders to a lake."),
    },
    "Help": {
        "help": "Print the help of a command.",
        "completion": "Print a shell completion script.",
    },
}


root = LazyGroup(
    "courser",
    "guide_commands",
    "Courser, a durable message streaming server, and its tools.",
    _SECTIONS,
    aliases={
        "s": "stream",
        "t": "topic",
        "p": "partition",
        "seg": "segment",
        "m": "message",
        "group": "consumer-group",
        "g": "consumer-group",
        "o": "consumer-offset",
        "u": "user",
        "c": "client",
        "ctx": "context",
        "li": "login",
        "lo": "logout",
        "cl": "cluster",
    },
    epilog=_EXIT_CODES,
    params=server_parameters(hidden=False),
)
click.version_option(__version__, prog_name="courser", message="%(prog)s %(version)s")(root)
