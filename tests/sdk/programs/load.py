"""The messages of a load: each says who sent it and which one it is."""


def payload_of(producer: str, number: int) -> str:
    """The message of a producer with this number, of a size that differs from its neighbours'."""
    return f"{producer} {number} {'x' * (number % 200)}"


def name_of(payload: str) -> str:
    """Producer and number, without the filling."""
    producer, number = payload.split()[:2]
    return f"{producer} {number}"
