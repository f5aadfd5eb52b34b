"""Client of a search server, which several runs can share."""

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import SplitResult

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from turnwise.core.errors import UserError
from turnwise.network import secrets
from turnwise.tools.search.types import KEY_VARIABLE, MAX_REPLY_BYTES, Passage, SearchFailed, SearchResult, clean_text

PATH = "/search"
TIMEOUT_S, CONNECT_S = 30.0, 10.0
RETRYABLE = frozenset({408, 425, 429})
"""Statuses below 500 that a retry may avoid."""


class _Result(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    title: str
    text: str
    id: str = ""
    score: float


class _Reply(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    results: list[list[_Result]]


class RemoteIndex:
    """Search through a server. Raises `SearchFailed` if it is unreachable or broken, UserError if it refuses."""

    def __init__(self, url: str, key: str | None = None, timeout_s: float = TIMEOUT_S) -> None:
        self._url, self._timeout_s = search_url(url), timeout_s
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        limits = httpx2.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s))
        self._http = httpx2.Client(headers=headers, timeout=limits, follow_redirects=False)

    def search(self, queries: Sequence[str], top: int) -> list[list[SearchResult]]:
        status, body = self._post({"queries": [clean_text(query) for query in queries], "top": top})
        if status >= 500 or status in RETRYABLE:
            raise SearchFailed(f"the search server {self._url} answered {status}")
        if status != 200:
            raise UserError(self._describe_refusal(status, body))
        try:
            results = _Reply.model_validate_json(body).results
        except ValidationError as error:
            raise SearchFailed(f"the search server {self._url} sent an answer that cannot be read") from error
        if len(results) != len(queries):
            raise SearchFailed(f"the search server {self._url} sent {len(results)} results for {len(queries)} queries")
        return [[_to_search_result(result) for result in of_query[:top]] for of_query in results]

    async def check_server(self) -> None:
        try:
            await asyncio.to_thread(self.search, ["ready"], 1)
        except SearchFailed as error:
            raise UserError(f"{error}: start it with `turnwise search INDEX --serve`, or correct url.") from error

    def _post(self, request: dict[str, Any]) -> tuple[int, bytes]:
        data, deadline = json.dumps(request).encode("ascii"), time.monotonic() + self._timeout_s
        try:
            with self._http.stream("POST", self._url, content=data) as response:
                body = bytearray()
                for piece in response.iter_bytes():
                    body += piece
                    if len(body) > MAX_REPLY_BYTES:
                        raise SearchFailed(f"the search server {self._url} sent more than {MAX_REPLY_BYTES} bytes")
                    if time.monotonic() > deadline:
                        raise SearchFailed(f"the search server {self._url} took longer than {self._timeout_s:g} s")
                return response.status_code, bytes(body)
        except httpx2.RequestError as error:
            raise SearchFailed(f"no answer from the search server {self._url} ({type(error).__name__})") from error

    def _describe_refusal(self, status: int, body: bytes) -> str:
        if status in (401, 403):
            return (
                f"the search server {self._url} requires a key: set {KEY_VARIABLE}, or name its variable with key_env"
            )
        detail = " ".join(clean_text(body[:200].decode("utf-8", "replace")).split())
        return f"{self._url} answered {status} ({detail}): is it a server of turnwise search INDEX --serve?"


def _to_search_result(result: _Result) -> SearchResult:
    passage = Passage(title=clean_text(result.title), text=clean_text(result.text), id=clean_text(result.id))
    return SearchResult(passage=passage, score=result.score)


def search_url(url: str) -> str:
    """URL of the search endpoint."""
    parts = _split(url)
    path = parts.path.rstrip("/")
    return parts._replace(path=path if path.endswith(PATH) else path + PATH, query="", fragment="").geturl()


def read_key(url: str, variable: str | None, environment: Mapping[str, str] = os.environ) -> str | None:
    """Read the key from the named variable, or from TURNWISE_SEARCH_KEY if that is set."""
    options = {"default": KEY_VARIABLE, "option": "key_env"}
    return secrets.read_key(_split(url), variable, **options, environment=environment)


def _split(url: str) -> SplitResult:
    """Split the URL. Raises UserError if it is not one, or contains a key."""
    return secrets.split_url(url, option="url", example="http://127.0.0.1:8080", fix=f"set {KEY_VARIABLE} instead")
