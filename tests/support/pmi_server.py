"""A stand-in for mpiexec's side of PMI-1, for machines without MPICH. The cluster's tests use the real one."""

from __future__ import annotations

import contextlib
import socket
import threading


class PmiServer:
    """Serves so many tasks, each over a socket of its own.

    Attributes:
        descriptors: what the tasks inherit as PMI_FD.
        waiting: set when the first task is in the barrier.
        finalized: how many tasks have ended as planned.
    """

    def __init__(self, num_tasks: int) -> None:
        pairs = [socket.socketpair() for _ in range(num_tasks)]
        self._servers = [server for server, _ in pairs]
        self._clients = [client for _, client in pairs]
        self.descriptors = [client.fileno() for client in self._clients]
        self.waiting = threading.Event()
        self.finalized = 0
        self._values: dict[str, str] = {}
        self._barrier = threading.Barrier(num_tasks)
        self._threads = [threading.Thread(target=self._serve, args=(server,)) for server in self._servers]

    def __enter__(self) -> PmiServer:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        for thread in self._threads:
            thread.join(10)
        for each in (*self._servers, *self._clients):
            each.close()

    def stop(self) -> None:
        """End as a launcher does that dies."""
        self._barrier.abort()
        for server in self._servers:
            with contextlib.suppress(OSError):
                server.shutdown(socket.SHUT_RDWR)

    def _serve(self, server: socket.socket) -> None:
        received = b""
        with contextlib.suppress(OSError, threading.BrokenBarrierError):
            while data := server.recv(4096):
                received += data
                while b"\n" in received:
                    line, _, received = received.partition(b"\n")
                    words = dict(word.split("=", 1) for word in line.decode().split())
                    server.sendall(f"{self._answer(words)}\n".encode())

    def _answer(self, words: dict[str, str]) -> str:
        match words["cmd"]:
            case "init":
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_my_kvsname":
                return "cmd=my_kvsname kvsname=kvs_7_0"
            case "put":
                self._values[words["key"]] = words["value"]
                return "cmd=put_result rc=0 msg=success"
            case "barrier_in":
                self.waiting.set()
                self._barrier.wait(60)
                return "cmd=barrier_out"
            case "get" if words["key"] in self._values:
                return f"cmd=get_result rc=0 msg=success value={self._values[words['key']]}"
            case "get":
                return "cmd=get_result rc=-1 msg=key_not_found"
            case "finalize":
                self.finalized += 1
                return "cmd=finalize_ack"
        return "cmd=unknown rc=-1"
