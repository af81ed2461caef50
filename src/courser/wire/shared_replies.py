"""Replies with the same encoding in both protocol generations that no field kind can express, with their decoders.

``first_id`` is the number of the first stream, topic, partition, group or user for the client: 1 for SDK 0.5, else 0.
"""

from struct import Struct

from courser.api import replies as r
from courser.model.messaging import Transport
from courser.wire.layouts import layout_of
from courser.wire.reading import Reader
from courser.wire.vsr_options import option_bytes, option_kind, reported_value
from courser.wire.writing import shifted, text8, text32, u8, u32

_client_group = layout_of(r.ClientGroup)
_CLIENT = Struct("<IIB")
"""id, user_id, transport"""
_STATS_FIGURES = Struct(
    "<"
    "I"  # process_id
    "f"  # cpu_usage
    "f"  # total_cpu_usage
    "Q"  # memory_usage
    "Q"  # total_memory
    "Q"  # available_memory
    "Q"  # run_time
    "Q"  # start_time
    "Q"  # read_bytes
    "Q"  # written_bytes
    "Q"  # messages_size
    "I"  # streams_count
    "I"  # topics_count
    "I"  # partitions_count
    "I"  # segments_count
    "Q"  # messages_count
    "I"  # clients_count
    "I"  # groups_count
)
assert _STATS_FIGURES.size == 108
_STATS_TAIL = Struct(
    "<"
    "I"  # server_semver
    "I"  # cache_count: 0, there is no cache
    "I"  # threads_count
    "Q"  # free_disk_space
    "Q"  # total_disk_space
)
_STATS_NAMES = r.Stats.__struct_fields__[:27]
"""Without those that came with SDK 0.10."""
_STATS_FIGURE_NAMES, _STATS_TEXT_NAMES = _STATS_NAMES[:18], _STATS_NAMES[18:23]
_CACHE_ROW_SIZE = 4 + 4 + 4 + 8 + 8 + 4
_NODE_PORTS = Struct("<HHHHBB")
"""tcp, quic, http, websocket, role, status"""
_LEADER, _HEALTHY = 0, 0

NOBODY = 2**32 - 1
"""The user of a connection without a login, from SDK 0.6 on."""
_TRANSPORTS = {int(transport): transport for transport in Transport}


# --- connections --------------------------------------------------------------------------------------


def write_client(row: r.ClientInfo, first_id: int = 0, nobody: int = NOBODY) -> bytes:
    user_id = nobody if row.user_id is None else shifted(row.user_id, first_id)
    head = _CLIENT.pack(row.client_id, user_id, row.transport)
    return head + text32(row.address) + u32(row.group_count)


def read_client(reader: Reader) -> r.ClientInfo:
    """The decoder for ``write_client``, from SDK 0.6 on."""
    client_id, user_id, transport = _CLIENT.unpack(reader.take(_CLIENT.size))
    user = None if user_id == NOBODY else user_id
    return r.ClientInfo(client_id, user, _TRANSPORTS.get(transport, Transport.TCP), reader.text32(), reader.u32())


def write_client_details(reply: r.ClientDetails, first_id: int = 0, nobody: int = NOBODY) -> bytes:
    """A connection and its groups."""
    groups = [_client_group.write(row, first_id) for row in reply.groups]
    return write_client(reply.client, first_id, nobody) + b"".join(groups)


def read_client_details(reader: Reader) -> r.ClientDetails:
    """The decoder for ``write_client_details``."""
    info = read_client(reader)
    return r.ClientDetails(info, [_client_group.read(reader) for _ in range(info.group_count)])


def read_clients(reader: Reader) -> r.ClientList:
    clients = []
    while reader.remaining:
        clients.append(read_client(reader))
    return r.ClientList(clients)


# --- the server ---------------------------------------------------------------------------------------


def write_stats(reply: r.Stats) -> bytes:
    """Statistics of the server."""
    figures = _STATS_FIGURES.pack(*[getattr(reply, name) for name in _STATS_FIGURE_NAMES])
    texts = [text32(getattr(reply, name)) for name in _STATS_TEXT_NAMES]
    tail = _STATS_TAIL.pack(reply.server_semver, 0, reply.thread_count, reply.free_disk_space, reply.total_disk_space)
    return b"".join((figures, *texts, tail))


def read_stats(reader: Reader) -> r.Stats:
    """The decoder for ``write_stats``."""
    figures = _STATS_FIGURES.unpack(reader.take(_STATS_FIGURES.size))
    texts = [reader.text32() for _ in _STATS_TEXT_NAMES]
    semver = reader.u32()
    reader.take(reader.u32() * _CACHE_ROW_SIZE)
    values = (*figures, *texts, semver, reader.u32(), reader.u64(), reader.u64())
    return r.Stats(**dict(zip(_STATS_NAMES, values, strict=True)))


def write_cluster(reply: r.ClusterMetadata, replica_id: bytes = b"") -> bytes:
    """All nodes, each a healthy leader; from SDK 0.10 on, each begins with its number."""
    parts = [text32(reply.name), u32(len(reply.nodes))]
    for node in reply.nodes:
        ports = (node.tcp_port, node.quic_port, node.http_port, node.websocket_port)
        parts += (replica_id, text32(node.name), text32(node.ip), _NODE_PORTS.pack(*ports, _LEADER, _HEALTHY))
    return b"".join(parts)


def read_cluster(reader: Reader) -> r.ClusterMetadata:
    """The decoder for ``write_cluster``."""
    name, nodes = reader.text32(), []
    for _ in range(reader.u32()):
        node_name, ip = reader.text32(), reader.text32()
        *ports, _role, _status = _NODE_PORTS.unpack(reader.take(_NODE_PORTS.size))
        nodes.append(r.Node(node_name, ip, *ports))
    return r.ClusterMetadata(name, nodes)


def write_options(reply: r.OptionList) -> bytes:
    """Options that can be set."""
    parts = [u32(len(reply.options))]
    for option in reply.options:
        default = option_bytes(option.key, option.default)
        parts += (
            text8(option.key),
            u8(option_kind(option.key)),
            u32(len(default)),
            default,
            text32(option.description),
        )
    return b"".join(parts)


def read_options(reader: Reader) -> r.OptionList:
    """The decoder for ``write_options``."""
    rows = []
    for _ in range(reader.u32()):
        key, kind, data = reader.text8(), reader.u8(), bytes(reader.take(reader.u32()))
        default = reported_value(kind, data)
        rows.append(r.OptionDescription(key, default, reader.text32()))
    return r.OptionList(rows)
