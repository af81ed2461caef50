"""The commands for users, logins and tokens. ``commands`` offers them with all others."""

from typing import Annotated

from courser.api import replies as r
from courser.api.fields import U64, Active, Kind, Name, OptionalActive, OptionalName, Text8, Text32
from courser.api.table import Command, command
from courser.model.identifiers import Identifier
from courser.model.permissions import Action, Permissions


@command(31, r.UserDetails, Action.READ_USERS, http="GET /users/{user}")
class GetUser(Command, frozen=True):
    """One user with permissions."""

    user: Identifier


@command(32, r.UserList, Action.READ_USERS, http="GET /users")
class GetUsers(Command, frozen=True):
    """List all users by id."""


@command(
    33,
    r.UserDetails,
    Action.MANAGE_USERS,
    operation=141,
    is_audited=True,
    http="POST /users",
    http_names={"name": "username", "is_active": "status"},
)
class CreateUser(Command, frozen=True):
    """Create a user with a password and permissions."""

    name: Name
    password: Text8
    is_active: Active
    permissions: Permissions | None


@command(34, None, Action.MANAGE_USERS, operation=143, is_audited=True, http="DELETE /users/{user}")
class DeleteUser(Command, frozen=True):
    """Delete a user and end its sessions."""

    user: Identifier


@command(
    35,
    None,
    Action.MANAGE_USERS,
    operation=142,
    is_audited=True,
    http="PUT /users/{user}",
    http_names={"name": "username", "is_active": "status"},
)
class UpdateUser(Command, frozen=True):
    """Change name or status; None leaves it unchanged."""

    user: Identifier
    name: OptionalName
    is_active: OptionalActive


@command(36, None, Action.MANAGE_USERS, operation=145, is_audited=True, http="PUT /users/{user}/permissions")
class UpdatePermissions(Command, frozen=True):
    """Replace all permissions of a user."""

    user: Identifier
    permissions: Permissions | None


@command(37, operation=144, is_audited=True, http="PUT /users/{user}/password")
class ChangePassword(Command, frozen=True):
    """Replace a password; the current one is required."""

    user: Identifier
    current_password: Text8
    new_password: Text8


@command(
    38,
    r.LoggedIn,
    operation=1,
    is_public=True,
    is_audited=True,
    http="POST /users/login",
    http_names={"name": "username"},
)
class LoginUser(Command, frozen=True):
    """Log in by password."""

    name: Name
    password: Text8
    version: Text32 = ""
    context: Text32 = ""
    token: str | None = None
    """The same bytes read as a token, to try if the password is wrong: 0.9 does not say which one it sends."""
    sdk: Annotated[str, Kind.ABSENT] = ""
    """The name of the client library, which SDK 0.9 sends."""


@command(44, r.LoggedIn, operation=1, is_public=True, is_audited=True, http="POST /personal-access-tokens/login")
class LoginWithToken(Command, frozen=True):
    """Log in by personal access token."""

    token: Name
    version: Annotated[str, Kind.ABSENT] = ""
    sdk: Annotated[str, Kind.ABSENT] = ""


@command(39, operation=3, is_audited=True, http="DELETE /users/logout")
class LogoutUser(Command, frozen=True):
    """Log out; the connection stays open."""


@command(41, r.TokenList, http="GET /personal-access-tokens")
class GetTokens(Command, frozen=True):
    """The user's own personal access tokens."""


@command(42, r.NewToken, operation=146, is_audited=True, http="POST /personal-access-tokens")
class CreateToken(Command, frozen=True):
    """Create a personal access token."""

    name: Name
    expiry: U64
    """Microseconds from now; 0 and ``NEVER`` are never."""


@command(43, operation=147, is_audited=True, http="DELETE /personal-access-tokens/{name}")
class DeleteToken(Command, frozen=True):
    """Delete one of the user's own personal access tokens."""

    name: Name
