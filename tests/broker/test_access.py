"""Access control: deny by default, root may do everything, the state of the moment counts."""

import pytest

from courser.broker.access.access import RULES, AccessControl
from courser.broker.access.sessions import Session
from courser.catalog.entities import User
from courser.catalog.state import CatalogState
from courser.errors import CommandRejected, ErrorCode
from courser.model.messaging import Transport
from courser.model.permissions import (
    ALL_PERMISSIONS,
    Action,
    GlobalPermissions,
    Permissions,
    StreamPermissions,
    TopicPermissions,
)


@pytest.fixture
def state() -> CatalogState:
    state = CatalogState()
    state.users = {
        0: User(0, "root", "", True, 0, None, {}),
        1: User(1, "alice", "", True, 0, None, {}),
    }
    return state


@pytest.fixture
def access(state: CatalogState) -> AccessControl:
    return AccessControl(state)


def logged_in(user_id: int | None) -> Session:
    session = Session(1, Transport.TCP, "127.0.0.1:1", now=0)
    session.user_id = user_id
    return session


def refusal(access: AccessControl, session: Session, action: Action, *ids: int) -> ErrorCode:
    with pytest.raises(CommandRejected) as refused:
        access.require(session, action, *ids)
    return refused.value.code


def test_every_action_has_a_rule() -> None:
    assert set(RULES) == set(Action)


@pytest.mark.parametrize("action", Action)
def test_root_may_do_everything_whatever_is_stored(access: AccessControl, action: Action) -> None:
    access.require(logged_in(0), action, 5, 5)


@pytest.mark.parametrize("action", Action)
def test_without_permissions_nothing_is_allowed(access: AccessControl, state: CatalogState, action: Action) -> None:
    for held in (None, Permissions()):
        state.users[1].permissions = held
        assert refusal(access, logged_in(1), action, 0, 0) is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize("action", Action)
def test_nobody_is_unauthenticated_and_the_inactive_are_told_so(
    access: AccessControl, state: CatalogState, action: Action
) -> None:
    assert refusal(access, logged_in(None), action) is ErrorCode.UNAUTHENTICATED
    assert refusal(access, logged_in(99), action) is ErrorCode.UNAUTHENTICATED
    state.users[1].permissions = ALL_PERMISSIONS
    access.require(logged_in(1), action, 0, 0)
    state.users[1].is_active = False
    assert refusal(access, logged_in(1), action, 0, 0) is ErrorCode.USER_INACTIVE


def test_changes_act_on_the_next_question(access: AccessControl, state: CatalogState) -> None:
    session = logged_in(1)
    assert refusal(access, session, Action.POLL_MESSAGES, 3, 4) is ErrorCode.UNAUTHORIZED
    topic = TopicPermissions(poll_messages=True)
    state.users[1].permissions = Permissions(GlobalPermissions(), {3: StreamPermissions(topics={4: topic})})
    access.require(session, Action.POLL_MESSAGES, 3, 4)
    assert refusal(access, session, Action.POLL_MESSAGES, 3, 5) is ErrorCode.UNAUTHORIZED
    assert refusal(access, session, Action.POLL_MESSAGES, 4, 4) is ErrorCode.UNAUTHORIZED
    assert refusal(access, session, Action.SEND_MESSAGES, 3, 4) is ErrorCode.UNAUTHORIZED
    del state.users[1]
    assert refusal(access, session, Action.POLL_MESSAGES, 3, 4) is ErrorCode.UNAUTHENTICATED


def test_a_permission_for_a_stream_says_nothing_about_lists_and_new_streams(
    access: AccessControl, state: CatalogState
) -> None:
    everything = StreamPermissions(True, True, True, True, True, True)
    state.users[1].permissions = Permissions(GlobalPermissions(), {0: everything})
    for action in (Action.LIST_STREAMS, Action.CREATE_STREAM, Action.READ_USERS, Action.READ_SERVER):
        assert refusal(access, logged_in(1), action) is ErrorCode.UNAUTHORIZED


@pytest.mark.parametrize("action", Action)
def test_every_refusal_says_what_is_refused_in_words(access: AccessControl, action: Action) -> None:
    with pytest.raises(CommandRejected, match="user 'alice' lacks the permission to ") as refused:
        access.require(logged_in(1), action, 0, 0)
    if action in (Action.GET_STREAM, Action.READ_SERVER):
        assert " to view " in str(refused.value)


def test_the_reason_names_user_and_action(access: AccessControl) -> None:
    with pytest.raises(CommandRejected, match="user 'alice' lacks the permission to send messages"):
        access.require(logged_in(1), Action.SEND_MESSAGES, 0, 0)
