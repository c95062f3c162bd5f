"""A proxy that reads along in HTTPS, as some sites have: each server shows a certificate of the proxy's authority."""

from __future__ import annotations

import asyncio
import re
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

CONFIG = """
[req]
distinguished_name = name
prompt = no
[name]
CN = {name}
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
subjectAltName = DNS:{name}
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """A certificate authority in a folder, made by openssl."""

    folder: Path

    @classmethod
    def made(cls, folder: Path) -> Authority:
        """A new one."""
        made = cls(folder=folder)
        made.certify("ca", "authority of a test")
        return made

    @property
    def certificate(self) -> Path:
        """What has to be trusted."""
        return self.folder / "ca.crt"

    def certify(self, stem: str, name: str, *signed: str) -> None:
        """Write STEM.key and STEM.crt."""
        (self.folder / f"{stem}.cnf").write_text(CONFIG.format(name=name))
        kind = "server" if signed else "authority"
        command = ["openssl", "req", "-x509", "-config", f"{stem}.cnf", "-extensions", kind, "-newkey", "rsa:2048"]
        files = ["-nodes", "-days", "2", "-keyout", f"{stem}.key", "-out", f"{stem}.crt", *signed]
        subprocess.run([*command, *files], cwd=self.folder, check=True, capture_output=True, timeout=60)

    def context(self, host: str) -> ssl.SSLContext:
        """With which a server called HOST is played."""
        if not (self.folder / f"{host}.crt").exists():
            self.certify(host, host, "-CA", "ca.crt", "-CAkey", "ca.key")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.folder / f"{host}.crt", self.folder / f"{host}.key")
        return context


@dataclass(slots=True, kw_only=True)
class Proxy:
    """Where it listens, and what it read: `HOST PATH` for every request."""

    authority: Authority
    port: int = 0
    read: list[str] = field(default_factory=list)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One client: CONNECT, two conversations in TLS, and what is said in both."""
        first = (await reader.readline()).decode().split()
        while (await reader.readline()).strip():
            pass
        if first[:1] == ["CONNECT"]:
            with suppress(OSError, asyncio.IncompleteReadError):  # either side may leave, and may not trust us
                await self.between(first[1], reader, writer)
        writer.close()

    async def between(self, place: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer CONNECT, and pass on what is said until one side ends."""
        host, _, port = place.rpartition(":")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        await writer.start_tls(self.authority.context(host))
        theirs, ours = await asyncio.open_connection(host, int(port), ssl=ssl.create_default_context())
        out, back = (
            asyncio.ensure_future(way) for way in (self.pass_on(reader, ours, host), self.pass_on(theirs, writer))
        )
        await asyncio.wait((out, back), return_when=asyncio.FIRST_COMPLETED)
        out.cancel()
        back.cancel()
        await asyncio.gather(out, back, return_exceptions=True)
        ours.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str = "") -> None:
        """Bytes as they come; requests to HOST are noted."""
        while data := await reader.read(65536):
            if host:
                self.read += [f"{host} {path.decode()}" for path in re.findall(rb"GET (\S+) HTTP/1", data)]
            writer.write(data)
            await writer.drain()


@contextmanager
def intercepting(authority: Authority) -> Iterator[Proxy]:
    """A proxy on the loopback, for the time of the block."""
    proxy, ready, ended = Proxy(authority=authority), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with await asyncio.start_server(proxy.serve, "127.0.0.1", 0) as server:
            proxy.port = server.sockets[0].getsockname()[1]
            ready.set()
            await ended.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run)
    thread.start()
    try:
        ready.wait(30)
        yield proxy
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join(30)
