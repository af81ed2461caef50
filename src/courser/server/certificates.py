"""The certificate of a listener: loaded from files, or generated at start.

Imported only if TLS is enabled. The private key of a generated certificate is never written to disk.
"""

import ipaddress
import logging
import os
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from courser.errors import StartRefused
from courser.model.clock import Clock
from courser.server.configuration.settings import TlsSettings

_log = logging.getLogger(__name__)

_LIFE = timedelta(days=3650)
"""Validity of a generated certificate: longer than any server runs. Its key is lost when the process ends."""
_CLOCK_TOLERANCE = timedelta(days=1)
_EXPIRES_SOON = timedelta(days=14)
_READABLE_BY_OTHERS = 0o077


class Certificate:
    """The TLS context of a listener, and the origin of its certificate."""

    def __init__(self, settings: TlsSettings, host: str, clock: Clock) -> None:
        """Raises ``StartRefused`` if the files are not usable."""
        self._clock = clock
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self._table = settings.table
        self._files = _files_of(settings)
        self.pem: bytes
        """The certificate itself, for clients that need to trust it."""
        self.key_pem: bytes
        """Its private key."""
        if self._files is not None:
            self.reload()
        else:
            self.key_pem, self.pem = make_self_signed(host, self._now())
            load_from_memory(self.context, self.key_pem + self.pem)
            _log.info("generated a self-signed certificate: %s", fingerprint(self.pem))
            if settings.certificate_file is not None:
                # The path may be misspelled. Warn now, before clients start to reject the generated certificate.
                _log.warning("using the generated certificate because %s does not exist", settings.certificate_file)

    @property
    def is_from_files(self) -> bool:
        """Whether a reload can load a different certificate."""
        return self._files is not None

    def reload(self) -> None:
        """Read the files again. New connections get the new certificate.

        Raises:
            StartRefused: the files are not usable; the old certificate stays in use.
        """
        assert self._files is not None, "only a certificate from files can be reloaded"
        certificate_file, key_file = self._files
        pem = _read(certificate_file, self._table)
        _check_key_file(key_file, self._table)
        _check_life(certificate_file, pem, self._now(), self._table)
        try:
            # No passphrase: nobody is present to type it.
            self.context.load_cert_chain(certificate_file, key_file, password=lambda: b"")
        except (ssl.SSLError, OSError, ValueError) as error:
            reason = getattr(error, "reason", None) or getattr(error, "strerror", None) or str(error)
            raise StartRefused(
                key_file,
                f"not a usable private key for {certificate_file} ({reason})",
                "provide a PEM key that matches the certificate and has no passphrase",
            ) from error
        self.pem, self.key_pem = pem, key_file.read_bytes()
        _log.info("loaded the certificate from %s: %s", certificate_file, fingerprint(pem))

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now() / 1_000_000, UTC)


def make_self_signed(host: str, now: datetime) -> tuple[bytes, bytes]:
    """Generate a private key and a certificate for the local names and ``host``, both as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "courser")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_TOLERANCE)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectAlternativeName(_names(host)), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, certificate.public_bytes(serialization.Encoding.PEM)


def is_p256(pem: bytes) -> bool:
    """Whether the key of the first certificate is an elliptic one on the curve that every TLS client supports."""
    key = x509.load_pem_x509_certificate(pem).public_key()
    return isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)


def fingerprint(pem: bytes) -> str:
    """The SHA-256 of the first certificate, in a form that people can compare."""
    certificate = x509.load_pem_x509_certificate(pem)
    return f"SHA-256 {certificate.fingerprint(hashes.SHA256()).hex()}"


def _names(host: str) -> list[x509.GeneralName]:
    names: dict[str, x509.GeneralName] = {"localhost": x509.DNSName("localhost")}
    for text in ("127.0.0.1", "::1", host):
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            names[text] = x509.DNSName(text)
        else:
            if not address.is_unspecified:
                names[text] = x509.IPAddress(address)
    return list(names.values())


def context_of(pem: bytes) -> ssl.SSLContext:
    """The TLS context of a listener, from a private key and its certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    load_from_memory(context, pem)
    return context


def load_from_memory(context: ssl.SSLContext, pem: bytes) -> None:
    """Have a context use a private key and its certificate."""
    # The module ssl accepts only files: this one is in memory and has no name.
    descriptor = os.memfd_create("certificate", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(pem)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _files_of(settings: TlsSettings) -> tuple[Path, Path] | None:
    """The files to use, or None if a certificate has to be generated."""
    certificate_file, key_file, table = settings.certificate_file, settings.key_file, settings.table
    if settings.is_self_signed and (certificate_file is None or not _may_exist(certificate_file)):
        return None
    if certificate_file is None or key_file is None:
        raise StartRefused(
            certificate_file or Path(table),
            "TLS requires both a certificate and its key",
            f"set both {table}.cert_file and {table}.key_file, or neither with {table}.self_signed = true",
        )
    return certificate_file, key_file


def _may_exist(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        # Unknown. Reading the file will fail and report the reason.
        return True


def _read(path: Path, table: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise StartRefused(
            path,
            f"cannot read the certificate: {error.strerror}",
            f"check {table}.cert_file and the file's permissions",
        ) from error


def _check_key_file(path: Path, table: str) -> None:
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise StartRefused(
            path, f"cannot read the private key: {error.strerror}", f"check {table}.key_file and the file's permissions"
        ) from error
    if mode & _READABLE_BY_OTHERS:
        _log.warning("other users can read the private key %s; restrict it with chmod 600", path)


def _check_life(path: Path, pem: bytes, now: datetime, table: str) -> None:
    try:
        certificate = x509.load_pem_x509_certificate(pem)
    except ValueError as error:
        raise StartRefused(path, "contains no certificate", f"{table}.cert_file must be a PEM file") from error
    end = certificate.not_valid_after_utc
    if end < now:
        _log.error("the certificate %s expired on %s; clients will reject it", path, end.date())
    elif end < now + _EXPIRES_SOON:
        _log.warning("the certificate %s expires on %s", path, end.date())
    if certificate.not_valid_before_utc > now:
        _log.error("the certificate %s is not valid before %s", path, certificate.not_valid_before_utc.date())
