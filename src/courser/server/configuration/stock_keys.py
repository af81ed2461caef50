"""Keys of Iggy's own files, from 0.5 on, that have no effect here. With them, a stock file loads unchanged."""

from collections.abc import Iterator

from courser.configuration.key import Key, unused_key

_IGNORED = {
    "consumer_group": "rebalancing_timeout rebalancing_check_interval session_timeout heartbeat_interval",
    "data_maintenance.state": "overwrite interval",
    "http": "web_ui",
    "message_cleaner": "enabled interval",
    "quic": "max_concurrent_bidi_streams datagram_send_buffer_size initial_mtu send_window receive_window "
    "stream_receive_window keep_alive_interval",
    "quic.socket": "override_defaults recv_buffer_size send_buffer_size keepalive",
    "tcp": "ipv6 socket_migration",
    "tcp.tls": "certificate",
    "websocket": "read_buffer_size write_buffer_size max_write_buffer_size max_message_size max_frame_size "
    "accept_unmasked_frames",
    "system.backup": "path",
    "system.backup.compatibility": "path",
    "system.compression": "allow_override",
    "system.memory_pool": "enabled size bucket_capacity",
    "system.partition": "path prepare_queue_depth wal_bytes_max wal_group_commit_delay_micros dedup_clients_max "
    "consumer_offsets_max offset_reservation_lease evicted_ring_capacity evicted_ring_bytes_max "
    "transfer_served_cache_bytes_max transfer_artifact_bytes_max",
    "system.segment": "server_confirmation",
    "system.state": "enforce_fsync max_file_operation_retries retry_delay",
    "system.stream": "path",
    "system.topic": "path",
}
_IGNORED_TABLES = (
    "cluster",
    "message_bus",
    "metadata",
    "node",
    "system.sharding",
)
_IGNORED_SECRETS = ("tcp.tls.password",)


def _ignored() -> Iterator[Key[object]]:
    for table, names in _IGNORED.items():
        for name in names.split():
            yield unused_key(f"{table}.{name}")
    for path in _IGNORED_SECRETS:
        yield unused_key(path, is_secret=True)
    for path in _IGNORED_TABLES:
        # The contents may include secrets: never show them.
        yield unused_key(path, is_secret=True, has_any_below=True)


STOCK_KEYS: tuple[Key[object], ...] = tuple(_ignored())
