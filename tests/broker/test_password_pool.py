"""Hashing in a pool: the loop goes on, few hashes at a time, equal questions answered once."""

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from courser.broker import password_pool
from courser.broker.credentials import Passwords
from courser.broker.password_pool import PasswordPool
from courser.errors import CommandRejected, ErrorCode
from tests.broker.accounts import QuickPasswords

HASH = "$argon2id$quick$secret"


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
    assert await pool.hash("secret") == HASH
    assert await pool.is_right("alice", "secret", HASH)
    assert not await pool.is_right("alice", "wrong", HASH)
    assert not await pool.is_right("alice", "secret", None)
    assert pool.is_outdated("$argon2id$old$secret")


@pytest.mark.parametrize("concurrency", [1, 3])
async def test_only_so_many_hashes_run_at_once(executor: ThreadPoolExecutor, concurrency: int) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor, concurrency=concurrency)
    logins = [asyncio.ensure_future(pool.is_right("alice", f"guess {number}", HASH)) for number in range(20)]
    for _ in range(concurrency):
        assert await asyncio.to_thread(passwords.started.acquire, timeout=30)
    passwords.go_on.set()
    assert await asyncio.gather(*logins) == [False] * 20
    assert passwords.running_count_max == concurrency


async def test_equal_questions_share_one_hash(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    logins = [asyncio.ensure_future(pool.is_right("alice", "secret", HASH)) for _ in range(1500)]
    await asyncio.sleep(0)
    passwords.go_on.set()
    assert all(await asyncio.gather(*logins))
    assert passwords.questions == [("secret", HASH)]
    assert await pool.is_right("alice", "secret", HASH)
    assert len(passwords.questions) == 2, "nothing is remembered once it is answered"


async def test_two_unknown_users_share_no_hash_as_two_known_ones_do_not(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    logins = [asyncio.ensure_future(pool.is_right(name, "guess", None)) for name in ("nobody", "nobody", "no one")]
    await asyncio.sleep(0)
    passwords.go_on.set()
    assert not any(await asyncio.gather(*logins))
    assert passwords.questions == [("guess", None), ("guess", None)]


async def test_who_asked_first_may_go_away(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    first, second = [asyncio.ensure_future(pool.is_right("alice", "secret", HASH)) for _ in range(2)]
    await asyncio.sleep(0)
    first.cancel()
    passwords.go_on.set()
    assert await second
    assert first.cancelled()
    assert len(passwords.questions) == 1


async def test_too_many_that_wait_are_refused(executor: ThreadPoolExecutor) -> None:
    passwords = HeldPasswords()
    pool = PasswordPool(passwords, executor)
    limit = password_pool._QUEUE_COUNT_MAX
    logins = [asyncio.ensure_future(pool.is_right("alice", f"guess {number}", HASH)) for number in range(limit + 5)]
    await asyncio.sleep(0)
    passwords.go_on.set()
    results = await asyncio.gather(*logins, return_exceptions=True)
    refused = [result for result in results if isinstance(result, CommandRejected)]
    assert {error.code for error in refused} == {ErrorCode.SERVER_BUSY}
    assert 1 <= len(refused) <= 5
    assert results.count(False) == len(results) - len(refused)


async def test_the_event_loop_goes_on_while_passwords_are_hashed(executor: ThreadPoolExecutor) -> None:
    pool = PasswordPool(Passwords(), executor)
    turn_count = 0
    login = asyncio.ensure_future(pool.hash("secret"))
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
            assert not await pool.is_right("alice", f"wrong {number}", password_hash)
            taken.append(time.process_time() - began)
    wrong, unknown = (statistics.median(taken) for taken in times.values())
    assert abs(wrong - unknown) < max(wrong, unknown) / 5
