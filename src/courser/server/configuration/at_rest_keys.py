"""The keys of stored messages: compression and encryption."""

from courser.model.topic_options import COMPRESSIONS
from courser.server.configuration import kinds
from courser.server.configuration.key import Key

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
