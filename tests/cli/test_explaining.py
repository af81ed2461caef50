"""What is said about failures of the server: a hint that fits each."""

import ssl

import click
import pytest

from courser.cli.explaining import explain, explain_login
from courser.cli.failures import ExitCode
from courser.client.contexts import Resolved
from courser.client.targets import Target
from courser.errors import AuthenticationFailed, ConnectionFailed, ErrorCode
from courser.wire.vsr_facts import read_failure, write_reason

NOWHERE = Resolved(Target(), "nowhere")
HINTS = {
    ErrorCode.SINK_NOT_FOUND: "courser sink list",
    ErrorCode.TOO_MANY_SINKS: "courser sink delete",
    ErrorCode.STAGED_PART_NOT_FOUND: "run the job again",
    ErrorCode.STAGED_PART_INCOMPLETE: "run the job again",
    ErrorCode.STAGED_TARGET_GONE: "create the topic",
    ErrorCode.STAGING_FULL: "courser sink discard",
    ErrorCode.BATCH_ALREADY_PUBLISHED: "continue with the next batch",
    ErrorCode.PUBLISH_UNFINISHED: "publish the same batch again",
}


@pytest.mark.parametrize("code", HINTS, ids=lambda code: code.name)
def test_failures_of_staged_writes_say_what_to_do(code: ErrorCode) -> None:
    with click.Context(click.Command("backfill")):
        failure = explain(read_failure(code, write_reason("for the test")), NOWHERE)
    assert failure.message == "for the test"
    assert HINTS[code] in failure.hint
    is_missing = code in (ErrorCode.SINK_NOT_FOUND, ErrorCode.STAGED_PART_NOT_FOUND, ErrorCode.STAGED_TARGET_GONE)
    assert failure.code is (ExitCode.NOT_FOUND if is_missing else ExitCode.FAILED)


@pytest.mark.parametrize(
    ("cause", "host", "hint"),
    [
        (ConnectionRefusedError(), "127.0.0.1", "start a server on this machine with courser dev --port 1 ("),
        (ConnectionRefusedError(), "10.0.0.5", "check the address, which comes from nowhere"),
        (ssl.SSLCertVerificationError(), "127.0.0.1", "?tls_ca_file="),
        (FileNotFoundError(), "127.0.0.1", "check tls_ca_file"),
        (OSError(), "127.0.0.1", "check the address"),
        (None, "127.0.0.1", "check that the server is still running"),
    ],
    ids=str,
)
def test_who_cannot_connect_is_told_what_fits_the_reason(cause: OSError | None, host: str, hint: str) -> None:
    error = ConnectionFailed(f"{host}:1", "for the test")
    error.__cause__ = cause
    failure = explain(error, Resolved(Target(host=host, port=1), "nowhere"))
    assert hint in failure.hint
    assert failure.code is ExitCode.CANNOT_CONNECT


def test_who_is_cut_off_before_the_login_is_told_about_tls() -> None:
    assert "?tls=true" in explain_login(ConnectionFailed("127.0.0.1:1", "for the test"), NOWHERE).hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("the default", "no login is configured, so iggy / iggy was tried"),
        ("--password", 'check the user name "app" and the password, which comes from --password'),
    ],
)
def test_who_cannot_log_in_is_told_where_the_password_comes_from(source: str, hint: str) -> None:
    resolved = Resolved(Target(username="app", password="wrong"), "nowhere", source)
    error = AuthenticationFailed(ErrorCode.INVALID_CREDENTIALS, "for the test")
    assert hint in explain_login(error, resolved).hint
