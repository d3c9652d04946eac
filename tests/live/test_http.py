"""The requests of a probe against servers that answer as no server should."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from featurecontract.errors import UsageError
from featurecontract.live._http import RequestFailed, Server, address_of, is_taken

MODELS = b'{"data": [{"id": "m"}]}'


def head(length, more=b""):
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%s\r\n" % (length, more)


@pytest.fixture
def serve():
    """Start a server that sends these bytes to everybody, piece by piece, and return its address."""
    ended = threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))
    listening.settimeout(0.1)

    def answer(pieces, pause):
        while not ended.is_set():
            try:
                other, _ = listening.accept()
            except OSError:
                continue
            with other:
                other.recv(65536)
                for piece in pieces:
                    if ended.is_set():
                        break
                    try:
                        other.sendall(piece)
                    except OSError:
                        break
                    time.sleep(pause)

    def start(*pieces, pause=0.0):
        threading.Thread(target=answer, args=(pieces, pause), daemon=True).start()
        return Server(f"http://127.0.0.1:{listening.getsockname()[1]}")

    yield start
    ended.set()
    listening.close()


def test_a_whole_answer(serve):
    assert serve(head(len(MODELS)) + MODELS).model() == "m"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # urllib leaves a bad redirect open
@pytest.mark.parametrize(
    ("pieces", "said"),
    [
        ([b"\x00garbage\r\n\r\n"], "garbage"),
        ([b""], ""),
        ([b"HTTP/1.1 2x0 OK\r\n\r\n"], "2x0"),
        ([b"HTTP/1.1 200 OK\r\n" + b"X: " + b"a" * 70000 + b"\r\n\r\n"], "header line"),
        ([b"HTTP/1.1 200 OK\r\n" + b"X: a\r\n" * 200 + b"\r\n"], "100 headers"),
        ([b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], ""),
        ([b"HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"], ""),
        ([b"HTTP/1.1 302 No\r\nLocation: http://[\r\n\r\n"], ""),
        ([head(500) + MODELS], "the answer ended early, 477 bytes are missing"),
        ([head(8) + b"no json!"], "answered no JSON"),
        ([head(200_000) + b"[" * 200_000], "answered no JSON"),
        ([head(2) + b"[]"], "lists no model"),
        ([head(5 * 2**20) + b" " * 5 * 2**20], "answered more than 4194304 bytes"),
    ],
)
def test_answers_that_are_none(serve, pieces, said):
    with pytest.raises(RequestFailed) as caught:
        serve(*pieces).model()
    assert said in str(caught.value)


@pytest.mark.parametrize("body", [b"{}", b"[]", b'{"choices": []}', b'{"choices": 3}', b'{"choices": [{"text": "x'])
def test_a_completion_that_is_none(serve, body):
    with pytest.raises(RequestFailed, match=r"without a completion|no JSON"):
        serve(head(len(body)) + body).complete("m", [1])


@pytest.mark.parametrize("start", [head(1000), b"HTTP/1.1 200 OK\r\nX: "])
def test_an_answer_in_drops_is_bounded_altogether(serve, start):
    server = serve(start, *[b" "] * 1000, pause=0.05)
    began = time.monotonic()
    with pytest.raises(RequestFailed, match="no whole answer within 1 s"):
        server._send("/v1/models", None, timeout=1.0)  # the public methods wait 10 s and more
    assert time.monotonic() - began < 10


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://h:port", "http://h:99999", "http://h:0", "http://", "http://:80", "ftp://h", "http://a b",
     "http://h/\n", "h:80", "http://h:80/\x1b[31m"],
)  # fmt: skip
def test_addresses_that_are_none(url):
    with pytest.raises(UsageError, match="is no address of a server"):
        Server(url)


@pytest.mark.parametrize("port", ["²", "9" * 5000, "-1", "", "65536", "٣"])
def test_ports_that_are_none(port):
    with pytest.raises(UsageError, match="is no port"):
        address_of(["serve", "--port", port], port=8000)


def test_a_host_that_nobody_can_have_is_not_taken():
    assert not is_taken("a" * 70 + ".x", 80)
