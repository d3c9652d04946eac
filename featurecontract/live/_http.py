"""The few requests that a probe needs of a server with the OpenAI completions API; token ids in, one token out."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import TYPE_CHECKING, Any

from featurecontract.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["RequestFailed", "Server", "address_of", "is_taken"]

_REQUEST = 300.0
_MAX_ANSWER = 4 * 2**20
_MAX_SHOWN = 300
_PORT_DIGITS = 5


class RequestFailed(Exception):  # noqa: N818 - a statement about the server, in one line
    """The server did not answer, or refused; the text says which."""


def address_of(command: Sequence[str], *, port: int) -> tuple[str, int]:
    """Return host and port that a server's command line names, ``port`` where it names none.

    Raises:
        UsageError: the port is no number.
    """
    found: dict[str, str] = {}
    for place, word in enumerate(command):
        name, sign, value = word.partition("=")
        if name in ("--host", "--port"):
            found[name] = value if sign else (command[place + 1] if place + 1 < len(command) else "")
    text = found.get("--port", str(port))
    if not (text.isascii() and text.isdigit() and len(text) <= _PORT_DIGITS) or not 0 < int(text) < 2**16:
        raise UsageError(
            f"--port {text[:_MAX_SHOWN]!r} in the server's command is no port; name the server with --url as well"
        )
    host = found.get("--host", "127.0.0.1")
    return ("127.0.0.1" if host in ("0.0.0.0", "::", "") else host), int(text)  # noqa: S104 - what it listens at


def is_taken(host: str, port: int) -> bool:
    """Return whether somebody answers there already."""
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except (OSError, ValueError):  # a name that no host can have is a ValueError
        return False


class Server:
    """A server at ``http://HOST:PORT``, with or without ``/v1`` behind."""

    def __init__(self, url: str) -> None:
        """Keep the address; nothing is sent yet. Raises UsageError for what is no http address."""
        if not _is_address(url):
            raise UsageError(f"--url {url[:_MAX_SHOWN]!r} is no address of a server, such as http://127.0.0.1:8000")
        self.base = url.rstrip("/").removesuffix("/v1")

    def wait(self, seconds: float, *, alive: Callable[[], bool] = lambda: True) -> None:
        """Wait until models can be listed; raises RequestFailed when that takes too long or ``alive`` says no."""
        limit = time.monotonic() + seconds
        while True:
            try:
                self.model()
            except RequestFailed as error:
                if not alive():
                    raise RequestFailed("the server ended before it was up") from None
                if time.monotonic() > limit:
                    raise RequestFailed(f"the server was not up within {seconds:.0f} s ({error})") from None
                time.sleep(0.5)
            else:
                return

    def model(self) -> str:
        """Return the name of the served model."""
        listed = self._send("/v1/models", None, timeout=10.0).get("data")
        name = listed[0].get("id") if isinstance(listed, list) and listed and isinstance(listed[0], dict) else None
        if not isinstance(name, str):
            raise RequestFailed(f"{self.base}/v1/models lists no model")
        return name

    def complete(self, model: str, token_ids: Sequence[int], **more: Any) -> dict[str, Any]:
        """Send a prompt of token ids and ask for one token, greedily."""
        body = {"model": model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0, **more}
        answer = self._send("/v1/completions", body, timeout=_REQUEST)
        if not isinstance(answer.get("choices"), list) or not answer["choices"]:
            raise RequestFailed(f"{self.base}/v1/completions answered without a completion")
        return answer

    def _send(self, path: str, body: dict[str, Any] | None, *, timeout: float) -> dict[str, Any]:
        """Return the answer, a JSON object, within ``timeout`` seconds altogether."""
        data = None if body is None else json.dumps(body).encode()
        said: list[bytes | Exception] = []

        def ask() -> None:
            try:
                said.append(self._raw(path, data, timeout))
            except Exception as error:  # noqa: BLE001 - raised below, in the caller's thread
                said.append(error)

        # A socket's time-out is for one read: a server that sends a byte a second would hold us for ever.
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(timeout)
        if not said:
            raise RequestFailed(f"{self.base}{path}: no whole answer within {timeout:.0f} s")
        (raw,) = said
        if isinstance(raw, RequestFailed):
            raise raw
        if isinstance(raw, (OSError, ValueError, http.client.HTTPException)):
            reason = getattr(raw, "reason", None) or str(raw) or type(raw).__name__
            raise RequestFailed(f"{self.base}{path}: {reason}") from None
        if isinstance(raw, Exception):
            raise raw
        try:
            found = json.loads(raw)
        except (ValueError, RecursionError):
            raise RequestFailed(f"{self.base}{path} answered no JSON") from None
        return found if isinstance(found, dict) else {}

    def _raw(self, path: str, data: bytes | None, timeout: float) -> bytes:
        request = urllib.request.Request(  # noqa: S310 - http and https only, see above
            self.base + path, data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
                raw: bytes = answer.read(_MAX_ANSWER + 1)
                if len(raw) > _MAX_ANSWER:
                    raise RequestFailed(f"{self.base}{path} answered more than {_MAX_ANSWER} bytes")
                # http.client returns what came before a connection ended, without a word.
                if getattr(answer, "length", None):
                    raise RequestFailed(f"{self.base}{path}: the answer ended early, {answer.length} bytes are missing")
        except urllib.error.HTTPError as error:
            with error:
                said = error.read(_MAX_SHOWN).decode("utf-8", "replace")
            raise RequestFailed(f"{path} answered {error.code}: {' '.join(said.split())}") from None
        return raw


def _is_address(url: str) -> bool:
    try:
        parts = urllib.parse.urlsplit(url)
        # Reading the port parses it.
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
    return fits and all(character.isprintable() and not character.isspace() for character in url)
