"""Which commands there are: their names, summaries and short names, and the modules that have them.

Everything that ``courser --help`` needs, and nothing more: the modules are imported when a command is called.
"""

from collections.abc import Mapping

import click

from courser import __version__
from courser.cli.lazy import LazyGroup
from courser.cli.server_options import server_parameters

_EXIT_CODES = """\b
Exit codes:
  0    done
  1    failed: the last line on stderr says what to try
  2    wrong usage or configuration; damage found (inspect verify, audit)
  3    cannot connect to the server
  4    login refused, or not allowed
  5    not found
  130  interrupted
  141  nobody read the output to its end

\b
The first minutes:
  courser dev
  echo '{"n":1}' | courser send demo/orders --create
  courser tail demo/orders --follow
"""

_VERBS = {"l": "list", "g": "get", "c": "create", "u": "update", "d": "delete", "p": "purge", "s": "set"}


def _noun(
    name: str,
    module: str,
    description: str,
    summaries: Mapping[str, str],
    *examples: str,
    aliases: Mapping[str, str] | None = None,
) -> LazyGroup:
    """A group with the verbs of one noun; ``l`` is list and so on, as in the Iggy CLI."""
    verbs = {short: verb for short, verb in _VERBS.items() if verb in summaries} if aliases is None else aliases
    return LazyGroup(
        name,
        commands_module=f"courser.cli.{module}",
        summaries=summaries,
        aliases=verbs,
        description=description,
        epilog="\b\nExamples:\n" + "\n".join(f"  {example}" for example in examples) + "\n",
    )


_STREAM = _noun(
    "stream",
    "stream_commands",
    "Streams: what topics live in.",
    {
        "list": "List all streams.",
        "get": "Show one stream and its topics.",
        "create": "Make a stream.",
        "update": "Give a stream another name.",
        "delete": "Remove a stream with all its topics and messages.",
        "purge": "Remove all messages of a stream.",
    },
    "courser stream create demo",
    "courser s l",
)
_TOPIC = _noun(
    "topic",
    "topic_commands",
    "Topics: what messages are sent to.",
    {
        "list": "List the topics of a stream.",
        "get": "Show one topic: its settings and its partitions.",
        "create": "Make a topic.",
        "update": "Change a topic's name or settings.",
        "delete": "Remove a topic with all its messages.",
        "purge": "Remove all messages of a topic.",
    },
    "courser topic create demo/orders 3",
    "courser topic get demo orders",
)
_PARTITION = _noun(
    "partition",
    "partition_commands",
    "Partitions: the logs that a topic consists of.",
    {
        "list": "List the partitions of a topic, with the offsets that they hold.",
        "create": "Add partitions to a topic.",
        "delete": "Remove the partitions with the highest numbers.",
    },
    "courser partition create demo/orders 3",
)
_SEGMENT = _noun(
    "segment",
    "segment_commands",
    "Segments: the files that a partition consists of.",
    {
        "list": "List the segments of a partition, oldest first.",
        "delete": "Remove the oldest segments that nobody still needs.",
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
        "flush": "Write what was sent to a partition to the disk.",
    },
    "courser message poll demo/orders 0 --first",
    aliases={"s": "send", "p": "poll", "f": "flush"},
)
_GROUP = _noun(
    "consumer-group",
    "group_commands",
    "Consumer groups: readers that share the partitions of a topic.",
    {
        "list": "List the consumer groups of a topic.",
        "get": "Show one group: members, and how far it got.",
        "create": "Make a consumer group.",
        "delete": "Remove a consumer group and its stored offsets.",
    },
    "courser consumer-group create demo/orders billing",
    "courser g l demo/orders",
)
_OFFSET = _noun(
    "consumer-offset",
    "offset_commands",
    "Stored offsets: how far consumers and groups got.",
    {
        "get": "Show which offset is stored for a consumer or a group.",
        "set": "Store an offset.",
        "delete": "Forget the stored offset.",
    },
    "courser consumer-offset get my-app demo/orders 0",
)
_USER = _noun(
    "user",
    "user_commands",
    "Users, their passwords and permissions.",
    {
        "list": "List all users.",
        "get": "Show one user and what it may do.",
        "create": "Make an account.",
        "delete": "Remove an account and its tokens.",
        "name": "Give a user another name.",
        "status": "Make a user active or inactive.",
        "password": "Change a password.",
        "permissions": "Replace all permissions of a user.",
    },
    "courser user create reader -g p_msg,r_top",
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
    "token_commands",
    "Personal access tokens: how programs log in without a password.",
    {
        "list": "List one's own tokens.",
        "create": "Make a token and print it.",
        "delete": "Remove a token.",
    },
    "courser pat create backup 30 days",
)
_CLIENT = _noun(
    "client",
    "client_commands",
    "Connections to the server.",
    {
        "list": "List all connections.",
        "get": "Show one connection and its consumer groups.",
    },
    "courser client list",
)
_SINK = _noun(
    "sink",
    "sink_commands",
    "Sinks: writers that publish batches once, and what they staged.",
    {
        "list": "List the sinks: what they published, what is staged.",
        "get": "Show one sink and its staged parts.",
        "discard": "Remove what is staged for a sink and not published.",
        "delete": "Forget a sink and which batches it has published.",
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
        "show": "Show which server is talked to, as whom, and who said so.",
        "create": "Save a server and a login.",
        "use": "Select a context.",
        "delete": "Forget a context.",
    },
    "courser context create prod 10.0.0.5:8090 --user app --use",
    "courser context show",
    aliases={"l": "list", "s": "show", "c": "create", "u": "use", "d": "delete"},
)
_BENCH = _noun(
    "bench",
    "bench_commands",
    "Measure a server: send, poll and both are short for the first three.",
    {
        "pinned-producer": "Send messages: each producer to a partition of its own.",
        "pinned-consumer": "Read messages: each consumer from a partition of its own.",
        "pinned-producer-and-consumer": "Send and read at the same time.",
        "balanced-producer": "Send to partitions that the server chooses.",
        "balanced-consumer": "Read partitions that consumers share without a group.",
        "balanced-producer-and-consumer": "Both of these at the same time.",
        "balanced-consumer-group": "Read as members of consumer groups.",
        "balanced-producer-and-consumer-group": "Send, and read as members of groups.",
        "end-to-end-producing-consumer": "Time until a message is back at its sender.",
        "end-to-end-producing-consumer-group": "The same through consumer groups.",
        "compare": "Show two saved runs side by side.",
    },
    "courser bench both --seconds 5",
    "courser bench send --server --batch 1..100 --save run.json",
    "courser bench compare before.json after.json",
    aliases={
        "send": "pinned-producer",
        "poll": "pinned-consumer",
        "both": "pinned-producer-and-consumer",
        "pp": "pinned-producer",
        "pc": "pinned-consumer",
        "ppc": "pinned-producer-and-consumer",
        "bp": "balanced-producer",
        "bc": "balanced-consumer",
        "bpc": "balanced-producer-and-consumer",
        "bcg": "balanced-consumer-group",
        "bpcg": "balanced-producer-and-consumer-group",
        "e2e": "end-to-end-producing-consumer",
        "e2ecg": "end-to-end-producing-consumer-group",
    },
)
_INSPECT = LazyGroup(
    "inspect",
    commands_module="courser.cli.inspect_commands",
    summaries={
        "log": "Print the batches and messages of a segment's log.",
        "index": "Print the blocks and entries of a segment's index.",
        "ledger": "Print the records of a partition's ledger.",
        "offsets": "Print the stored consumer offsets of a partition.",
        "session": "Print how the last server left a data directory.",
        "journal": "Print the commands in a metadata journal, secrets masked.",
        "snapshot": "Print what a metadata snapshot holds, secrets masked.",
        "descriptor": "Print what a stream's or topic's descriptor says.",
        "verify": "Check every partition below a directory, and the metadata.",
    },
    other_modules=dict.fromkeys(("journal", "snapshot", "descriptor"), "courser.cli.metadata_commands"),
    description="Look into files on disk. Reads only; safe beside a running server.",
    epilog="\b\nExamples:\n"
    "  courser inspect verify local_data\n"
    "  courser inspect log 00000000000000000000.log --messages --limit 10\n",
)
_CONFIG = LazyGroup(
    "config",
    commands_module="courser.cli.config_commands",
    summaries={
        "show": "Print the effective configuration, secrets masked.",
        "keys": "Print the reference of all keys.",
        "example": "Print a configuration file for a purpose.",
    },
    description="See what the server would be told. Starts nothing.",
    epilog="\b\nExamples:\n"
    "  courser config show --config server.toml\n"
    "  courser config example production > server.toml\n"
    "  courser config keys\n",
)

_PIPELINE = _noun(
    "pipeline",
    "pipeline_commands",
    "Data pipelines on Spark: from a topic through SQL to a lake or a topic.",
    {
        "run": "Run pipelines.",
        "check": "See whether pipelines would run. Writes nothing.",
        "list": "List the pipelines that run, or ran, on this machine.",
        "status": "Show how a pipeline is.",
        "stop": "Ask a running pipeline to end.",
        "reset": "Begin a new checkpoint; the old one is kept.",
    },
    "courser pipeline run orders.toml",
    "courser pipeline status orders_to_lake",
    aliases={},
)

_GROUPS = {
    "stream": _STREAM,
    "topic": _TOPIC,
    "partition": _PARTITION,
    "segment": _SEGMENT,
    "message": _MESSAGE,
    "consumer-group": _GROUP,
    "consumer-offset": _OFFSET,
    "user": _USER,
    "pat": _TOKEN,
    "client": _CLIENT,
    "sink": _SINK,
    "context": _CONTEXT,
    "config": _CONFIG,
    "inspect": _INSPECT,
    "bench": _BENCH,
    "pipeline": _PIPELINE,
}
_MODULES = {
    "dev": "serve_commands",
    "serve": "serve_commands",
    "send": "send_commands",
    "tail": "tail_commands",
    "ls": "ls_commands",
    "me": "client_commands",
    "stats": "system_commands",
    "ping": "system_commands",
    "options": "system_commands",
    "cluster": "system_commands",
    "snapshot": "system_commands",
    "login": "login_commands",
    "logout": "login_commands",
    **dict.fromkeys(("export", "replay", "compact", "backfill", "merge"), "job_commands"),
    **dict.fromkeys(("audit", "usage"), "audit_commands"),
    "demo": "demo_commands",
    "doctor": "doctor_commands",
    "completion": "completion_commands",
    "demonstrate": "demonstration",
}


def _summary(name: str) -> str:
    return _GROUPS[name].get_short_help_str(limit=100)


root = LazyGroup(
    "courser",
    commands_module="courser.cli.demonstration",
    summaries={
        "dev": "Run a server for development, ready to use.",
        "serve": "Run the server.",
        "send": "Send messages.",
        "tail": "Print messages of a topic, and go on as they arrive.",
        "ls": "List topics, partitions and how far behind groups are.",
        "stream": _summary("stream"),
        "topic": _summary("topic"),
        "partition": _summary("partition"),
        "segment": _summary("segment"),
        "message": _summary("message"),
        "consumer-group": _summary("consumer-group"),
        "consumer-offset": _summary("consumer-offset"),
        "user": _summary("user"),
        "pat": _summary("pat"),
        "client": _summary("client"),
        "sink": _summary("sink"),
        "context": _summary("context"),
        "login": "Log in once: save a token in place of a password.",
        "logout": "Delete the token that login made.",
        "me": "Show the connection of this command.",
        "ping": "See whether the server answers.",
        "stats": "Show figures about the server.",
        "options": "List what can be set for a topic, a stream or a user.",
        "cluster": "List the servers of the cluster.",
        "snapshot": "Collect what helps to find a fault.",
        "config": _summary("config"),
        "doctor": "See whether this machine suits a server.",
        "inspect": _summary("inspect"),
        "bench": _summary("bench"),
        "pipeline": _summary("pipeline"),
        "export": "Write a topic to a lake of Parquet files.",
        "replay": "Send the messages of a topic, or of segment files, to another topic.",
        "compact": "Write the latest message of each key to a topic or to Parquet.",
        "backfill": "Send the rows of files to a topic.",
        "merge": "Make few large files of a lake's many small ones.",
        "audit": "Check every segment of a data directory, many at a time.",
        "usage": "Show volumes, rates, sizes and when limits are reached.",
        "completion": "Print what a shell needs to complete names.",
        "demo": "Show a pipeline on Spark, from orders to a lake.",
        "demonstrate": "Show the log engine at work, in a temporary directory.",
    },
    other_modules={name: f"courser.cli.{module}" for name, module in _MODULES.items()},
    groups=_GROUPS,
    aliases={
        "s": "stream",
        "t": "topic",
        "p": "partition",
        "seg": "segment",
        "m": "message",
        "g": "consumer-group",
        "o": "consumer-offset",
        "u": "user",
        "c": "client",
        "ctx": "context",
        "li": "login",
        "lo": "logout",
        "cl": "cluster",
    },
    description="Courser, a durable message streaming server, and everything around it.",
    epilog=_EXIT_CODES,
    params=server_parameters(hidden=False),
)
click.version_option(__version__, prog_name="courser", message="%(prog)s %(version)s")(root)
