"""The keys of stored messages: compression, encryption, deduplication."""

from courser.configuration.key import Key
from courser.model.quantities import SECOND
from courser.model.topic_options import COMPRESSIONS
from courser.server.configuration import kinds

COMPRESSION = Key(
    path="system.compression.default_algorithm",
    kind=kinds.choice(*COMPRESSIONS),
    default="none",
    description="compression of stored messages in topics that name no algorithm; all but none and gzip need the extra "
    "`compression`",
)
ENCRYPTION_ENABLED = Key(
    path="system.encryption.enabled",
    kind=kinds.BOOL,
    default=False,
    description="whether to encrypt new messages on disk (AES-256-GCM)",
)
ENCRYPTION_KEY = Key(
    path="system.encryption.key",
    kind=kinds.SECRET,
    default="",
    description="the key that encrypts new messages: 32 random bytes in base64",
    is_secret=True,
)
OLD_ENCRYPTION_KEYS: Key[tuple[str, ...]] = Key(
    path="system.encryption.old_keys",
    kind=kinds.WORDS,
    default=(),
    description="earlier keys, which still decrypt older messages",
    is_secret=True,
)

# --- deduplication ------------------------------------------------------------------------------------

DEDUPLICATION_ENABLED = Key(
    path="system.message_deduplication.enabled",
    kind=kinds.BOOL,
    default=False,
    description="whether messages whose id was stored recently in the same partition are dropped",
)
DEDUPLICATION_COUNT = Key(
    path="system.message_deduplication.max_entries",
    kind=kinds.integer(1, 10_000_000),
    default=10_000,
    description="ids that a partition remembers, at 48 to 64 bytes each",
)
DEDUPLICATION_EXPIRY = Key(
    path="system.message_deduplication.expiry",
    kind=kinds.duration(SECOND),
    default=60 * SECOND,
    description="how long a partition remembers an id",
)
