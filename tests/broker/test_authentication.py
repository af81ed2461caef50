"""Logging in: by password and by token, the same answer for every wrong guess, slower after each."""

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from courser.broker.access.credentials import make_token
from courser.broker.access.sessions import Session
from courser.catalog import changes as c
from courser.errors import CommandRejected, DiskFull, ErrorCode
from tests.broker.accounts import Accounts

LATER = "10.1.2.3:9999"
ELSEWHERE = "10.9.9.9:1"
SIXTH_VERSION = "[2001:db8::1]:1234"


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as pool:
        yield pool


@pytest.fixture
async def accounts(pool: ThreadPoolExecutor) -> Accounts:
    accounts = Accounts(pool)
    await accounts.add_user("root")
    await accounts.add_user("alice")
    return accounts


async def refusal(accounts: Accounts, session: Session, name: str, password: str) -> ErrorCode:
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.login(session, name, password)
    return refused.value.code


# --- passwords ---


async def test_the_right_password_logs_in(accounts: Accounts) -> None:
    session = accounts.connect()
    reply = await accounts.authentication.login(session, "alice", "secret")
    assert (reply.user_id, session.user_id, session.token_name) == (1, 1, None)
    assert reply.session == session.session_number == 1


async def test_session_numbers_grow_with_every_login(accounts: Accounts) -> None:
    session, other = accounts.connect(), accounts.connect()
    numbers = [
        (await accounts.authentication.login(who, "root", "secret")).session for who in (session, other, session)
    ]
    assert numbers == [1, 2, 3]


async def test_a_wrong_password_and_an_unknown_user_get_one_answer_for_one_hash(accounts: Accounts) -> None:
    session = accounts.connect()
    errors = []
    for name in ("alice", "nobody"):
        with pytest.raises(CommandRejected) as refused:
            await accounts.authentication.login(session, name, "wrong")
        errors.append((refused.value.code, str(refused.value)))
    assert errors[0] == errors[1]
    assert errors[0][0] is ErrorCode.INVALID_CREDENTIALS
    assert [password for password, _ in accounts.passwords.questions] == ["wrong", "wrong"]
    assert session.user_id is None


async def test_a_failed_login_leaves_the_old_user(accounts: Accounts) -> None:
    session = await accounts.logged_in("alice")
    accounts.groups.join(session, (0, 0, 0))
    assert await refusal(accounts, session, "root", "wrong") is ErrorCode.INVALID_CREDENTIALS
    assert session.user_id == 1
    assert session.groups == {(0, 0, 0)}


async def test_a_second_login_replaces_the_user_and_leaves_its_groups(accounts: Accounts) -> None:
    session = await accounts.logged_in("alice")
    accounts.groups.join(session, (0, 0, 0))
    await accounts.authentication.login(session, "alice", "secret")
    assert session.groups == {(0, 0, 0)}, "the same user goes on"
    await accounts.authentication.login(session, "root", "secret")
    assert session.user_id == 0
    assert session.groups == set()


async def test_an_inactive_user_is_told_so_only_with_the_right_password(accounts: Accounts) -> None:
    await accounts.add_user("carol", is_active=False)
    session = accounts.connect()
    assert await refusal(accounts, session, "carol", "wrong") is ErrorCode.INVALID_CREDENTIALS
    assert await refusal(accounts, session, "carol", "secret") is ErrorCode.USER_INACTIVE
    assert session.user_id is None


@pytest.mark.parametrize(
    ("name", "password", "code"),
    [
        ("", "secret", ErrorCode.INVALID_USERNAME),
        ("ab", "secret", ErrorCode.INVALID_USERNAME),
        ("a" * 51, "secret", ErrorCode.INVALID_USERNAME),
        ("ü" * 26, "secret", ErrorCode.INVALID_USERNAME),
        ("alice", "", ErrorCode.INVALID_PASSWORD),
        ("alice", "ab", ErrorCode.INVALID_PASSWORD),
        ("alice", "a" * 101, ErrorCode.INVALID_PASSWORD),
        ("abc", "a" * 100, ErrorCode.INVALID_CREDENTIALS),
        ("a" * 50, "abc", ErrorCode.INVALID_CREDENTIALS),
    ],
)
async def test_sizes_that_nobody_can_have_are_refused_without_a_hash(
    accounts: Accounts, name: str, password: str, code: ErrorCode
) -> None:
    assert await refusal(accounts, accounts.connect(), name, password) is code
    assert len(accounts.passwords.questions) == (code is ErrorCode.INVALID_CREDENTIALS)


async def test_a_connection_that_closed_meanwhile_is_not_logged_in(accounts: Accounts) -> None:
    session = accounts.connect()
    login = asyncio.ensure_future(accounts.authentication.login(session, "alice", "secret"))
    await asyncio.sleep(0)
    accounts.sessions.close(session)
    with pytest.raises(CommandRejected) as refused:
        await login
    assert refused.value.code is ErrorCode.DISCONNECTED
    assert session.user_id is None


async def test_a_user_deleted_while_the_password_was_looked_at_is_not_logged_in(accounts: Accounts) -> None:
    session = accounts.connect()
    login = asyncio.ensure_future(accounts.authentication.login(session, "alice", "secret"))
    await asyncio.sleep(0)
    await accounts.catalog.submit(c.UserDeletion(1))
    with pytest.raises(CommandRejected) as refused:
        await login
    assert refused.value.code is ErrorCode.INVALID_CREDENTIALS


async def test_an_old_hash_is_made_anew_at_login(accounts: Accounts) -> None:
    await accounts.catalog.submit(c.PasswordChange(1, "$argon2id$old$secret"))
    other = await accounts.logged_in("root")
    session = await accounts.logged_in("alice")
    assert accounts.catalog.state.users[1].password_hash == "$argon2id$quick$secret"
    assert session.user_id == 1
    assert other.ended is None


async def test_a_hash_that_cannot_be_renewed_keeps_nobody_out(accounts: Accounts) -> None:
    await accounts.catalog.submit(c.PasswordChange(1, "$argon2id$old$secret"))
    accounts.catalog.failure = DiskFull("append", Path("journal.wal"))
    session = await accounts.logged_in("alice")
    assert session.user_id == 1
    assert accounts.catalog.state.users[1].password_hash == "$argon2id$old$secret"


# --- logging out ---


async def test_a_logout_leaves_the_groups_but_not_the_connection(accounts: Accounts) -> None:
    session = await accounts.logged_in("alice")
    accounts.groups.join(session, (0, 0, 0))
    accounts.authentication.logout(session)
    assert session.user_id is None
    assert session.groups == set()
    assert session.ended is None
    assert accounts.sessions.get(session.client_id) is session


# --- waiting ---


async def fail(accounts: Accounts, count: int, name: str = "alice", address: str = LATER) -> None:
    for _ in range(count):
        await refusal(accounts, accounts.connect(address), name, "wrong")


async def test_everybody_may_mistype_a_few_times(accounts: Accounts) -> None:
    await fail(accounts, 5)
    assert accounts.slept == []


async def test_guesses_at_a_name_get_slower_up_to_a_few_seconds(accounts: Accounts) -> None:
    for number in range(15):
        await fail(accounts, 1, address=f"10.0.0.{number}:1")
    assert accounts.slept == [0.25, 0.5, 1.0, 2.0, *[4.0] * 6]


async def test_unknown_names_get_slower_as_well(accounts: Accounts) -> None:
    for number in range(8):
        await fail(accounts, 1, name="nobody", address=f"10.0.0.{number}:1")
    assert accounts.slept == [0.25, 0.5, 1.0]


async def test_the_right_password_waits_too_and_clears_the_name(accounts: Accounts) -> None:
    await fail(accounts, 7)
    accounts.slept.clear()
    await accounts.authentication.login(accounts.connect(ELSEWHERE), "alice", "secret")
    assert accounts.slept == [1.0]
    await accounts.authentication.login(accounts.connect(ELSEWHERE), "alice", "secret")
    assert accounts.slept == [1.0]


async def test_other_names_from_other_addresses_do_not_wait(accounts: Accounts) -> None:
    await fail(accounts, 30)
    accounts.slept.clear()
    await accounts.authentication.login(accounts.connect(ELSEWHERE), "root", "secret")
    assert accounts.slept == []


async def test_an_address_that_tries_many_names_gets_slower_whatever_its_ports(accounts: Accounts) -> None:
    for number in range(22):
        await fail(accounts, 1, name=f"user-{number}", address=f"10.1.2.3:{number}")
    assert accounts.slept == [0.25, 0.5]


async def test_a_good_account_does_not_free_an_address(accounts: Accounts) -> None:
    for number in range(21):
        await fail(accounts, 1, name=f"user-{number}")
        await accounts.authentication.login(accounts.connect(LATER), "alice", "secret")
    assert accounts.slept == [0.25]
    await fail(accounts, 1, name="root")
    assert accounts.slept == [0.25, 0.5]


async def test_a_user_at_a_known_address_does_not_wait_for_what_others_did(accounts: Accounts) -> None:
    await accounts.authentication.login(accounts.connect(LATER), "alice", "secret")
    await fail(accounts, 30, address=ELSEWHERE)
    await fail(accounts, 30, name="root", address=LATER)
    accounts.slept.clear()
    await accounts.authentication.login(accounts.connect(LATER), "alice", "secret")
    assert accounts.slept == []
    await fail(accounts, 1, name="carol", address=LATER)
    assert accounts.slept == [4.0], "other names at that address are slowed down as before"


async def test_guesses_at_a_user_from_its_own_address_get_slower_as_well(accounts: Accounts) -> None:
    await accounts.authentication.login(accounts.connect(LATER), "alice", "secret")
    await fail(accounts, 8)
    assert accounts.slept == [0.25, 0.5, 1.0]
    await accounts.authentication.login(accounts.connect(LATER), "alice", "secret")
    assert accounts.slept == [0.25, 0.5, 1.0, 2.0]
    await fail(accounts, 1)
    assert accounts.slept == [0.25, 0.5, 1.0, 2.0], "the right password starts afresh"


async def test_addresses_of_one_network_are_one_address(accounts: Accounts) -> None:
    for number in range(22):
        await fail(accounts, 1, name=f"user-{number}", address=f"[2001:db8::{number:x}]:{number}")
    assert accounts.slept == [0.25, 0.5]


async def test_the_memory_of_known_addresses_is_bounded(accounts: Accounts) -> None:
    known = accounts.authentication._delays.known
    known.note("alice", "10.1.2.3")
    for number in range(1000):
        known.note("mallory", f"{number}")
    assert len(known) == 1 + 64
    assert known.has("alice", "10.1.2.3"), "nobody pushes out the addresses of others"
    for number in range(10_500):
        known.note(f"user-{number}", "10.1.2.3")
    assert len(known) == 10_000


async def test_a_login_that_finds_no_place_is_refused_after_a_second_and_counts_as_failed(
    accounts: Accounts, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: object) -> bool:
        raise CommandRejected(ErrorCode.SERVER_BUSY, "too many logins at once; try again later")

    monkeypatch.setattr(accounts.authentication._passwords, "is_right", refuse)
    session = accounts.connect()
    assert await refusal(accounts, session, "alice", "secret") is ErrorCode.SERVER_BUSY
    assert accounts.slept == [1.0]
    assert session.has_failed_login


async def test_a_connection_has_failed_until_it_gets_in(accounts: Accounts) -> None:
    session = accounts.connect()
    await refusal(accounts, session, "alice", "wrong")
    assert session.has_failed_login
    await accounts.authentication.login(session, "alice", "secret")
    assert not session.has_failed_login


async def test_failures_are_forgotten_after_a_while(accounts: Accounts) -> None:
    await fail(accounts, 10)
    accounts.clock.advance(300_000_001)
    accounts.slept.clear()
    await fail(accounts, 5)
    assert accounts.slept == []


async def test_the_memory_of_failures_is_bounded(accounts: Accounts) -> None:
    delays = accounts.authentication._delays
    for number in range(10_500):
        delays.failed(f"user-{number}", f"{number}:1")
    assert len(delays) == 20_000
    for _ in range(10_000):
        delays.failed("alice", SIXTH_VERSION)
    assert delays.owed("alice", ELSEWHERE) == 4_000_000


async def test_unknown_tokens_slow_down_their_address(accounts: Accounts) -> None:
    session = accounts.connect()
    for _ in range(22):
        with pytest.raises(CommandRejected):
            await accounts.authentication.login_with_token(session, make_token())
    assert accounts.slept == [0.25, 0.5]
    secret = await accounts.tokens.create(1, "laptop", 0)
    await accounts.authentication.login_with_token(session, secret)
    assert accounts.slept == [0.25, 0.5], "the right token waits for nothing"


# --- tokens ---


async def test_a_token_logs_its_owner_in(accounts: Accounts) -> None:
    secret = await accounts.tokens.create(1, "laptop", 0)
    session = accounts.connect()
    reply = await accounts.authentication.login_with_token(session, secret)
    assert (reply.user_id, session.user_id, session.token_name) == (1, 1, "laptop")
    assert not accounts.passwords.questions


async def test_an_unknown_token_is_refused(accounts: Accounts) -> None:
    session = await accounts.logged_in("alice")
    for token in ("", "unknown", "x" * 255, make_token()):
        with pytest.raises(CommandRejected) as refused:
            await accounts.authentication.login_with_token(session, token)
        assert refused.value.code is ErrorCode.INVALID_TOKEN
    assert session.user_id == 1


async def test_an_expired_token_is_refused(accounts: Accounts) -> None:
    secret = await accounts.tokens.create(1, "short", 1_000_000)
    session = accounts.connect()
    accounts.clock.advance(999_999)
    await accounts.authentication.login_with_token(session, secret)
    accounts.clock.advance(1)
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.login_with_token(session, secret)
    assert refused.value.code is ErrorCode.TOKEN_EXPIRED


async def test_a_clock_set_forward_ends_tokens_and_their_removal_outlasts_its_return(accounts: Accounts) -> None:
    hour, years = 3600 * 1_000_000, 10 * 365 * 86_400 * 1_000_000
    secret = await accounts.tokens.create(1, "laptop", hour)
    accounts.clock.jump(-hour)
    await accounts.authentication.login_with_token(accounts.connect(), secret)
    accounts.clock.jump(hour + years)
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.login_with_token(accounts.connect(), secret)
    assert refused.value.code is ErrorCode.TOKEN_EXPIRED
    assert await accounts.tokens.remove_expired() == 1
    accounts.clock.jump(-years)
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.login_with_token(accounts.connect(), secret)
    assert refused.value.code is ErrorCode.INVALID_TOKEN


async def test_the_token_of_an_inactive_user_is_refused(accounts: Accounts) -> None:
    secret = await accounts.tokens.create(1, "laptop", 0)
    await accounts.catalog.submit(c.UserUpdate(1, is_active=False))
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.login_with_token(accounts.connect(), secret)
    assert refused.value.code is ErrorCode.USER_INACTIVE


async def test_a_request_that_may_mean_a_token_is_taken_for_one_if_it_fits(accounts: Accounts) -> None:
    secret = await accounts.tokens.create(1, "laptop", 0)
    session = accounts.connect()
    await accounts.authentication.login(session, secret, "", secret)
    assert (session.user_id, session.token_name) == (1, "laptop")


async def test_a_request_that_may_mean_a_token_but_fits_none_is_a_password(accounts: Accounts) -> None:
    session = accounts.connect()
    await accounts.authentication.login(session, "alice", "secret", "alice")
    assert (session.user_id, session.token_name) == (1, None)
    for _ in range(25):
        await accounts.authentication.login(session, "alice", "secret", "alice")
    assert accounts.slept == [], "such a token is no failed login"


# --- changes that end sessions ---


async def test_a_changed_password_ends_the_other_sessions_that_used_it(accounts: Accounts) -> None:
    secret = await accounts.tokens.create(1, "laptop", 0)
    own, other, root = [await accounts.logged_in(name) for name in ("alice", "alice", "root")]
    by_token = accounts.connect()
    await accounts.authentication.login_with_token(by_token, secret)
    accounts.groups.join(other, (0, 0, 0))
    await accounts.authentication.change_password(own, 1, "secret", "better")
    assert [session.ended is None for session in (own, by_token, root, other)] == [True, True, True, False]
    assert other.ended is not None
    assert other.ended.code is ErrorCode.UNAUTHENTICATED
    assert accounts.groups.member_count((0, 0, 0)) == 0
    assert await refusal(accounts, accounts.connect(), "alice", "secret") is ErrorCode.INVALID_CREDENTIALS
    await accounts.authentication.login(accounts.connect(), "alice", "better")


async def test_a_password_is_changed_only_by_who_knows_it(accounts: Accounts) -> None:
    session, other = [await accounts.logged_in("alice") for _ in range(2)]
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.change_password(session, 1, "wrong", "better")
    assert refused.value.code is ErrorCode.INVALID_CREDENTIALS
    assert other.ended is None
    for current, new in (("secret", "ab"), ("ab", "secret"), ("secret", "a" * 101)):
        with pytest.raises(CommandRejected) as refused:
            await accounts.authentication.change_password(session, 1, current, new)
        assert refused.value.code is ErrorCode.INVALID_PASSWORD


async def test_of_two_changes_of_one_password_one_wins(accounts: Accounts) -> None:
    sessions = [await accounts.logged_in("alice") for _ in range(2)]
    changes = (
        accounts.authentication.change_password(session, 1, "secret", new)
        for session, new in zip(sessions, ("first", "second"), strict=True)
    )
    results = await asyncio.gather(*changes, return_exceptions=True)
    refused = [result for result in results if isinstance(result, CommandRejected)]
    assert [error.code for error in refused] == [ErrorCode.INVALID_CREDENTIALS]


async def test_a_deleted_token_ends_the_other_sessions_that_used_it(accounts: Accounts) -> None:
    secret = await accounts.tokens.create(1, "laptop", 0)
    unrelated = await accounts.tokens.create(1, "phone", 0)
    own, other, phone = accounts.connect(), accounts.connect(), accounts.connect()
    for session, token in ((own, secret), (other, secret), (phone, unrelated)):
        await accounts.authentication.login_with_token(session, token)
    by_password = await accounts.logged_in("alice")
    await accounts.tokens.delete(1, "laptop", by_client=own.client_id)
    assert [session.ended is None for session in (own, phone, by_password, other)] == [True, True, True, False]
    assert other.ended is not None
    assert other.ended.code is ErrorCode.UNAUTHENTICATED
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.login_with_token(accounts.connect(), secret)
    assert refused.value.code is ErrorCode.INVALID_TOKEN


async def test_a_deleted_user_has_no_sessions_and_no_tokens(accounts: Accounts) -> None:
    secret = await accounts.tokens.create(1, "laptop", 0)
    session, root = await accounts.logged_in("alice"), await accounts.logged_in("root")
    accounts.groups.join(session, (0, 0, 0))
    alice = accounts.catalog.state.users[1]
    await accounts.catalog.submit(c.UserDeletion(1))
    accounts.authentication.user_deleted(alice)
    assert session.ended is not None
    assert session.ended.code is ErrorCode.CLIENT_NOT_FOUND
    assert session.groups == set()
    assert root.ended is None
    with pytest.raises(CommandRejected) as refused:
        await accounts.authentication.login_with_token(accounts.connect(), secret)
    assert refused.value.code is ErrorCode.INVALID_TOKEN


# --- the tokens themselves ---


async def test_a_user_has_only_so_many_tokens(pool: ThreadPoolExecutor) -> None:
    accounts = Accounts(pool, token_count_max=2)
    await accounts.add_user("root")
    for name in ("one", "two"):
        await accounts.tokens.create(0, name, 0)
    with pytest.raises(CommandRejected) as refused:
        await accounts.tokens.create(0, "three", 0)
    assert refused.value.code is ErrorCode.TOO_MANY_TOKENS
    await accounts.tokens.delete(0, "one", by_client=0)
    await accounts.tokens.create(0, "three", 0)


async def test_a_token_name_is_used_once(accounts: Accounts) -> None:
    await accounts.tokens.create(0, "laptop", 0)
    await accounts.tokens.create(1, "laptop", 0)
    with pytest.raises(CommandRejected) as refused:
        await accounts.tokens.create(1, "laptop", 0)
    assert refused.value.code is ErrorCode.TOKEN_ALREADY_EXISTS


@pytest.mark.parametrize(
    ("expiry", "expires_in"), [(0, None), (2**64 - 1, None), (1, 1), (86_400_000_000, 86_400_000_000), (2**63, None)]
)
async def test_expiries_are_times_from_now(accounts: Accounts, expiry: int, expires_in: int | None) -> None:
    await accounts.tokens.create(1, "laptop", expiry)
    expected = 0 if expires_in is None else accounts.clock.now() + expires_in
    assert accounts.catalog.state.users[1].tokens["laptop"].expires_at == expected


async def test_expired_tokens_are_cleared_away_and_no_others(accounts: Accounts) -> None:
    await accounts.tokens.create(0, "short", 1)
    await accounts.tokens.create(0, "long", 1_000_000)
    await accounts.tokens.create(1, "eternal", 0)
    secret = await accounts.tokens.create(1, "used", 1)
    session = accounts.connect()
    await accounts.authentication.login_with_token(session, secret)
    accounts.clock.advance(1)
    assert await accounts.tokens.remove_expired() == 2
    assert [list(user.tokens) for user in accounts.catalog.state.users.values()] == [["long"], ["eternal"]]
    assert await accounts.tokens.remove_expired() == 0
    assert session.ended is None, "who is in, stays in"


async def test_tokens_of_the_last_run_are_known(accounts: Accounts, pool: ThreadPoolExecutor) -> None:
    secret = await accounts.tokens.create(1, "laptop", 0)
    restarted = type(accounts.tokens)(accounts.catalog, accounts.sessions, accounts.clock, count_max=100)
    user, token = restarted.find(secret)
    assert (user.user_id, token.name) == (1, "laptop")
