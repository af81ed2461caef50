"""What tests of logins share: a catalog in memory, passwords that are quick to hash, a sleep that only takes notes."""

from concurrent.futures import ThreadPoolExecutor
from itertools import count

from courser.broker.access.authentication import Authentication
from courser.broker.access.credentials import Passwords
from courser.broker.access.password_pool import PasswordPool
from courser.broker.access.sessions import Session, Sessions
from courser.broker.access.tokens import Tokens
from courser.broker.groups.groups import ConsumerGroups
from courser.catalog import changes as c
from courser.catalog.entities import User
from courser.catalog.state import CatalogState
from courser.catalog.transitions import Created, apply
from courser.errors import CommandRejected, CourserError
from courser.model.messaging import Transport
from courser.model.permissions import Permissions
from tests.fakes.clocks import ManualClock

ADDRESS = "10.1.2.3:4567"


class QuickPasswords(Passwords):
    """Hashes that can be read: for tests that are not about hashing."""

    def __init__(self) -> None:
        self.questions: list[tuple[str, str | None]] = []

    def hash(self, password: str) -> str:
        return f"$argon2id$quick${password}"

    def is_right(self, password: str, password_hash: str | None) -> bool:
        self.questions.append((password, password_hash))
        return password_hash is not None and password_hash.rpartition("$")[2] == password

    def is_outdated(self, password_hash: str) -> bool:
        return password_hash.startswith("$argon2id$old$")


class CatalogInMemory:
    """Applies commands on the spot."""

    def __init__(self) -> None:
        self.state = CatalogState()
        self.submitted: list[c.AnyChange] = []
        self.failure: CourserError | None = None

    async def submit(self, command: c.AnyChange) -> Created:
        if self.failure is not None:
            raise self.failure
        self.submitted.append(command)
        created = apply(self.state, command, len(self.submitted), timestamp=len(self.submitted))
        if isinstance(created, CommandRejected):
            raise created
        return created


class Accounts:
    """Logins of one server, without a disk. User 0 is root; its password is ``secret``, as everybody's."""

    def __init__(self, pool: ThreadPoolExecutor, *, token_count_max: int = 100) -> None:
        self.clock = ManualClock()
        self.catalog = CatalogInMemory()
        self.groups = ConsumerGroups(lambda _stream_id, _topic_id: 2, self.clock)
        self.sessions = Sessions(self.clock, self.groups)
        self.tokens = Tokens(self.catalog, self.sessions, self.clock, count_max=token_count_max)
        self.passwords = QuickPasswords()
        self.slept: list[float] = []
        self.authentication = Authentication(
            self.catalog,
            self.sessions,
            self.groups,
            self.tokens,
            PasswordPool(self.passwords, pool),
            self.clock,
            number_login=count(1).__next__,
            sleep=self._sleep,
        )

    async def _sleep(self, seconds: float) -> None:
        self.slept.append(seconds)

    async def add_user(
        self, name: str, *, password: str = "secret", is_active: bool = True, permissions: Permissions | None = None
    ) -> User:
        password_hash = self.passwords.hash(password)
        user = await self.catalog.submit(c.UserCreation(name, password_hash, is_active, permissions))
        assert isinstance(user, User)
        return user

    def connect(self, address: str = ADDRESS) -> Session:
        return self.sessions.open(Transport.TCP, address)

    async def logged_in(self, name: str) -> Session:
        session = self.connect()
        await self.authentication.login(session, name, "secret")
        return session
