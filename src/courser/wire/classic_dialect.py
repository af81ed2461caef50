"""Detect the release of a classic client. Frames do not contain it, so evidence is collected.

Two things differ: how ids are *numbered* (SDK 0.5 counts from 1, and some of its requests have other layouts), and how
long the *header* of a message is (56 bytes in 0.5 and 0.6, 64 since). For each there is an assumption with a strength.
Stronger evidence replaces weaker evidence, and newer evidence replaces older evidence of the same strength. Proof is
final: a frame that contradicts it is refused like any malformed frame. A wrong assumption would do harm unnoticed,
since an id that is off by one names another stream.

Go 0.8 and Rust 0.6 send the same login, but their headers differ. The SDKs of the Rust family, which includes Python,
send a ping as soon as they connect. Go sends its first one after 5 seconds. So without an early ping, a client that
begins to poll is taken for Go. A poll may overtake the ping, so the first one gets no messages: they could be garbled.
"""

from dataclasses import dataclass
from enum import IntEnum

from courser.records.classic import Dialect

_LONG_HEADER_SIZE = Dialect.SDK_0_8.header_size
_JAVA_BEFORE_0_7 = ("0.6.30", "java-sdk")
"""Version and context that Java 0.5 and 0.6 send."""
_GO_0_8_OR_RUST_0_6 = "0.8.0"
_UNIQUE_VERSIONS = frozenset({"0.9.0", "0.10.0"})
"""Versions that only one release sends."""
_EARLY = 4_000_000
"""Microseconds after the start of a connection in which a ping is early. Go pings every 5 seconds."""


class Strength(IntEnum):
    """The strength of evidence."""

    DEFAULT = 0
    """No evidence: the configured dialect of the listener, or the newest release."""
    GUESS = 1
    """A version string that several SDKs send: the most likely of them."""
    MEMORY = 2
    """What other connections of the user with the same login have proven."""
    SETTING = 3
    """The configured dialect of the user."""
    VERSION = 4
    """A version string or command that no other release sends."""
    PROOF = 5
    """A request that fits one layout only."""


@dataclass(frozen=True, slots=True)
class LoginFields:
    """What a client says about itself when it logs in. With a token it says nothing."""

    version: str = ""
    context: str = ""
    is_token: bool = False


@dataclass(frozen=True, slots=True)
class Proof:
    """What the requests of a connection have proven. None is unknown."""

    first_id: int | None = None
    has_long_header: bool | None = None


NO_PROOF = Proof()


class DialectEvidence:
    """What is known about the client of one connection."""

    __slots__ = (
        "_header",
        "_is_long",
        "_long_dialect",
        "_numbering",
        "_pings_early",
        "dialect",
        "first_id",
        "has_polled",
        "login",
        "reads_user_headers",
    )

    def __init__(self, default: Dialect | None = None) -> None:
        self.dialect = Dialect.SDK_0_8
        """The current assumption."""
        self.first_id = 0
        """The number of the first stream, topic, partition, group or user in this dialect."""
        self.reads_user_headers = True
        """Whether the client can read past a message with user headers. Java 0.5 and 0.6 cannot."""
        self.login = LoginFields(is_token=True)
        self._pings_early = False
        self.has_polled = False
        """Whether the client has sent a poll."""
        self._numbering = Strength.DEFAULT
        self._header = Strength.DEFAULT
        self._is_long = True
        self._long_dialect = Dialect.SDK_0_8
        """0.7 and 0.8 differ only in their name."""
        if default is not None:
            self._take(default, Strength.DEFAULT, Strength.DEFAULT)

    def copy(self) -> "DialectEvidence":
        """A copy to try on a request that may be malformed."""
        copy = DialectEvidence()
        copy.dialect, copy.first_id = self.dialect, self.first_id
        copy.reads_user_headers, copy.login = self.reads_user_headers, self.login
        copy._pings_early, copy.has_polled = self._pings_early, self.has_polled
        copy._numbering, copy._header = self._numbering, self._header
        copy._is_long, copy._long_dialect = self._is_long, self._long_dialect
        return copy

    @property
    def is_numbering_proven(self) -> bool:
        """Whether the numbering is proven, so that layouts of requests need no check."""
        return self._numbering is Strength.PROOF

    @property
    def is_header_proven(self) -> bool:
        """Whether the header is proven, so that messages need no check."""
        return self._header is Strength.PROOF or (self.is_numbering_proven and self.first_id == 1)

    @property
    def is_header_guessed(self) -> bool:
        """Whether nothing but a guess says how long the header is."""
        return self._header <= Strength.GUESS and self.first_id == 0

    def awaits_ping(self, age: int) -> bool:
        """Whether a ping could still change the guess, ``age`` microseconds after the connection began."""
        is_open = self.is_header_guessed and not self._pings_early and age < _EARLY
        return is_open and self.login.version == _GO_0_8_OR_RUST_0_6

    @property
    def proof(self) -> Proof:
        """What is proven, apart from what the version of the client says anyway."""
        if self.login.version in _UNIQUE_VERSIONS:
            return NO_PROOF
        first_id = self.first_id if self.is_numbering_proven else None
        return Proof(first_id, self._is_long if self._header is Strength.PROOF else None)

    # --- evidence -------------------------------------------------------------------------------------

    def note_setting(self, dialect: Dialect) -> None:
        """A dialect is configured for the clients of this user."""
        self._take(dialect, Strength.SETTING, Strength.SETTING)

    def note_memory(self, proof: Proof) -> None:
        """Other connections of this user with the same login have proven this."""
        if proof.first_id is not None:
            self._number(proof.first_id, Strength.MEMORY)
        if proof.has_long_header is not None:
            self._measure(is_long=proof.has_long_header, strength=Strength.MEMORY)

    def note_ping(self, age: int) -> None:
        """The client sent a ping on a connection that is ``age`` microseconds old."""
        if age < _EARLY:
            self._pings_early = True
            self._guess_header()

    def note_poll(self) -> None:
        """The client begins to poll."""
        self.has_polled = True
        self._guess_header()

    def note_version(self, version: str, context: str) -> None:
        """The version that the client sends at login. SDKs of other languages reuse the numbers of the Rust SDK."""
        self.login = LoginFields(version, context)
        self.reads_user_headers = (version, context) != _JAVA_BEFORE_0_7
        match version, context:
            case "0.10.0", _:
                self._take(Dialect.SDK_0_8, Strength.VERSION, Strength.VERSION)
            case "0.9.0", _:
                self._take(Dialect.SDK_0_7, Strength.VERSION, Strength.VERSION)
            case said, _ if (
                said == _GO_0_8_OR_RUST_0_6
            ):  # Rust and Python 0.6, but also Go 0.8, which has the long header.
                self._number(0, Strength.VERSION)
                self._guess_header()
            case "0.7.0", _:  # Rust and Python 0.5, but also Go 0.7, which has the long header.
                self._take(Dialect.SDK_0_5, Strength.GUESS, Strength.GUESS)
                self._measure(is_long=True, strength=Strength.GUESS)
            case "0.5.0", "csharp-sdk":  # 0.6 or 0.7.
                self._take(Dialect.SDK_0_7, Strength.VERSION, Strength.GUESS)
            case said if said == _JAVA_BEFORE_0_7:
                self._take(Dialect.SDK_0_6, Strength.GUESS, Strength.VERSION)

    def note_cluster_metadata(self) -> None:
        """The client requested the nodes of the cluster: SDK 0.5 does not have this command."""
        self._number(0, Strength.VERSION)

    def note_create(self, *, fits_from_one: bool, fits_from_zero: bool) -> None:
        """Which layouts fit a request that creates something: with a leading id, or without."""
        if fits_from_one != fits_from_zero:
            self._number(1 if fits_from_one else 0, Strength.PROOF)

    def note_tail(self, size: int, *, from_one: int) -> None:
        """Bytes after the identifiers of a poll or an offset command: ``from_one`` in SDK 0.5, one more in others.

        A request of another SDK that lost its last byte looks like one of 0.5. So this does not overrule a command or
        version that only another SDK sends.
        """
        if size == from_one + 1:
            self._number(0, Strength.PROOF)
        elif size == from_one and (self.first_id == 1 or self._numbering < Strength.VERSION):
            self._number(1, Strength.PROOF)

    def note_header(self, size: int) -> None:
        """The size of the header of a message that the client sent.

        A message with the long header whose lengths are eight too large looks like one with the short header. So this
        does not overrule a version string that only SDKs with the long header send.
        """
        if self.is_header_proven:
            return
        if size == _LONG_HEADER_SIZE:
            self._number(0, Strength.PROOF)
            self._measure(is_long=True, strength=Strength.PROOF)
        elif self.first_id == 1 or not (self._is_long and self._header is Strength.VERSION):
            self._measure(is_long=False, strength=Strength.PROOF)

    def _guess_header(self) -> None:
        """Tell Go 0.8 from Rust and Python 0.6, if the client is one of them."""
        if self.login.version == _GO_0_8_OR_RUST_0_6:
            self._measure(is_long=self.has_polled and not self._pings_early, strength=Strength.GUESS)

    # --- assumptions ----------------------------------------------------------------------------------

    def _take(self, dialect: Dialect, numbering: Strength, header: Strength) -> None:
        """Assume a dialect, with the strength of the evidence."""
        if dialect is Dialect.SDK_0_5:
            # 0.5 implies the short header. If it turns out not to be 0.5, the header is unknown again.
            self._number(1, numbering)
            return
        self._number(0, numbering)
        if dialect.has_long_header:
            self._long_dialect = dialect
        self._measure(is_long=dialect.has_long_header, strength=header)

    def _number(self, first_id: int, strength: Strength) -> None:
        if strength >= self._numbering and not self.is_numbering_proven:
            self.first_id, self._numbering = first_id, strength
            self._conclude()

    def _measure(self, *, is_long: bool, strength: Strength) -> None:
        if strength >= self._header and self._header is not Strength.PROOF:
            self._is_long, self._header = is_long, strength
            self._conclude()

    def _conclude(self) -> None:
        if self.first_id == 1:
            self.dialect = Dialect.SDK_0_5
        else:
            self.dialect = self._long_dialect if self._is_long else Dialect.SDK_0_6
