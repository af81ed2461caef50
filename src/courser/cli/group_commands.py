"""``courser consumer-group``: create, show and delete consumer groups."""

from msgspec.structs import asdict

from courser.cli.connecting import ask_server
from courser.cli.lag import GROUP_LAG_FIELDS, group_lags
from courser.cli.naming import TopicPath, Word, identifier, sought, topic_argument
from courser.cli.records import Field, Record, Section, emit_deed, emit_list, emit_thing
from courser.cli.server_options import server_command, yes_option
from courser.cli.terminal import confirm
from courser.client.client import Client

_GROUP = Word("group")
_FIELDS = (
    Field("group_id", "id", is_number=True),
    Field("name"),
    Field("member_count", "members", is_number=True),
    Field("partition_count", "partitions", is_number=True),
)
_MEMBER_FIELDS = (Field("member_id", "member", is_number=True), Field("partition_ids", "partitions"))


@server_command("list", "courser consumer-group list demo/orders", "courser g l demo orders -o json")
@topic_argument()
def list_command(*, place: TopicPath, output: str) -> None:
    """List the consumer groups of a topic."""
    groups = ask_server(lambda client: client.get_consumer_groups(*place.names), place)
    empty = f"no groups yet; create one with courser consumer-group create {place} NAME"
    emit_list(_FIELDS, map(asdict, groups), output, empty=empty)


@server_command("get", "courser consumer-group get demo/orders billing", "courser g g demo orders billing -o json")
@topic_argument(_GROUP)
def get_command(*, place: TopicPath, group: str, output: str) -> None:
    """Show one group: its members with their partitions, and its progress in each partition."""

    async def ask(client: Client) -> Record:
        details = await client.get_consumer_group(*place.names, identifier(group))
        lags = await group_lags(client, place, details.group.group_id)
        members = [asdict(member) for member in details.members]
        return {**asdict(details.group), "members": members, "partitions": lags}

    record = ask_server(ask, place, sought(group=identifier(group)))
    emit_thing(_FIELDS, record, output, [Section("members", _MEMBER_FIELDS), Section("partitions", GROUP_LAG_FIELDS)])


@server_command("create", "courser consumer-group create demo/orders billing")
@topic_argument(Word("name"))
def create_command(*, place: TopicPath, name: str, output: str) -> None:
    """Create a consumer group."""
    details = ask_server(lambda client: client.create_consumer_group(*place.names, name), place)
    sentence = f'created group "{name}" of "{place}" with id {details.group.group_id}'
    emit_deed(sentence, asdict(details.group), output)


@server_command("delete", "courser consumer-group delete demo/orders billing --yes")
@topic_argument(_GROUP)
@yes_option
def delete_command(*, place: TopicPath, group: str, is_confirmed: bool, output: str) -> None:
    """Delete a consumer group and its stored offsets."""
    confirm(f'delete group "{group}" of "{place}" with its stored offsets', is_confirmed=is_confirmed)
    name = identifier(group)
    ask_server(lambda client: client.delete_consumer_group(*place.names, name), place, sought(group=name))
    record = {"stream": place.stream, "topic": place.topic, "group": name, "deleted": True}
    emit_deed(f'deleted group "{group}" of "{place}"', record, output)
