"""``courser user``: users, their passwords and permissions."""

from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

import click
from msgspec.structs import asdict

from courser.api.replies import UserDetails, UserInfo
from courser.broker.access.verdicts import Verdict, texts
from courser.cli.allowing import ACTIONS, find_ids, judge, parse_allowances, with_allowances
from courser.cli.connecting import ask_server
from courser.cli.failures import ExitCode
from courser.cli.fields import Record, fields
from courser.cli.lazy import completed_by
from courser.cli.naming import TopicPath, any_place_argument, identifier, sought
from courser.cli.options import option
from courser.cli.output import Section, emit_deed, emit_list, emit_thing
from courser.cli.permission_words import Names, parse_permissions, permission_rows, permissions_record
from courser.cli.server_options import server_command
from courser.cli.terminal import ask_new_password, ask_secret, harmless, write
from courser.client.client import Client
from courser.errors import CourserError
from courser.model.permissions import Permissions

_Function = TypeVar("_Function", bound=Callable[..., object])

_PREPOSITIONS = {"send": "to ", "create": "topics in "}
"""What stands between an action and its place in a sentence; nothing for most."""
_STATES = {"active": True, "inactive": False}
_FIELDS = fields("user_id=id#, name, status, created_at=created/1")
_PERMISSION_FIELDS = fields("where, permissions")


_user_argument = click.argument("user", metavar="USER", shell_complete=completed_by("complete_user"))


def _permission_options(function: _Function) -> _Function:
    allowed = option(
        "--allow PLACE:WORDS",
        "Permissions by name: shop/orders:read for a topic, shop:send for a stream, '*:poll' for all. Words: read "
        "(topics, messages, groups), poll (messages only), send, manage; or any permission below. May be repeated.",
        "allowed",
        multiple=True,
    )
    everywhere = option(
        "-g, --global-permissions LIST",
        "Permissions for all streams: manage_servers, read_servers, manage_users, read_users, manage_streams, "
        "read_streams, manage_topics, read_topics, poll_messages, send_messages; or m_srv, r_srv, m_usr ...",
        "everywhere",
    )
    streams = option(
        "-s, --stream-permissions STREAM:LIST#TOPIC:LIST",
        "Permissions for one stream and its topics, by id: 3:r_str,p_msg#1:s_msg. May be repeated.",
        "streams",
        multiple=True,
    )
    return allowed(everywhere(streams(function)))


def _record(user: UserInfo) -> Record:
    record = asdict(user)
    return {**record, "status": "active" if record.pop("is_active") else "inactive"}


@server_command("list", "courser user list", "courser u l -o json")
def list_command(*, output: str) -> None:
    """List all users."""
    emit_list(_FIELDS, map(_record, ask_server(lambda client: client.get_users())), output)


@server_command("get", "courser user get iggy", "courser u g 0 -o json")
@_user_argument
def get_command(*, user: str, output: str) -> None:
    """Show one user and its permissions."""
    name = identifier(user)

    async def ask(client: Client) -> tuple[UserDetails, Names]:
        details = await client.get_user(name)
        return details, await _names(client, details.permissions)

    details, names = ask_server(ask, names=sought(user=name))
    record = _record(details.user)
    if output == "table":
        record = {**record, "rows": permission_rows(details.permissions, names)}
        emit_thing(_FIELDS, record, output, [Section("rows", _PERMISSION_FIELDS)])
        return
    emit_thing(_FIELDS, {**record, "permissions": permissions_record(details.permissions)}, output)


async def _names(client: Client, permissions: Permissions | None) -> Names:
    """The names of the streams and topics in these permissions, as far as they exist and the caller may see them."""
    names: dict[tuple[int, int | None], str] = {}
    for stream_id in () if permissions is None else permissions.streams:
        with suppress(CourserError):
            details = await client.get_stream(stream_id)
            names[stream_id, None] = details.stream.name
            names |= {(stream_id, topic.topic_id): f"{details.stream.name}/{topic.name}" for topic in details.topics}
    return names


@server_command(
    "create",
    "courser user create reader --allow shop/orders:read",
    "courser user create reader -g p_msg,r_top",
    "courser user create writer --user-status inactive -s 0#1:s_msg",
)
@click.argument("name")
@click.argument("new_password", metavar="[PASSWORD]", required=False)
@option("--user-status", "Inactive users can do nothing.", type=click.Choice(tuple(_STATES)), default="active")
@_permission_options
def create_command(
    *,
    name: str,
    new_password: str | None,
    user_status: str,
    allowed: tuple[str, ...],
    everywhere: str | None,
    streams: tuple[str, ...],
    output: str,
) -> None:
    """Create a user. Without PASSWORD, it is taken from COURSER_NEW_PASSWORD, or asked for at a terminal."""
    permissions, allowances = parse_permissions(everywhere, streams), parse_allowances(allowed)
    secret = new_password or ask_new_password(name)

    async def ask(client: Client) -> UserDetails:
        wanted = await with_allowances(client, allowances, permissions)
        return await client.create_user(name, secret, permissions=wanted, is_active=_STATES[user_status])

    details = ask_server(ask)
    emit_deed(f'created user "{name}" with id {details.user.user_id}', _record(details.user), output)


@server_command("name", "courser user name reader auditor")
@_user_argument
@click.argument("new_name")
def name_command(*, user: str, new_name: str, output: str) -> None:
    """Rename a user."""
    name = identifier(user)
    ask_server(lambda client: client.update_user(name, username=new_name), names=sought(user=name))
    emit_deed(f'renamed user "{user}" to "{new_name}"', {"user": name, "name": new_name}, output)


@server_command("status", "courser user status reader inactive")
@_user_argument
@click.argument("status", type=click.Choice(tuple(_STATES)))
def status_command(*, user: str, status: str, output: str) -> None:
    """Activate or deactivate a user. Inactive users can do nothing, even on open connections."""
    name = identifier(user)
    ask_server(lambda client: client.update_user(name, is_active=_STATES[status]), names=sought(user=name))
    emit_deed(f'user "{user}" is now {status}', {"user": name, "status": status}, output)


@server_command(
    "password", "courser user password reader", "COURSER_NEW_PASSWORD=... courser user password reader old-one"
)
@_user_argument
@click.argument("current_password", metavar="[CURRENT]", required=False)
@click.argument("new_password", metavar="[NEW]", required=False)
def password_command(*, user: str, current_password: str | None, new_password: str | None, output: str) -> None:
    """Change a password. The current password is required; passwords that are not given are asked for at a terminal.

    Connections that logged in with the old password are closed.
    """
    name = identifier(user)
    present = current_password or ask_secret(f"the current password of {user}", "pass it as CURRENT")
    secret = new_password or ask_new_password(user)
    ask_server(lambda client: client.change_password(name, present, secret), names=sought(user=name))
    emit_deed(f'changed the password of user "{user}"', {"user": name, "changed": True}, output)


@server_command(
    "permissions",
    "courser user permissions reader --allow shop/orders:read,send",
    "courser user permissions reader -g p_msg,r_top",
    "courser user permissions reader -s 0:r_str#1:s_msg",
    "courser user permissions reader",
)
@_user_argument
@_permission_options
def permissions_command(
    *, user: str, allowed: tuple[str, ...], everywhere: str | None, streams: tuple[str, ...], output: str
) -> None:
    """Replace all permissions of a user. Without options, all permissions are revoked."""
    name = identifier(user)
    given, allowances = parse_permissions(everywhere, streams), parse_allowances(allowed)

    async def ask(client: Client) -> Permissions | None:
        wanted = await with_allowances(client, allowances, given)
        await client.update_permissions(name, wanted)
        return wanted

    permissions = ask_server(ask, names=sought(user=name))
    record = {"user": name, "permissions": permissions_record(permissions)}
    emit_deed(f'changed the permissions of user "{user}"', record, output)


@server_command(
    "can",
    "courser user can bob send shop/orders",
    "courser user can bob read shop",
    "courser user can bob manage-users",
    exits="Exit codes: 0 yes, 1 no, 2 wrong usage, 3 cannot connect, 4 login failed or permission denied, 5 not found.",
)
@_user_argument
@click.argument("action", type=click.Choice(tuple(ACTIONS)))
@any_place_argument()
def can_command(*, user: str, action: str, place: TopicPath | None, output: str) -> int:
    """Say whether a user may do something with a topic, with a stream or everywhere, and why.

    read covers topics, messages and consumer groups; poll covers messages only.
    """
    name = identifier(user)

    async def ask(client: Client) -> Verdict:
        details = await client.get_user(name)
        return judge(details, action, *await find_ids(client, place))

    verdict = ask_server(ask, names=sought(user=name))
    if output == "table":
        where = f' {_PREPOSITIONS.get(action, "")}"{place}"' if place is not None else ""
        answer = f'yes: user "{user}" may' if verdict.is_allowed else f'no: user "{user}" may not'
        write(f"{harmless(f'{answer} {action}{where}; {verdict.reason}')}\n")
    else:
        asked = {"user": name, "action": action, "place": None if place is None else str(place)}
        answer_fields = fields("user, action, place, is_allowed, reason")
        emit_thing(answer_fields, {**asked, **_verdict_record(verdict)}, output)
    return ExitCode.OK if verdict.is_allowed else ExitCode.FAILED


def _verdict_record(verdict: Verdict) -> dict[str, object]:
    return {
        "is_allowed": verdict.is_allowed,
        "reason": verdict.reason,
        "granted_by": texts(verdict.granted_by),
        "sufficient": texts(verdict.sufficient),
    }
