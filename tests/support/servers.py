"""A web server on loopback that behaves as told, and remembers what it was asked for."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Behaviour = Callable[["Handler", bytes], None]


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's behaviour."""

    protocol_version = "HTTP/1.1"
    server: DataServer

    def do_GET(self) -> None:
        with self.server.guard:
            self.server.asked.append(self.path)
        self.close_connection = True
        name = self.path.rpartition("/")[2]
        if name not in self.server.files:
            return self.send_error(404)
        with suppress(OSError):  # the other side is gone
            return self.server.behaviour(self, self.server.files[name])

    def head(self, code: int = 200, **headers: object) -> None:
        self.send_response(code)
        for name, value in {"Connection": "close", **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


class DataServer(ThreadingHTTPServer):
    """files: what there is, by name. over: set when the test ends, so that no answer outlives it."""

    daemon_threads = False
    request_queue_size = 64

    def __init__(self, files: dict[str, bytes], behaviour: Behaviour, context: ssl.SSLContext | None = None) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.scheme = "https" if context else "http"
        if context:
            self.socket = context.wrap_socket(self.socket, server_side=True)
        self.files, self.behaviour = files, behaviour
        self.asked: list[str] = []
        self.guard, self.over, self.go_on = threading.Lock(), threading.Event(), threading.Event()

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.server_address[1]}/pub"

    def handle_error(self, *_: Any) -> None:
        """A client that went away is what some tests are about."""


@contextmanager
def serving(
    files: dict[str, bytes], behaviour: Behaviour, context: ssl.SSLContext | None = None
) -> Iterator[DataServer]:
    """Serve until the block ends; every socket and thread is closed then."""
    server = DataServer(files, behaviour, context)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        server.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()


def whole(handler: Handler, body: bytes) -> None:
    handler.head(Content_Length=len(body))
    handler.wfile.write(body)


def without_length(handler: Handler, body: bytes) -> None:
    handler.head()
    handler.wfile.write(body)


def chunked(handler: Handler, body: bytes) -> None:
    handler.head(Transfer_Encoding="chunked")
    handler.wfile.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body))


def chunked_half(handler: Handler, body: bytes) -> None:
    handler.head(Transfer_Encoding="chunked")
    handler.wfile.write(b"%x\r\n%s" % (len(body), body[: len(body) // 2]))


def slowly(handler: Handler, body: bytes) -> None:
    """In ten pieces."""
    _in_pieces(handler, body, pause_s=0.05)


def very_slowly(handler: Handler, body: bytes) -> None:
    """In ten pieces, 2.5 s in all."""
    _in_pieces(handler, body, pause_s=0.25)


def _in_pieces(handler: Handler, body: bytes, *, pause_s: float) -> None:
    handler.head(Content_Length=len(body))
    for at in range(0, len(body), len(body) // 10 + 1):
        handler.wfile.write(body[at : at + len(body) // 10 + 1])
        handler.server.over.wait(pause_s)


def when_told(handler: Handler, body: bytes) -> None:
    """Half, and the rest after `go_on`."""
    handler.head(Content_Length=len(body))
    handler.wfile.write(body[: len(body) // 2])
    handler.server.go_on.wait(60)
    handler.wfile.write(body[len(body) // 2 :])


def stops_half_way(handler: Handler, body: bytes) -> None:
    handler.head(Content_Length=len(body))
    handler.wfile.write(body[: len(body) // 2])


def stalls(handler: Handler, body: bytes) -> None:
    handler.head(Content_Length=len(body))
    handler.wfile.write(body[: len(body) // 2])
    handler.server.over.wait(60)


def never_answers(handler: Handler, body: bytes) -> None:
    handler.server.over.wait(60)


def closes_at_once(handler: Handler, body: bytes) -> None:
    """Without a word."""


def talks_rubbish(handler: Handler, body: bytes) -> None:
    handler.wfile.write(b"\0\1\2 what?\r\n\r\n")


def wrong_file(handler: Handler, body: bytes) -> None:
    whole(handler, body[:-1] + bytes([body[-1] ^ 1]))


def login_page(handler: Handler, body: bytes) -> None:
    whole(handler, b"<!DOCTYPE html><title>Please log in</title>")


def nothing(handler: Handler, body: bytes) -> None:
    whole(handler, b"")


def promises_less(handler: Handler, body: bytes) -> None:
    handler.head(Content_Length=len(body) // 2)
    handler.wfile.write(body)


def promises_more(handler: Handler, body: bytes) -> None:
    handler.head(Content_Length=len(body) * 2)
    handler.wfile.write(body)


def endless(handler: Handler, body: bytes) -> None:
    handler.head()
    while not handler.server.over.is_set():
        handler.wfile.write(bytes(1 << 16))


def server_error(handler: Handler, body: bytes) -> None:
    handler.head(500, Content_Length=0)


def forbidden(handler: Handler, body: bytes) -> None:
    handler.head(403, Content_Length=0)


def refuses_when_told(handler: Handler, body: bytes) -> None:
    handler.server.go_on.wait(60)
    forbidden(handler, body)


def sends_on(target: str) -> Behaviour:
    """Redirects every file to `target/NAME`; a target of this server itself goes round in circles."""

    def redirect(handler: Handler, body: bytes) -> None:
        handler.head(302, Location=f"{target}/{handler.path.rpartition('/')[2]}", Content_Length=0)

    return redirect


def goes_in_circles(handler: Handler, body: bytes) -> None:
    handler.head(302, Location=handler.path, Content_Length=0)
