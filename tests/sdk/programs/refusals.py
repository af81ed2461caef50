"""What the SDK says when the server refuses, in the words of its releases.

Until 0.8 the exception shows the name of the error, from 0.9 on its sentence. Both are made by the SDK from the number
that the server sent: a right text proves a right number.
"""

import re
from collections.abc import Awaitable
from typing import Any

from tests.sdk.programs.sdk import Sdk

WORDS = {
    # what happened: (until 0.8, since 0.9)
    "unauthenticated": ("Unauthenticated", "Unauthenticated"),
    "unauthorized": ("Unauthorized", "Unauthorized"),
    "wrong credentials": ("InvalidCredentials", "Invalid credentials"),
    "stream missing": ("StreamIdNotFound", "Stream with ID"),
    "stream name taken": ("StreamNameAlreadyExists", "already exists"),
    "stream id taken": ("StreamIdAlreadyExists", ""),
    "topic missing": ("TopicIdNotFound", "Topic with ID"),
    "topic name taken": ("TopicNameAlreadyExists", "already exists"),
    "topic size": ("InvalidTopicSize", "topic size"),
    "too many partitions": ("TooManyPartitions", "Too many partitions"),
    "partition missing": ("PartitionNotFound", "Partition with ID"),
    "offset beyond the end": ("InvalidOffset", "Invalid offset"),
    "no stored offset": ("ConsumerOffsetNotFound", "onsumer offset"),
    "stream name missing": ("StreamNameNotFound", "Stream with name"),
    "topic name missing": ("TopicNameNotFound", "Topic with name"),
    "group missing": ("ConsumerGroupIdNotFound", "Consumer group with ID"),
    "group name missing": ("ConsumerGroupNameNotFound", "Consumer group with name"),
    "group name taken": ("ConsumerGroupNameAlreadyExists", "Consumer group with name"),
    "not a member": ("ConsumerGroupMemberNotFound", "member"),
    "partition count": ("InvalidPartitionsCount", "partitions count"),
    "not found": ("ResourceNotFound", "Resource with key"),
    "option": ("", "Unsupported option key"),
    "option value": ("", "option value"),
    "user name taken": ("UserAlreadyExists", "User already exists"),
    "user inactive": ("UserInactive", ""),
    "root cannot be deleted": ("CannotDeleteUser", "Cannot delete user"),
    "root keeps its permissions": ("CannotChangePermissions", "permissions"),
    "fixed": ("", "Partition resizing is disabled"),
    "not updatable": ("", "cannot be updated after creation"),
    "no stream keys": ("", "encryption"),
    "invalid command": ("InvalidCommand", "Invalid command"),
}


async def send_refused(sdk: Sdk, what: str, call: Awaitable[Any]) -> None:
    """A send to something that is missing must fail. Only the server of 0.9 does not say what it is."""
    await refused(sdk, "not found" if sdk.version == (0, 9) else what, call)


async def refused(sdk: Sdk, what: str, call: Awaitable[Any]) -> None:
    """The call must fail, with the text that stands for this."""
    said = result = None
    try:
        result = await call
    except RuntimeError as error:
        said = str(error)
    assert said is not None, f"{what} was not refused: {result!r}"
    word = WORDS[what][0 if sdk.is_classic else 1]
    if '"code":' in said and not said.startswith(word):
        # Over HTTP, it shows the JSON of the reply, with the name of the error in other letters.
        word = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", WORDS[what][0]).lower()
    assert word in said, f"{what} should say {word!r}, and says {said!r}"
