"""The few requests that a probe needs of a server with the OpenAI completions API; token ids in, one token out."""

from __future__ import annotations

import json
import socket
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
_OK = 200


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
    if not text.isdigit() or not 0 < int(text) < 2**16:
        raise UsageError(f"--port {text!r} in the server's command is no port; name the server with --url as well")
    host = found.get("--host", "127.0.0.1")
    return ("127.0.0.1" if host in ("0.0.0.0", "::", "") else host), int(text)  # noqa: S104 - what it listens at


def is_taken(host: str, port: int) -> bool:
    """Return whether somebody answers there already."""
    try:
        with socket.create_connection((host, port), timeout=2.0):
            return True
    except OSError:
        return False


class Server:
    """A server at ``http://HOST:PORT``, with or without ``/v1`` behind."""

    def __init__(self, url: str) -> None:
        """Keep the address; nothing is sent yet. Raises UsageError for what is no http address."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"--url {url!r} is no address of a server, such as http://127.0.0.1:8000")
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
        return self._send("/v1/completions", body, timeout=_REQUEST)

    def _send(self, path: str, body: dict[str, Any] | None, *, timeout: float) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(  # noqa: S310 - http and https only, see above
            self.base + path, data=data, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:  # noqa: S310
                raw = answer.read(_MAX_ANSWER)
        except urllib.error.HTTPError as error:
            said = error.read(_MAX_SHOWN).decode("utf-8", "replace")
            raise RequestFailed(f"{path} answered {error.code}: {' '.join(said.split())}") from None
        except (OSError, ValueError) as error:
            raise RequestFailed(f"{self.base}{path}: {getattr(error, 'reason', None) or error}") from None
        try:
            found = json.loads(raw)
        except ValueError:
            raise RequestFailed(f"{self.base}{path} answered no JSON") from None
        return found if isinstance(found, dict) else {}
