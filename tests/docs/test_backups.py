"""What docs/operations.md says of backups: a copy of a stopped server's directory is a server's directory."""

import shutil
from pathlib import Path

from courser.client.sync import connect_sync
from tests.servers import RunningServer


def test_a_copy_of_a_stopped_server_has_everything_and_never_repeats_an_offset(tmp_path: Path) -> None:
    original = RunningServer(tmp_path / "original")
    with original, connect_sync(f"iggy://iggy:iggy@{original.address}") as client:
        client.create_stream("shop")
        client.create_topic("shop/orders")
        client.create_user("clerk", "secret-of-the-clerk")
        client.send_messages("shop/orders", messages=["one", "two"])
        client.store_consumer_offset("shop/orders", offset=0, consumer="reader")
    copy = RunningServer(tmp_path / "copy")
    copy.directory.mkdir()
    shutil.copytree(original.data, copy.data, symlinks=True)
    with original, connect_sync(f"iggy://iggy:iggy@{original.address}") as client:
        later = client.send_messages("shop/orders", messages=["after the copy"]).base_offset
        assert later == 2
    with copy, connect_sync(f"iggy://iggy:iggy@{copy.address}") as client:
        (message,) = client.poll_messages("shop/orders", partition_id=0, consumer="reader")
        assert message.payload == b"two"
        assert {user.name for user in client.get_users()} == {"iggy", "clerk"}
        assert client.send_messages("shop/orders", messages=["elsewhere"]).base_offset > later
