"""Errors of the API: refused requests, and requests that were accepted and failed."""


class ApiError(Exception):
    """Refuses a request with an HTTP status that Tinker's SDK does not retry. The message is its `detail`."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class RequestFailure(Exception):
    """An accepted request fails because of what it asks for. The client's future raises the message."""


def not_offered(what: str, instead: str) -> RequestFailure:
    return RequestFailure(f"{what} is not offered by turnwise: {instead}.")
