"""What values must not be together, and what is worth a warning. The grammars have checked each value alone."""

from collections.abc import Iterator

from courser.errors import ConfigurationRefused
from courser.server.configuration import keys
from courser.server.configuration.key import Key, Status
from courser.server.configuration.loading import Configuration

_LOOPBACK = ("127.", "::1", "localhost")

_INTERVALS = (
    (keys.CLEANER_ENABLED, keys.CLEANER_INTERVAL),
    (keys.TOKEN_CLEANER_ENABLED, keys.TOKEN_CLEANER_INTERVAL),
    (keys.HEARTBEAT_ENABLED, keys.HEARTBEAT_INTERVAL),
)


def check(configuration: Configuration) -> None:
    """Refuse what cannot hold.

    Raises:
        ConfigurationRefused: with every reason.
    """
    problems = [*_not_built(configuration), *_contradictions(configuration)]
    if problems:
        raise ConfigurationRefused(problems)


def _not_built(configuration: Configuration) -> Iterator[str]:
    for key in configuration.index.keys:
        if key.status is Status.REFUSED and configuration[key] != key.default:
            yield (
                f"{configuration.where(key)} switches on {key.description}, which is not built yet: set it to "
                f"{key.show(key.default)}, or wait for a release that has it"
            )


def _contradictions(configuration: Configuration) -> Iterator[str]:
    for enabled, interval in _INTERVALS:
        if configuration[enabled] and not configuration[interval]:
            yield (
                f"{configuration.where(interval)} is zero: give a duration such as "
                f"{_shown(interval)}, or set {enabled.path} = false"
            )
    file_size, total_size = configuration[keys.LOG_FILE_SIZE_MAX], configuration[keys.LOG_TOTAL_SIZE_MAX]
    if total_size and not file_size <= total_size:
        yield (
            f"{configuration.where(keys.LOG_FILE_SIZE_MAX)} is larger than "
            f"{configuration.where(keys.LOG_TOTAL_SIZE_MAX)}: a log file must fit into the size of all"
        )
    if not configuration[keys.TCP_ENABLED]:
        yield f"{configuration.where(keys.TCP_ENABLED)} is false, and nothing else listens: set it to true"
    yield from _tls_contradictions(configuration)


def _tls_contradictions(configuration: Configuration) -> Iterator[str]:
    if not configuration[keys.TLS_ENABLED] or configuration[keys.TLS_SELF_SIGNED]:
        return
    for key in (keys.TLS_CERT_FILE, keys.TLS_KEY_FILE):
        if configuration[key] is None:
            yield f"{key.path} is not set: TLS is on and tcp.tls.self_signed is false, so it needs {key.kind.expected}"


def _shown(key: Key[int]) -> str:
    return key.show(key.default)


def warnings(configuration: Configuration) -> Iterator[str]:
    """What is allowed, and perhaps not what was meant."""
    if not configuration[keys.CLEANER_ENABLED]:
        # Also without limits of the server: topics have their own, and stock files of Iggy say so without being asked.
        yield (
            f"{configuration.where(keys.CLEANER_ENABLED)} is false: neither message_expiry nor max_size is enforced, "
            "the server's as little as those of topics"
        )
    if configuration[keys.SAVER_ENFORCE_FSYNC] and not configuration[keys.SAVER_ENABLED]:
        yield f"{configuration.where(keys.SAVER_ENFORCE_FSYNC)} has no effect: the message saver is switched off"
    if configuration[keys.LOG_FILE_ENABLED] and not configuration[keys.LOG_FILE_SIZE_MAX]:
        # Only closed files are ever deleted.
        yield f"{configuration.where(keys.LOG_FILE_SIZE_MAX)} is 0: one log file grows for ever, past max_total_size"
    host = configuration[keys.TCP_ADDRESS].host
    if not host.startswith(_LOOPBACK) and not configuration[keys.TLS_ENABLED]:
        yield f"tcp.address {host} can be reached from other machines, and passwords travel unencrypted: set tcp.tls"
