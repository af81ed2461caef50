"""Users and permissions, made with 0.9 and felt by every release."""

from collections.abc import Iterator

import pytest

from tests.sdk.conversations import Conversation, Refused
from tests.sdk.environments import RELEASES
from tests.servers import RunningServer

PASSWORD = "a good password"


@pytest.fixture
def operator(shared_server: RunningServer) -> Iterator[Conversation]:
    with Conversation("0.9.0", shared_server.address) as operator:
        operator.ask("connect", client="root")
        yield operator


def refusal(child: Conversation, what: str, **arguments: object) -> str:
    with pytest.raises(Refused) as caught:
        child.ask(what, **arguments)
    return caught.value.text


@pytest.mark.parametrize("release", RELEASES)
def test_a_user_may_do_what_was_granted_and_nothing_else(
    shared_server: RunningServer, operator: Conversation, release: str
) -> None:
    user = f"limited-{release}"
    place = {"stream": f"limited-{release}", "topic": "topic"}
    operator.ask("create", client="root", partitions=1, **place)
    operator.ask("create_user", client="root", user=user, password=PASSWORD)
    with Conversation(release, shared_server.address) as child:
        child.ask("login", client="own", user=user, password=PASSWORD)
        assert "Unauthorized" in refusal(child, "send", client="own", payloads=["no"], **place)
        assert "Unauthorized" in refusal(child, "poll", client="own", **place)
        assert "Unauthorized" in refusal(child, "create", client="own", partitions=1, stream="new", topic="new")

        # 0.9 looks for the topic before it sends, to know its partitions.
        for flags, may_send, may_poll in (
            (["read_topics"], False, True),
            (["read_topics", "send_messages"], True, True),
            ([], False, False),
        ):
            operator.ask("grant", client="root", user=user, stream=place["stream"], flags=flags)
            if may_send:
                child.ask("send", client="own", payloads=["yes"], **place)
            else:
                assert "Unauthorized" in refusal(child, "send", client="own", payloads=["no"], **place)
            if may_poll:
                found = child.ask("poll", client="own", **place)
                assert [payload for _, payload, _ in found] == ["yes"] * may_send
            else:
                assert "Unauthorized" in refusal(child, "poll", client="own", **place)


@pytest.mark.parametrize("release", RELEASES)
def test_an_inactive_user_is_not_let_in(shared_server: RunningServer, operator: Conversation, release: str) -> None:
    user = f"sleeping-{release}"
    operator.ask("create_user", client="root", user=user, password=PASSWORD)
    operator.ask("set_status", client="root", user=user, is_active=False)
    with Conversation(release, shared_server.address) as child:
        # From 0.9 on, the protocol has one answer for every login that fails.
        expected = "UserInactive" if release < "0.9" else "Invalid credentials"
        assert expected in refusal(child, "login", client="own", user=user, password=PASSWORD)
        operator.ask("set_status", client="root", user=user, is_active=True)
        child.ask("login", client="own", user=user, password=PASSWORD)
