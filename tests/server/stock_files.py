"""The keys and default values of the configuration files that Iggy ships, written down from its documentation."""

IGGY_0_8 = """
[consumer_group]
rebalancing_timeout = "30s"
rebalancing_check_interval = "5s"

[data_maintenance.messages]
cleaner_enabled = false
interval = "1 m"

[http]
enabled = true
address = "127.0.0.1:3000"
max_request_size = "2 MB"
web_ui = false

[http.cors]
enabled = true
allowed_methods = ["GET", "POST", "PUT", "DELETE"]
allowed_origins = ["*"]
allowed_headers = ["content-type", "authorization"]
exposed_headers = [""]
allow_credentials = false
allow_private_network = false

[http.jwt]
algorithm = "HS256"
issuer = "iggy.apache.org"
audience = "iggy.apache.org"
valid_issuers = ["iggy.apache.org"]
valid_audiences = ["iggy.apache.org"]
access_token_expiry = "1 h"
clock_skew = "5 s"
not_before = "0 s"
encoding_secret = ""
decoding_secret = ""
use_base64_secret = false

[[http.jwt.trusted_issuers]]
issuer = "test-issuer"
jwks_url = "http://127.0.0.1:8081/.well-known/jwks.json"
audience = "iggy.apache.org"
user_id = 0

[http.metrics]
enabled = true
endpoint = "/metrics"

[http.tls]
enabled = false
cert_file = "core/certs/iggy_cert.pem"
key_file = "core/certs/iggy_key.pem"

[tcp]
enabled = true
address = "127.0.0.1:8090"
socket_migration = true
ipv6 = false

[tcp.tls]
enabled = false
self_signed = true
cert_file = "core/certs/iggy_cert.pem"
key_file = "core/certs/iggy_key.pem"

[tcp.socket]
override_defaults = false
recv_buffer_size = "100 KB"
send_buffer_size = "100 KB"
keepalive = false
nodelay = false
linger = "0 s"

[quic]
enabled = true
address = "127.0.0.1:8080"
max_concurrent_bidi_streams = 10_000
datagram_send_buffer_size = "100 KB"
initial_mtu = "8 KB"
send_window = "100 KB"
receive_window = "100 KB"
keep_alive_interval = "5 s"
max_idle_timeout = "10 s"

[quic.certificate]
self_signed = true
cert_file = "core/certs/iggy_cert.pem"
key_file = "core/certs/iggy_key.pem"

[quic.socket]
override_defaults = false
recv_buffer_size = "64 KB"
send_buffer_size = "64 KB"
keepalive = false

[websocket]
enabled = true
address = "127.0.0.1:8092"
read_buffer_size = "128 KiB"
write_buffer_size = "128 KiB"
max_write_buffer_size = "128 MiB"
max_message_size = "64 MiB"
max_frame_size = "16 MiB"
accept_unmasked_frames = false

[websocket.tls]
enabled = false
self_signed = true
cert_file = "core/certs/iggy_cert.pem"
key_file = "core/certs/iggy_key.pem"

[message_saver]
enabled = true
enforce_fsync = true
interval = "30 s"

[personal_access_token]
max_tokens_per_user = 100

[personal_access_token.cleaner]
enabled = true
interval = "1 m"

[heartbeat]
enabled = false
interval = "5 s"

[telemetry]
enabled = false
service_name = "iggy"

[telemetry.logs]
transport = "grpc"
endpoint = "http://localhost:7281/v1/logs"

[telemetry.traces]
transport = "grpc"
endpoint = "http://localhost:7281/v1/traces"

[system]
path = "local_data"

[system.backup]
path = "backup"

[system.backup.compatibility]
path = "compatibility"

[system.state]
enforce_fsync = false
max_file_operation_retries = 1
retry_delay = "1 s"

[system.runtime]
path = "runtime"

[system.logging]
path = "logs"
level = "info"
file_enabled = true
max_file_size = "500 MB"
max_total_size = "4 GB"
rotation_check_interval = "1 h"
retention = "7 days"
sysinfo_print_interval = "10 s"

[system.encryption]
enabled = false
key = ""

[system.compression]
allow_override = false
default_algorithm = "none"

[system.stream]
path = "streams"

[system.topic]
path = "topics"
max_size = "unlimited"
message_expiry = "none"

[system.partition]
path = "partitions"
enforce_fsync = false
validate_checksum = false
messages_required_to_save = 1024
size_of_messages_required_to_save = "1 MiB"

[system.segment]
size = "1 GiB"
cache_indexes = "open_segment"
archive_expired = false

[system.message_deduplication]
enabled = false
max_entries = 10000
expiry = "1 m"

[system.recovery]
recreate_missing_state = false

[system.memory_pool]
enabled = true
size = "4 GiB"
bucket_capacity = 8192

[system.sharding]
cpu_allocation = "numa:auto"

[cluster]
enabled = false
name = "iggy-cluster"

[cluster.node.current]
name = "iggy-node-1"
ip = "127.0.0.1"

[[cluster.node.others]]
name = "iggy-node-2"
ip = "127.0.0.1"
ports = { tcp = 8091, quic = 8081, http = 3001, websocket = 8093 }
"""

ONLY_IN_0_6 = """
[system.topic]
delete_oldest_segments = false

[system.segment]
message_expiry = "none"
server_confirmation = "wait"

[system.sharding]
cpu_allocation = "all"
"""

ONLY_IN_0_5 = """
[data_maintenance.archiver]
enabled = false
kind = "disk"

[data_maintenance.archiver.disk]
path = "local_data/archive"

[data_maintenance.archiver.s3]
key_id = "123"
key_secret = "secret"
bucket = "iggy"
endpoint = "http://localhost:9000"
region = "eu-west-1"
tmp_upload_dir = "local_data/s3_tmp"

[data_maintenance.messages]
archiver_enabled = false

[data_maintenance.state]
archiver_enabled = false
overwrite = true
interval = "1 m"

[message_cleaner]
enabled = true
interval = "1 m"

[system.logging]
max_size = "512 MB"

[tcp.tls]
certificate = "certs/iggy.pfx"
password = "iggy123"
"""

WITHOUT_SYSTEM = """
path = "local_data"

[consumer_group]
rebalancing_timeout = "30s"
session_timeout = "30s"
heartbeat_interval = "5s"

[data_maintenance.messages]
cleaner_enabled = true
interval = "1 m"

[quic]
stream_receive_window = "64 MiB"

[heartbeat]
enabled = true
interval = "30 s"

[runtime]
path = "runtime"

[logging]
path = "logs"
level = "info"
file_enabled = true
max_file_size = "500 MB"
max_total_size = "4 GB"
rotation_check_interval = "1 h"
retention = "7 days"
sysinfo_print_interval = "10 s"

[encryption]
enabled = false
key = ""

[memory_pool]
enabled = true
size = "4 GiB"
bucket_capacity = 8192

[cluster]
enabled = false
name = "iggy-cluster"
heartbeat_timeout = "5s"
commit_broadcast_interval = "500ms"
repair_chunk_max = 128

[cluster.auth]
enabled = false
shared_secret = ""
previous_shared_secret = ""

[cluster.tls]
enabled = false
ca_file = ""

[cluster.coordinator]
skip_shard_zero_for_replicas = true

[[cluster.nodes]]
name = "iggy-node-1"
ip = "127.0.0.1"
replica_id = 0
ports = { tcp = 8090, quic = 8080, http = 3000, websocket = 8092, tcp_replica = 9090 }

[sharding]
cpu_allocation = "numa:auto"
pin_cores = true
inbox_capacity = 65536

[metadata]
prepare_queue_depth = 32
journal_slots = 1024
clients_table_max = 8192

[partition]
validate_checksum = true
prepare_queue_depth = 32
evicted_ring_capacity = 65536
evicted_ring_bytes_max = "64 MiB"

[message_bus]
max_batch = 256
max_message_size = "64 MiB"
peer_queue_capacity = 4096
reconnect_period = "1 s"

[node]
advertised_address = "broker-1.example.com"
"""
