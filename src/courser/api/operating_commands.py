"""Commands for whoever operates a server, and for the console. ``commands`` offers them with all others."""

from courser.api import replies as r
from courser.api.table import Command, command


@command(60030, r.OneTimeToken, is_audited=True, http="POST /personal-access-tokens/one-time")
class CreateOneTimeToken(Command, frozen=True):
    """Create a token that logs in this user once, within five minutes: for links to the console."""
