"""Hashing in a pool: the loop goes on, few hashes at a time, equal questions answered once."""

import asyncio
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from courser.broker.access import login_queue
from courser.broker.access.credentials import Passwords
from courser.broker.access.login_queue import Asker
from courser.broker.access.password_pool import THREAD_COUNT, PasswordPool
from courser.errors import CommandRejected, ErrorCode
from tests.broker.accounts import QuickPasswords

HASH = "$argon2id$quick$secret"


def asker(name: str, address: str = "10.1.2.3", *, has_failed: bool = False, is_known: bool = False) -> Asker:
    return Asker(address=address, name=name, has_failed=has_failed, is_known=is_known)


ALICE = asker("alice")


class HeldPasswords(QuickPasswords):
    """Hashes that take until the test lets them go on."""

    def __init__(self) -> None:
        super().__init__()
        self.started = threading.Semaphore(0)
        self.go_on = threading.Event()
        self.running_count = 0
        self.running_count_max = 0
        self._lock = threading.Lock()

    def is_right(self, password: str, password_hash: str | None) -> bool:
        with self._lock:
            self.running_count += 1
            self.running_count_max = max(self.running_count_max, self.running_count)
        self.started.release()
        assert self.go_on.wait(30)
        with self._lock:
            self.running_count -= 1
        return super().is_right(password, password_hash)


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


async def test_it_answers_as_the_passwords_themselves(executor: ThreadPoolExecutor) -> None:
    pool = PasswordPool(QuickPasswords(), executor)
    assert await pool.hash(ALICE, "secret") == HASH
    assert await pool.is_right(ALICE, "secret", HASH)
    assert not await pool.is_right(ALICE, "wrong", HASH)
    assert not await pool.is_right(ALICE, "secret", None)
    assert pool.is_outdated("$argon2id$old$secret")


async def test_one_hash_at_a_time_runs_in_each_of_the_two_lanes(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    guesses = [
        pool.is_right(asker(f"user {number}", is_known=number % 2 == 0), f"guess {number}", HASH)
        for number in range(20)
    ]
    logins = [asyncio.ensure_future(guess) for guess in guesses]
    for _ in range(THREAD_COUNT):
        assert await asyncio.to_thread(passwords.started.acquire, timeout=30)
    passwords.go_on.set()
    assert await asyncio.gather(*logins) == [False] * 20
    assert passwords.running_count_max == THREAD_COUNT
    assert not len(pool)


async def test_equal_questions_share_one_hash(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    logins = [asyncio.ensure_future(pool.is_right(ALICE, "secret", HASH)) for _ in range(1500)]
    await asyncio.sleep(0)
    passwords.go_on.set()
    assert all(await asyncio.gather(*logins))
    assert passwords.questions == [("secret", HASH)]
    assert await pool.is_right(ALICE, "secret", HASH)
    assert len(passwords.questions) == 2, "nothing is remembered once it is answered"


async def test_two_unknown_users_share_no_hash_as_two_known_ones_do_not(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    logins = [
        asyncio.ensure_future(pool.is_right(asker(name), "guess", None)) for name in ("nobody", "nobody", "no one")
    ]
    await asyncio.sleep(0)
    passwords.go_on.set()
    assert not any(await asyncio.gather(*logins))
    assert passwords.questions == [("guess", None), ("guess", None)]


async def test_who_asked_first_may_go_away(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    first, second = [asyncio.ensure_future(pool.is_right(ALICE, "secret", HASH)) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    passwords.go_on.set()
    assert await second
    assert first.cancelled()
    assert len(passwords.questions) == 1


async def test_too_many_that_wait_are_refused(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    limit = login_queue.PAIR_COUNT_MAX
    logins = [asyncio.ensure_future(pool.is_right(ALICE, f"guess {number}", HASH)) for number in range(limit + 6)]
    await asyncio.sleep(0)
    passwords.go_on.set()
    results = await asyncio.gather(*logins, return_exceptions=True)
    refused = [result for result in results if isinstance(result, CommandRejected)]
    assert {error.code for error in refused} == {ErrorCode.SERVER_BUSY}
    assert len(refused) == 5, "one is under way, as many as may wait do"
    assert results.count(False) == len(results) - len(refused)
    assert not len(pool)


async def test_a_login_whose_client_is_gone_costs_no_hash(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    first = asyncio.ensure_future(pool.is_right(ALICE, "first", HASH))
    gone = Asker(address="10.1.2.3", name="bob", is_there=lambda: False)
    second = asyncio.ensure_future(pool.is_right(gone, "second", HASH))
    await asyncio.sleep(0)
    passwords.go_on.set()
    assert not await first
    with pytest.raises(CommandRejected) as refused:
        await second
    assert refused.value.code is ErrorCode.DISCONNECTED
    assert passwords.questions == [("first", HASH)]


# --- the two lanes ---


class Steps(Executor):
    """Hashes that end when the test says so, one at a time, oldest first."""

    def __init__(self) -> None:
        self._waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.done_count = 0

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._waiting.append((future, partial(fn, *args, **kwargs)))
        return future

    async def step(self) -> bool:
        """End one hash, and let everybody know. False if there is none."""
        if not self._waiting:
            return False
        future, work = self._waiting.popleft()
        future.set_result(work())
        self.done_count += 1
        for _ in range(8):
            await asyncio.sleep(0)
        return True

    async def until(self, *logins: "asyncio.Future[bool]") -> int:
        """End hashes until these are answered. Return how many it took."""
        before = self.done_count
        while not all(login.done() for login in logins):
            assert await self.step()
        return self.done_count - before


@pytest.fixture
def steps() -> Steps:
    return Steps()


def flood(pool: PasswordPool, count: int, name: str | None, address: str | None) -> list["asyncio.Future[bool]"]:
    """Wrong guesses from as many connections, each with a password of its own."""
    return [
        asyncio.ensure_future(
            pool.is_right(
                asker(name or f"user-{number}", address or f"198.51.{number // 250}.{number % 250}"), f"{number}", HASH
            )
        )
        for number in range(count)
    ]


async def settle(logins: Sequence["asyncio.Future[bool]"], steps: Steps) -> None:
    while await steps.step():
        pass
    await asyncio.gather(*logins, return_exceptions=True)


@pytest.mark.parametrize("count", [1000, 3000])
@pytest.mark.parametrize(
    ("name", "address", "hash_count_max"),
    [
        ("root", "198.51.100.1", 1 + 3 * 2),
        (None, "198.51.100.1", 1 + 3 * 2),
        ("root", None, 1 + 3 * 2),
        ("root", ALICE.address, 1 + 3 * 2),
    ],
)
async def test_a_correct_login_waits_for_few_hashes_during_a_flood(
    steps: Steps, count: int, name: str | None, address: str | None, hash_count_max: int
) -> None:
    pool = PasswordPool(QuickPasswords(), steps)
    guesses = flood(pool, count, name, address)
    await asyncio.sleep(0)
    login = asyncio.ensure_future(pool.is_right(ALICE, "secret", HASH))
    await asyncio.sleep(0)
    assert await steps.until(login) <= hash_count_max
    assert login.result()
    await settle(guesses, steps)
    assert not len(pool)


@pytest.mark.parametrize("count", [1000, 3000])
@pytest.mark.parametrize("address", [None, ALICE.address])
async def test_a_known_user_waits_for_no_stranger(steps: Steps, count: int, address: str | None) -> None:
    """Also if every stranger has a name of its own, and the address of the user: there is a lane without them."""
    pool = PasswordPool(QuickPasswords(), steps)
    guesses = flood(pool, count, None, address)
    await asyncio.sleep(0)
    login = asyncio.ensure_future(pool.is_right(asker("alice", is_known=True), "secret", HASH))
    await asyncio.sleep(0)
    assert await steps.until(login) <= 2, "its own, and the one that the other lane is at"
    assert login.result()
    await settle(guesses, steps)


async def test_a_known_user_gets_in_though_the_ordinary_lane_is_full_of_its_own_name(steps: Steps) -> None:
    pool = PasswordPool(QuickPasswords(), steps)
    later = [
        asyncio.ensure_future(pool.is_right(asker("alice", has_failed=True, is_known=True), f"guess {number}", HASH))
        for number in range(1000)
    ]
    await asyncio.sleep(0)
    login = asyncio.ensure_future(pool.is_right(asker("alice", is_known=True), "secret", HASH))
    await asyncio.sleep(0)
    assert await steps.until(login) <= 4
    assert login.result()
    await settle(later, steps)


@pytest.mark.parametrize("other_count", [0, 1, 5])
async def test_the_time_of_a_wrong_password_does_not_tell_known_users(steps: Steps, other_count: int) -> None:
    """The answer comes at the ordinary lane's turn, behind as many of its hashes as for anybody."""
    taken = []
    for is_known in (False, True):
        passwords = QuickPasswords()
        pool = PasswordPool(passwords, steps)
        others = [
            asyncio.ensure_future(pool.is_right(asker(f"user-{number}"), f"other {number}", HASH))
            for number in range(other_count)
        ]
        await asyncio.sleep(0)
        guess = asyncio.ensure_future(pool.is_right(asker("alice", is_known=is_known), "wrong", HASH))
        await asyncio.sleep(0)
        await steps.until(guess)
        assert guess.result() is False
        taken.append(sum(password.startswith("other") for password, _ in passwords.questions))
        await settle(others, steps)
    assert taken == [other_count, other_count]


async def test_a_refused_login_of_a_known_user_is_looked_at_and_a_wrong_one_is_told_the_server_is_busy(
    steps: Steps,
) -> None:
    pool = PasswordPool(QuickPasswords(), steps)
    guesses = flood(pool, login_queue.ADDRESS_COUNT_MAX + 1, None, ALICE.address)
    await asyncio.sleep(0)
    known, unknown = [
        asyncio.ensure_future(pool.is_right(asker(name, is_known=name == "alice"), "wrong", HASH))
        for name in ("alice", "bob")
    ]
    await steps.until(known)
    for error in await asyncio.gather(known, unknown, return_exceptions=True):
        assert isinstance(error, CommandRejected)
        assert error.code is ErrorCode.SERVER_BUSY
    await settle(guesses, steps)
    assert not len(pool)
    assert not pool._checks


async def test_one_answer_serves_all_addresses_that_asked(steps: Steps) -> None:
    passwords = QuickPasswords()
    pool = PasswordPool(passwords, steps)
    addresses = [f"10.0.0.{number}" for number in range(20)]
    logins = [asyncio.ensure_future(pool.is_right(asker("alice", address), "secret", HASH)) for address in addresses]
    await asyncio.sleep(0)
    assert await steps.until(*logins) == 1
    assert all(login.result() for login in logins)
    assert not len(pool)
    assert not pool._checks


async def test_new_passwords_are_hashed_beside_the_flood(steps: Steps) -> None:
    pool = PasswordPool(QuickPasswords(), steps)
    guesses = flood(pool, 1000, None, ALICE.address)
    await asyncio.sleep(0)
    new = asyncio.ensure_future(pool.hash(ALICE, "better"))
    await asyncio.sleep(0)
    assert await steps.until(new) <= 2  # type: ignore[arg-type]
    assert new.result() == "$argon2id$quick$better"
    await settle(guesses, steps)


async def test_a_hash_that_fails_fails_the_login_and_no_other(executor: ThreadPoolExecutor) -> None:
    class Failing(QuickPasswords):
        def is_right(self, password: str, password_hash: str | None) -> bool:
            if password == "fail":
                raise MemoryError
            return super().is_right(password, password_hash)

    pool = PasswordPool(Failing(), executor)
    results = await asyncio.gather(
        *(pool.is_right(ALICE, password, HASH) for password in ("fail", "secret")), return_exceptions=True
    )
    assert isinstance(results[0], MemoryError)
    assert results[1] is True


async def test_logins_that_wait_when_the_threads_end_are_told_so() -> None:
    executor = ThreadPoolExecutor(1)
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    logins = [asyncio.ensure_future(pool.is_right(asker(name), "secret", HASH)) for name in ("alice", "bob")]
    await asyncio.sleep(0)
    passwords.go_on.set()
    executor.shutdown()
    first, second = await asyncio.gather(*logins, return_exceptions=True)
    assert first is True
    assert isinstance(second, CommandRejected)
    assert second.code is ErrorCode.SERVER_BUSY


# --- real hashes ---


async def test_the_event_loop_goes_on_while_passwords_are_hashed(executor: ThreadPoolExecutor) -> None:
    pool = PasswordPool(Passwords(), executor)
    turn_count = 0
    login = asyncio.ensure_future(pool.hash(ALICE, "secret"))
    while not login.done():
        turn_count += 1
        await asyncio.sleep(0)
    assert turn_count > 100


async def test_unknown_users_and_wrong_passwords_take_the_same_time(executor: ThreadPoolExecutor) -> None:
    """Medians of real hashes, taken in turn, differ by less than a fifth: in time of the processor."""
    passwords = Passwords()
    pool = PasswordPool(passwords, executor)
    known = passwords.hash("secret")
    times: dict[str | None, list[float]] = {known: [], None: []}
    for number in range(24):
        for password_hash, taken in times.items():
            began = time.process_time()
            assert not await pool.is_right(ALICE, f"wrong {number}", password_hash)
            taken.append(time.process_time() - began)
    wrong, unknown = (statistics.median(taken) for taken in times.values())
    assert abs(wrong - unknown) < max(wrong, unknown) / 5
