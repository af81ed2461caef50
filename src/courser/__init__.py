"""Courser: a durable message streaming server, and a client for it.

What a program needs of the client is reachable from here, and loaded when it is first used:
``from courser import connect``.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from courser.client.client import Client as Client
    from courser.client.client import connect as connect
    from courser.client.handling import ReceivedMessage as ReceivedMessage
    from courser.client.messages import Message as Message
    from courser.client.messages import Partitioning as Partitioning
    from courser.client.messages import PollingStrategy as PollingStrategy
    from courser.client.messages import SendMessage as SendMessage
    from courser.client.sync import SyncClient as SyncClient
    from courser.client.sync import connect_sync as connect_sync
    from courser.client.targets import Target as Target
    from courser.client.tracing import trace_context as trace_context
    from courser.errors import CourserError as CourserError

__version__ = "0.1.0"

_PLACES = {
    "Client": "courser.client.client",
    "CourserError": "courser.errors",
    "Message": "courser.client.messages",
    "Partitioning": "courser.client.messages",
    "PollingStrategy": "courser.client.messages",
    "ReceivedMessage": "courser.client.handling",
    "SendMessage": "courser.client.messages",
    "SyncClient": "courser.client.sync",
    "Target": "courser.client.targets",
    "connect": "courser.client.client",
    "connect_sync": "courser.client.sync",
    "trace_context": "courser.client.tracing",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PLACES])
