"""A client of PMI-1, the protocol in which MPICH's mpiexec, Intel MPI and Flux let their tasks exchange values.

Each message is a line of `key=value` words, and each request has one answer. Source: the Flux
project's RFC 13, "Simple Process Manager Interface v1"; ran with MPICH 4.0.2.
"""

from __future__ import annotations

import os
import select
import socket
import stat
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from entrypoint.errors import ExitCode, Failure

POLL_INTERVAL_S = 0.5


class PmiClosedError(Exception):
    """The launcher answers no task any more: an earlier command of these tasks has used the connection."""


def is_available(environ: Mapping[str, str], task: int, num_tasks: int) -> bool:
    """Whether the launcher offers PMI-1 here: an inherited socket (PMI_FD), or a port (PMI_PORT).

    Its numbers must be those of this task: another launcher, inside that one, may have started it.
    """
    if (environ.get("PMI_RANK", str(task)), environ.get("PMI_SIZE", str(num_tasks))) != (str(task), str(num_tasks)):
        return False
    return bool(inherited_sockets(environ)) or (":" in environ.get("PMI_PORT", "") and bool(environ.get("PMI_ID")))


def inherited_sockets(environ: Mapping[str, str]) -> tuple[int, ...]:
    """The descriptor of PMI_FD, if it is an open socket. A child that shall use it must inherit it."""
    number = environ.get("PMI_FD", "")
    if number.isascii() and number.isdigit() and len(number) < 10:
        with suppress(OSError):  # a container may have closed it
            if stat.S_ISSOCK(os.fstat(int(number)).st_mode):
                return (int(number),)
    return ()


class PmiClient:
    """One task's connection to its launcher. `check` is called while it waits; it may raise."""

    def __init__(self, environ: Mapping[str, str], deadline: float, check: Callable[[], None]) -> None:
        self._deadline, self._check, self._received = deadline, check, b""
        sockets = inherited_sockets(environ)
        self._id = "" if sockets else environ["PMI_ID"]  # over a port the launcher asks who it is
        self._socket = socket.socket(fileno=os.dup(sockets[0])) if sockets else self._connect(environ["PMI_PORT"])
        self._socket.setblocking(True)
        self._store, self._answered = "", False

    def _connect(self, address: str) -> socket.socket:
        host, _, port = address.rpartition(":")
        while True:
            self._check()
            try:
                return socket.create_connection((host, int(port)), POLL_INTERVAL_S)
            except TimeoutError as error:
                if time.monotonic() > self._deadline:
                    raise self._failure(f"PMI_PORT={address}", str(error)) from error
            except (OSError, ValueError) as error:
                raise self._failure(f"PMI_PORT={address}", str(error)) from error

    def initialize(self) -> None:
        """Agree on the protocol's version, and learn the name of the tasks' common store."""
        if self._id:
            self.request(f"cmd=initack pmiid={self._id}", "initack")
        self.request("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        self._store = self.request("cmd=get_my_kvsname", "my_kvsname")["kvsname"]

    def __enter__(self) -> PmiClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def finalize(self) -> None:
        """Tell the launcher that this task needs it no longer; without that its end would be a crash."""
        self.request("cmd=finalize", "finalize_ack")

    def put(self, key: str, value: str) -> None:
        """Publish a value: printable ASCII without spaces."""
        self.request(f"cmd=put kvsname={self._store} key={key} value={value}", "put_result")

    def get(self, key: str) -> str:
        """The value that a task has put before the last barrier."""
        return self.request(f"cmd=get kvsname={self._store} key={key}", "get_result")["value"]

    def barrier(self) -> None:
        """Wait until all tasks are here."""
        self.request("cmd=barrier_in", "barrier_out")

    def request(self, message: str, answer: str) -> dict[str, str]:
        """Send a message; returns the words of the answer.

        Raises:
            Failure: PEER if the launcher refuses, is gone, or answers too late.
            PmiClosedError: if it does not take the first one.
        """
        try:
            self._socket.sendall(f"{message}\n".encode())
            while True:
                words = dict(word.split("=", 1) for word in self._read_line().split() if "=" in word)
                if words.get("cmd") == "set":  # after initack: numbers that are known already
                    continue
                if words.get("cmd") != answer or words.get("rc", "0") != "0":
                    raise self._failure(message, f"it answered {' '.join(f'{k}={v}' for k, v in words.items())}")
                self._answered = True
                return words
        except OSError as error:
            if not self._answered and isinstance(error, ConnectionError):
                raise PmiClosedError from error
            raise self._failure(message, str(error)) from error

    def _read_line(self) -> str:
        while b"\n" not in self._received:
            self._check()
            if select.select([self._socket], [], [], POLL_INTERVAL_S)[0]:
                data = self._socket.recv(65536)
                if not data:
                    raise ConnectionError("the launcher has closed the connection")
                self._received += data
            elif time.monotonic() > self._deadline:
                raise OSError("no answer in time: not all tasks have come")
        line, _, self._received = self._received.partition(b"\n")
        return line.decode("ascii", "replace")

    def _failure(self, message: str, reason: str) -> Failure:
        return Failure(
            "the launcher did not tell where rank 0 is, over PMI-1",
            found=f"{message.split(' kvsname=')[0]}: {reason}",
            fix="look at the output of the other tasks and of the launcher; without its variables the tasks use a "
            "shared folder instead: mpiexec ... env -u PMI_FD -u PMI_PORT train ...",
            code=ExitCode.PEER,
        )
