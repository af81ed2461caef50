"""``python -m benchmarks.bare_application COUNT``: an ASGI application that reads and writes the JSON of messages.

The same uvicorn, event loop and JSON library as Courser's HTTP, and the same bodies. Nothing is checked or stored: a
POST is decoded and confirmed, a GET encodes COUNT messages.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec
import uvicorn

from benchmarks.samples import SAME_SIZE
from courser.wire.rest_messages import SendBody

Message = MutableMapping[str, Any]

_HEADER = {
    "checksum": 2**63,
    "id": 2**63,
    "offset": 0,
    "timestamp": 2**50,
    "origin_timestamp": 2**50,
    "user_headers_length": 0,
    "payload_length": SAME_SIZE,
    "reserved": 0,
}


class Application:
    """Answers every path."""

    def __init__(self, message_count: int) -> None:
        self._decoder = msgspec.json.Decoder(SendBody)
        message = {"header": _HEADER, "payload": os.urandom(SAME_SIZE), "user_headers": []}
        self._polled = {
            "partition_id": 0,
            "current_offset": 0,
            "count": message_count,
            "messages": [message] * message_count,
        }

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        body = bytearray()
        while True:
            received = await receive()
            body += received.get("body", b"")
            if not received.get("more_body"):
                break
        if scope["method"] == "POST":
            count = len(self._decoder.decode(body).messages)
            reply = msgspec.json.encode({"confirmations": [{"partition_id": 0, "base_offset": count}]})
        else:
            reply = msgspec.json.encode(self._polled)
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(reply))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": reply})


async def serve(message_count: int) -> None:
    """Print the port, and serve until the process is killed."""
    configuration = uvicorn.Config(
        Application(message_count),
        port=0,
        http="httptools",
        loop="uvloop",
        lifespan="off",
        log_level="warning",
        timeout_keep_alive=3600,
    )
    configuration.load()
    server = uvicorn.Server(configuration)
    server.lifespan = configuration.lifespan_class(configuration)
    await server.startup()
    print(server.servers[0].sockets[0].getsockname()[1], flush=True)
    await server.main_loop()


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(int(sys.argv[1])))
