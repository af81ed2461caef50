"""The context that ``courser dev`` saves: other commands find the server by it.

Several such servers may run at once. The first has the name ``dev``; the others have numbered names.
"""

from contextlib import suppress
from itertools import count

from courser.cli.ports import answers_ping, listens
from courser.cli.terminal import say
from courser.client.contexts import Context, load_contexts
from courser.errors import TargetRefused
from courser.server.server import Listening

DEV_CONTEXT = "dev"


def save_dev_context(server: Listening) -> str | None:
    """Save a context for the server, and select it unless another server has the usual name. The server works without.

    A root user of an earlier start may have another password: commands then ask for it.
    """
    context = Context(server.url, server.username, server.password)
    try:
        contexts = load_contexts()
        names = (DEV_CONTEXT if number == 1 else f"{DEV_CONTEXT}-{number}" for number in count(1))
        name = next(name for name in names if not _is_of_another(contexts.saved.get(name), server))
        contexts.with_context(name, context, select=name == DEV_CONTEXT).save()
    except TargetRefused as refusal:
        say(f'warning: cannot save the context "{DEV_CONTEXT}": {refusal}')
        return None
    return name


def _is_of_another(saved: Context | None, server: Listening) -> bool:
    """Whether a saved context belongs to a server that is running, or on another machine."""
    if saved is None:
        return False
    target = saved.target()
    if target.address == server.address:
        return False
    answers = listens if target.tls else answers_ping
    return not target.is_local or answers(target.host, target.port)


def forget_dev_context(name: str) -> None:
    """Delete the context of a second server, which has stopped. The usual one stays for the next start."""
    if name == DEV_CONTEXT:
        return
    with suppress(TargetRefused):
        load_contexts().without(name).save()
