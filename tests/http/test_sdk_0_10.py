"""What SDK 0.10 sends over HTTP, beside what earlier releases send."""

import asyncio
from typing import Any

import pytest

from tests.http.serving import FIRST, HttpClient, HttpServer, message, send, until

OPTIONS = {"durability": "replicated", "consumer_offset_durability": "replicated"}
"""It sends them with each new topic."""


async def options_of(client: HttpClient, topic: str) -> Any:
    return (await client.ask("GET", topic)).json["options"]


async def context_of(client: HttpClient, topic: str) -> Any:
    return (await client.ask("GET", topic)).json["partitions"][0]["context"]


# --- topics -----------------------------------------------------------------------------------------------


async def test_a_topic_has_all_its_settings_in_the_options(root: HttpClient, topic: str) -> None:
    body = {"name": "u", "partitions_count": 1, "options": {**OPTIONS, "compression_algorithm": "gzip"}}
    reply = await root.ask("POST", topic.rpartition("/")[0], body)
    assert reply.status == 200
    assert reply.json["compression_algorithm"] == "gzip"
    assert reply.json["options"]["compression_algorithm"] == {"value": "gzip", "kind": "string", "explicit": True}


async def test_without_options_the_settings_stand_beside_the_name(root: HttpClient, topic: str) -> None:
    reply = await root.ask("POST", topic.rpartition("/")[0], {"name": "u", "partitions_count": 1})
    assert reply.status == 422


async def test_each_partition_has_its_context(root: HttpClient, topic: str) -> None:
    context = await context_of(root, topic)
    assert context["incarnation"] == context["metadata_op"] > 0
    assert context["owner_generation"] == 0
    polled = await root.ask("GET", f"{topic}/messages")
    assert polled.json["context"] == context


async def test_a_send_names_the_history_that_it_means(root: HttpClient, topic: str) -> None:
    context = await context_of(root, topic)
    body = {"partitioning": FIRST, "messages": [message()], "context": context}
    assert (await root.ask("POST", f"{topic}/messages", body)).status == 201
    body["context"] = {**context, "incarnation": context["incarnation"] + 1}
    refused = await root.ask("POST", f"{topic}/messages", body)
    assert refused.json["id"] == 87


# --- updates ----------------------------------------------------------------------------------------------


async def test_an_update_says_only_what_changes(root: HttpClient, topic: str) -> None:
    assert (await root.ask("PUT", topic, {"name": None, "message_expiry": "7 days"})).status == 204
    found = await root.ask("GET", topic)
    assert (found.json["name"], found.json["message_expiry"]) == ("t", 7 * 24 * 3600 * 1_000_000)
    assert (await root.ask("PUT", topic, {"max_topic_size": "9007199254740993"})).status == 204
    options = await options_of(root, topic)
    assert options["max_topic_size"]["value"] == "9007199254740993"
    assert options["message_expiry"]["explicit"]


async def test_an_update_resets_options(root: HttpClient, topic: str) -> None:
    await root.ask("PUT", topic, {"message_expiry": "1 day"})
    assert (await root.ask("PUT", topic, {"name": "t", "reset": ["message_expiry"]})).status == 204
    assert not (await options_of(root, topic))["message_expiry"]["explicit"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        pytest.param({"reset": ["compression_algorithm"]}, 4103, id="set on creation"),
        pytest.param({"reset": ["name"]}, 4104, id="without a default"),
        pytest.param({"reset": ["retention"]}, 4041, id="unknown"),
        pytest.param({"message_expiry": "1 day", "reset": ["message_expiry"]}, 3, id="set and reset"),
        pytest.param({"options": {"compression_algorithm": "brotli"}}, 4042, id="wrong value"),
    ],
)
async def test_an_update_is_refused(root: HttpClient, topic: str, body: dict[str, Any], expected: int) -> None:
    assert (await root.ask("PUT", topic, body)).json["id"] == expected


async def test_an_update_changes_something(root: HttpClient, topic: str) -> None:
    assert (await root.ask("PUT", topic, {"max_topic_size": None})).status == 422


async def test_the_map_of_options_changes_the_compression(root: HttpClient, topic: str) -> None:
    body = {"name": "t", "options": {"compression_algorithm": "zstd"}}
    assert (await root.ask("PUT", topic, body)).status == 204
    assert (await options_of(root, topic))["compression_algorithm"]["value"] == "zstd"


# --- polls that wait --------------------------------------------------------------------------------------


async def test_a_poll_reads_what_is_there(root: HttpClient, topic: str) -> None:
    await send(root, topic, message(b"one"), message(b"two"))
    reply = await root.ask("GET", f"{topic}/messages/deferred?kind=first&count=1&wait_us=600000000")
    assert (reply.status, reply.json["count"]) == (200, 1)


async def test_a_poll_waits_for_enough_messages(server: HttpServer, root: HttpClient, topic: str) -> None:
    path = f"{topic}/messages/deferred?kind=first&count=10&min_count=2&wait_us=600000000"
    poll = asyncio.create_task(root.ask("GET", path))
    await until(lambda: bool(server.parked_polls))
    await send(root, topic, message(b"one"))
    assert not poll.done()
    await send(root, topic, message(b"two"))
    assert (await poll).json["count"] == 2


async def test_a_poll_with_a_commit_is_a_post(root: HttpClient, topic: str) -> None:
    await send(root, topic, message(b"one"))
    path = f"{topic}/messages/deferred?kind=next&auto_commit=true&wait_us=0"
    assert (await root.ask("POST", path)).json["count"] == 1
    assert (await root.ask("POST", path)).json["count"] == 0


async def test_a_reply_has_one_message_however_large(root: HttpClient, topic: str) -> None:
    await send(root, topic, message(b"x" * 5_000), message(b"y"))
    reply = await root.ask("GET", f"{topic}/messages/deferred?kind=first&max_bytes=344")
    assert reply.json["count"] == 1


async def test_a_wait_ends_with_its_client(server: HttpServer, root: HttpClient, topic: str) -> None:
    poll = asyncio.create_task(root.ask("GET", f"{topic}/messages/deferred?wait_us=600000000"))
    await until(lambda: bool(server.parked_polls))
    poll.cancel()
    await until(lambda: not server.parked_polls)


@pytest.mark.parametrize("query", ["min_count=0", "min_count=11&count=10", "wait_us=600000001", "wait_us=-1"])
async def test_a_poll_is_refused(root: HttpClient, topic: str, query: str) -> None:
    assert (await root.ask("GET", f"{topic}/messages/deferred?{query}")).status == 400


async def test_a_poll_needs_the_permission(server: HttpServer, topic: str) -> None:
    assert (await HttpClient(server.port).ask("GET", f"{topic}/messages/deferred")).status == 401


# --- changes of the metadata --------------------------------------------------------------------------------


async def test_changes_are_read_from_where_the_last_page_ended(root: HttpClient, topic: str) -> None:
    page = (await root.ask("GET", "/metadata/changes?from=earliest&groups=streams,topics&limit=1")).json
    assert (page["status"], page["phase"], page["has_more"]) == ("ok", "changes", True)
    (created,) = page["records"]
    assert (created["kind"], created["name"], created["options"]) == ("stream_created", "s", {})
    page = (await root.ask("GET", f"/metadata/changes?after={page['next']}&groups=streams,topics")).json
    (created,) = page["records"]
    assert (created["kind"], created["name"]) == ("topic_created", "t")
    # The same as in the topic itself, with the defaults of the server.
    assert created["options"] == await options_of(root, topic)
    await root.ask("DELETE", topic)
    page = (await root.ask("GET", f"/metadata/changes?after={page['next']}")).json
    assert [(record["kind"], record["name"]) for record in page["records"]] == [("topic_deleted", "t")]


async def test_the_present_state_comes_in_pages(root: HttpClient, topic: str) -> None:
    path = "/metadata/changes?from=current&groups=streams,topics&limit=1"
    first = (await root.ask("GET", path)).json
    second = (await root.ask("GET", f"{path}&current_after={first['current_page_token']}")).json
    assert [page["has_more"] for page in (first, second)] == [True, False]
    items = [*first["items"], *second["items"]]
    assert [(item["group"], item["name"]) for item in items] == [("streams", "s"), ("topics", "t")]
    assert items[1]["options"] == await options_of(root, topic)


async def test_a_query_that_cannot_be_answered_is_refused(root: HttpClient) -> None:
    for query in ("", "from=newest", "from=earliest&limit=0", "from=current&groups=topics", "after=mc1_x", "from=%FF"):
        assert (await root.ask("GET", f"/metadata/changes?{query}")).status == 400
