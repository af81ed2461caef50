"""The server does what its OpenAPI document says: requests made from the document get replies that fit it."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from courser.broker.settings import BrokerLimits, BrokerSettings
from courser.wire.openapi import openapi_document
from tests.http.serving import HttpServer, serving

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
LIMITS = BrokerLimits(partition_count_of_topic_max=10, topic_count_of_stream_max=20, stream_count_max=20)
KNOWN = {"stream": "s", "topic": "t", "group": "g", "user": "eve", "partition_id": 0, "consumer": "1", "fsync": "true"}
"""Values for paths that lead to something."""
TOPIC = {"name": "t", "partitions_count": 2, "compression_algorithm": "none", "message_expiry": 0, "max_topic_size": 0}
EVE = {"username": "eve", "password": "secret", "status": "active", "permissions": None}
ENDLESS = "/events"
SEARCH = "/streams/{stream}/topics/{topic}/search"
"""Replies with events even to random queries: the tool cannot read them, and ``test_search`` does."""
GUARDED = ("/users/login", "/users/{user}/password", "/personal-access-tokens/login")
"""Wrong passwords make the next ones wait."""


@contextmanager
def running(directory: Path) -> Iterator[HttpServer]:
    """A server on a thread of its own."""
    started: list[HttpServer] = []
    is_started = threading.Event()
    loop = asyncio.new_event_loop()
    stopping = asyncio.Event()

    async def serve() -> None:
        try:
            async with serving(directory, broker_settings=BrokerSettings(limits=LIMITS)) as server:
                started.append(server)
                is_started.set()
                await stopping.wait()
        finally:
            is_started.set()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    try:
        is_started.wait()
        yield started[0]
    finally:
        loop.call_soon_threadsafe(stopping.set)
        thread.join()
        loop.close()


class Asker:
    """Sends requests made from the document."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._url = f"http://127.0.0.1:{server.port}"
        self._session = requests.Session()
        self._session.trust_env = False

    def prepare(self) -> None:
        """What the known values name exists, and the token is valid."""
        self._session.headers["authorization"] = f"Bearer {self._server.root.token}"
        bodies: dict[str, Any] = {
            "/streams": {"name": "s"},
            "/streams/s/topics": TOPIC,
            "/streams/s/topics/t/consumer-groups": {"name": "g"},
            "/users": EVE,
        }
        for path, body in bodies.items():
            self._session.post(self._url + path, json=body)
        topic = f"{self._url}/streams/s/topics/t"
        self._session.post(f"{topic}/messages", data=b"x", headers={"content-type": "application/octet-stream"})
        reply = self._session.post(f"{topic}/consumer-groups/g/members")
        self._member = reply.json()["id"]

    def ask(self, case: Any, *, is_known: bool) -> None:
        if is_known:
            known = KNOWN | {"member": self._member}
            case.path_parameters = {name: known.get(name, value) for name, value in case.path_parameters.items()}
        if "wait" in (case.query or {}):
            case.query["wait"] = "1ms"
        # Its own headers would replace the token.
        case.headers = {name: value for name, value in (case.headers or {}).items() if name != "Authorization"}
        reply = case.call(base_url=self._url, session=self._session, timeout=60)
        case.validate_response(reply, checks=CHECKS)


def check_all(directory: Path, count: int) -> None:
    """So many requests of each kind to each route: valid ones about what exists and what does not, and invalid ones."""
    schema = schemathesis.openapi.from_dict(openapi_document("1.0"))
    with running(directory) as server:
        asker = Asker(server)
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr]
            if operation.path == SEARCH:
                continue
            asker.prepare()
            example_count = min(count, 2) if operation.path in GUARDED else count
            if operation.path != ENDLESS:
                ask_often(operation.as_strategy(), partial(asker.ask, is_known=True), example_count)
            if any(operation.iter_parameters()) or operation.body:
                invalid = operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)
                ask_often(operation.as_strategy(), partial(asker.ask, is_known=False), example_count)
                # A path that takes every text has no invalid requests.
                with suppress(Unsatisfiable):
                    ask_often(invalid, partial(asker.ask, is_known=False), example_count)


def ask_often(strategy: Any, ask: Callable[[Any], None], count: int) -> None:
    @settings(
        max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
    )
    @given(case=strategy)
    def ask_once(case: Any) -> None:
        ask(case)

    ask_once()


def test_replies_are_what_the_document_says(tmp_path: Path) -> None:
    check_all(tmp_path, 1)


@pytest.mark.slow
def test_replies_to_many_requests_are_what_the_document_says(tmp_path: Path) -> None:
    check_all(tmp_path, 12)
