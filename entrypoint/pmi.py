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
from contextlib import closing, suppress

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


def exchange_values(
    environ: Mapping[str, str], value: str, task: int, num_tasks: int, deadline: float, check: Callable[[], None]
) -> list[str]:
    """The values of all tasks, when each has published its own: printable ASCII without spaces.

    Raises:
        Failure: PEER if the launcher refuses, is gone, or answers too late.
        PmiClosedError: if it does not take the first message.
    """
    client = PmiClient(environ, deadline, check)
    with closing(client.socket):
        if not inherited_sockets(environ):  # over a port the launcher asks who it is
            client.request(f"cmd=initack pmiid={environ['PMI_ID']}", "initack")
        client.request("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")
        store = client.request("cmd=get_my_kvsname", "my_kvsname")["kvsname"]  # which all tasks share
        client.request(f"cmd=put kvsname={store} key=train-host-{task} value={value}", "put_result")
        client.request("cmd=barrier_in", "barrier_out")  # until all tasks are here
        gets = [f"cmd=get kvsname={store} key=train-host-{other}" for other in range(num_tasks)]
        values = [client.request(get, "get_result")["value"] for get in gets]
        client.request("cmd=finalize", "finalize_ack")  # without it the end of this task would be a crash
    return values


class PmiClient:
    """One task's connection to its launcher. `check` is called while it waits; it may raise."""

    def __init__(self, environ: Mapping[str, str], deadline: float, check: Callable[[], None]) -> None:
        self._deadline, self._check, self._received = deadline, check, b""
        sockets = inherited_sockets(environ)
        self.socket = socket.socket(fileno=os.dup(sockets[0])) if sockets else self._connect(environ["PMI_PORT"])
        self.socket.setblocking(True)
        self._answered = False

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

    def request(self, message: str, answer: str) -> dict[str, str]:
        """Send a message; returns the words of the answer.

        Raises:
            Failure: PEER if the launcher refuses, is gone, or answers too late.
            PmiClosedError: if it does not take the first one.
        """
        try:
            self.socket.sendall(f"{message}\n".encode())
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
            if select.select([self.socket], [], [], POLL_INTERVAL_S)[0]:
                data = self.socket.recv(65536)
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
