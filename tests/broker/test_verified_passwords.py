"""A right password is hashed once in ten minutes; a wrong one every time."""

import pytest

from courser.broker.access.verified_passwords import ENTRY_COUNT_MAX, LIFETIME, VerifiedPasswords
from tests.fakes.clocks import ManualClock

PASSWORD, STORED, ANOTHER = "correct horse", "$argon2id$one", "$argon2id$two"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def verified(clock: ManualClock) -> VerifiedPasswords:
    return VerifiedPasswords(clock)


def test_what_passed_a_full_check_is_known(verified: VerifiedPasswords) -> None:
    assert not verified.has(PASSWORD, STORED)
    verified.note(PASSWORD, STORED)
    assert verified.has(PASSWORD, STORED)


def test_only_right_passwords_are_remembered(verified: VerifiedPasswords) -> None:
    verified.note(PASSWORD, STORED)
    for wrong in ("", PASSWORD + " ", PASSWORD.upper(), "\ud800"):
        assert not verified.has(wrong, STORED)
    assert not verified.has(PASSWORD, None)


def test_a_changed_password_is_forgotten(verified: VerifiedPasswords) -> None:
    verified.note(PASSWORD, STORED)
    assert not verified.has(PASSWORD, ANOTHER)


def test_it_is_checked_in_full_again_after_its_lifetime(verified: VerifiedPasswords, clock: ManualClock) -> None:
    verified.note(PASSWORD, STORED)
    clock.advance(LIFETIME - 1)
    assert verified.has(PASSWORD, STORED)
    clock.advance(1)
    assert not verified.has(PASSWORD, STORED)
    assert len(verified) == 0


def test_using_it_does_not_prolong_its_life(verified: VerifiedPasswords, clock: ManualClock) -> None:
    verified.note(PASSWORD, STORED)
    for _ in range(2):
        clock.advance(LIFETIME // 2)
        verified.has(PASSWORD, STORED)
    assert not verified.has(PASSWORD, STORED)


def test_the_oldest_entry_makes_room(verified: VerifiedPasswords) -> None:
    for number in range(ENTRY_COUNT_MAX + 1):
        verified.note(PASSWORD, f"{STORED} {number}")
    assert len(verified) == ENTRY_COUNT_MAX
    assert not verified.has(PASSWORD, f"{STORED} 0")
    assert verified.has(PASSWORD, f"{STORED} {ENTRY_COUNT_MAX}")


def test_any_text_can_be_remembered(verified: VerifiedPasswords) -> None:
    verified.note("\ud800", STORED)
    assert verified.has("\ud800", STORED)


def test_digests_of_two_servers_differ(clock: ManualClock) -> None:
    first, second = VerifiedPasswords(clock), VerifiedPasswords(clock)
    assert first._digest(PASSWORD, STORED) != second._digest(PASSWORD, STORED)
