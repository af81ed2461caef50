"""Shell completion of names: streams, topics, groups, users and sinks from the server, contexts from the file.

If the server cannot be reached, nothing is completed and no error is shown.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import click

from courser.cli.connecting import find_target
from courser.cli.failures import Failure
from courser.cli.naming import TopicPathArgument, identifier
from courser.client.client import Client, connect
from courser.client.contexts import load_contexts
from courser.client.targets import Target
from courser.errors import CourserError, TargetRefused

_PATIENCE = 1.5
"""Seconds: the user waits for the completion."""
_STREAMS_MAX = 50
"""Streams whose topics are fetched, at most."""


def complete_place(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names for the next word of a place."""
    assert isinstance(param, TopicPathArgument)
    before = param.words_before(ctx)
    if not before:
        names = _names(_streams if param.depth == "stream" else lambda client: _places(client, incomplete))
    elif len(before) == 1 and param.depth != "stream":
        names = _names(lambda client: _topics(client, before[0]))
    elif param.depth == "topic" and [word.name for word in param.rest[len(before) - 2 :][:1]] == ["group"]:
        names = _names(lambda client: _groups(client, before))
    else:
        names = []
    return names


def complete_group(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of consumer groups, for an option after the topic."""
    del param, incomplete
    (place,) = (argument for argument in ctx.command.params if isinstance(argument, TopicPathArgument))
    before = place.words_before(ctx)
    return _names(lambda client: _groups(client, before)) if len(before) == 2 else []


def complete_topic(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Names of the form ``stream/topic``."""
    del ctx, param
    return _names(lambda client: _places(client, incomplete))


def complete_user(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param, incomplete

    async def users(client: Client) -> list[str]:
        return [user.name for user in await client.get_users()]

    return _names(users)


def complete_sink(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    del ctx, param, incomplete

    async def sinks(client: Client) -> list[str]:
        return list(dict.fromkeys(sink.name for sink in await client.get_sinks()))

    return _names(sinks)


def complete_context(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Saved contexts."""
    del ctx, param, incomplete
    try:
        return sorted(load_contexts().saved)
    except TargetRefused:
        return []


async def _streams(client: Client) -> list[str]:
    return [stream.name for stream in await client.get_streams()]


async def _topics(client: Client, stream: str) -> list[str]:
    return [topic.name for topic in await client.get_topics(identifier(stream))]


async def _groups(client: Client, words: Sequence[str]) -> list[str]:
    stream, topic = map(identifier, words[:2])
    return [group.name for group in await client.get_consumer_groups(stream, topic)]


async def _places(client: Client, incomplete: str) -> list[str]:
    """Every ``stream/topic`` that starts with ``incomplete``."""
    wanted, slash, _ = incomplete.partition("/")
    streams = [name for name in await _streams(client) if name == wanted or (not slash and name.startswith(wanted))]
    found = []
    for stream in streams[:_STREAMS_MAX]:
        found += [f"{stream}/{topic}" for topic in await _topics(client, stream)] or [f"{stream}/"]
    return found


def _names(ask: Callable[[Client], Awaitable[list[str]]]) -> list[str]:
    async def converse(target: Target) -> list[str]:
        async with asyncio.timeout(_PATIENCE), connect(target) as client:
            return await ask(client)

    try:
        target = find_target(needs_login=False).target
        if target.password is None and target.token is None:
            # Nobody can be asked while a word is being completed.
            return []
        return asyncio.run(converse(replace(target, reconnect=False)))
    except (CourserError, Failure, TimeoutError):
        return []
