"""A published data set comes into data.root: once, however many processes ask for it, and whole or not at all."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from entrypoint import ExitCode, Failure
from train.fetching import archives, download, unpack
from train.fetching.archives import Archive
from train.fetching.telling import Teller
from train.files import durable, lease, refusals
from train.files.lease import Holder, Waited
from train.settings.config import Data

_PLACE = "set data.root to a folder that you may write (in a container: mount one with -v or --bind)"
_SPACE = "free space there, or set data.root to another file system"
_SERVER = "look at the file system (dmesg, mount), then start again: nothing half was kept"


def ensure(data: Data, teller: Teller) -> None:
    """Return once data set `data.name` lies whole below `data.root`; at once, and without a word, where it does.

    Of all processes that ask, on all nodes that see the folder, one fetches and the others wait for it.

    Raises:
        Failure: USAGE for a data set that is not published, NO_INPUT where no address answers, DATA for other files
            than the published ones, OUTPUT or IO where data.root cannot be written.
    """
    archives.refuse_unpublished(data)
    root, waited = Path(data.root), None
    place = root / f".fetch-{data.name}"
    while missing := [archive for archive in archives.PUBLISHED[data.name] if not archives.whole(archive, root)]:
        _raise_what_failed(place, waited, data)
        with _told(root):
            root.mkdir(parents=True, exist_ok=True)
            held = lease.take(place, waited)
        if held is None:
            waited = lease.wait(place, lambda holder: teller.passing(_waiting(data, holder)))
            continue
        with held.held(), _noted(place, held.holder, data):
            for archive in missing:
                with _told(root):
                    _bring(archive, missing, data, teller)
    teller.end()


def _bring(archive: Archive, missing: list[Archive], data: Data, teller: Teller) -> None:
    """Under the lease: fetch one archive, unless it is there, and unpack it."""
    root = Path(data.root)
    place = root / archive.path
    place.parent.mkdir(parents=True, exist_ok=True)
    unpack.sweep(archive, root)
    if archives.whole(archive, root):  # while this process was asking for the lease
        return
    _refuse_little_room(archive, root)
    found = archives.md5_of(place) if place.exists() else None
    if found != archive.md5:
        if found:
            teller.line(f"{place} is there, but with md5 {found} instead of {archive.md5}: it is fetched again")
        _download(archive, missing, data, teller)
    teller.line(f"{archive.name}: verified, unpacking into {root}")
    unpack.unpack(archive, root)


def _download(archive: Archive, missing: list[Archive], data: Data, teller: Teller) -> None:
    """From the first address that has it."""

    def progress(received: int) -> None:
        teller.passing(f"{archive.name}: {received / 1e6:.1f} of {archive.size / 1e6:.1f} MB")

    failed, wrong = [], False
    for address in archive.addresses(data.mirror):
        teller.line(f"fetching {address} ({archive.size / 1e6:.1f} MB)")
        try:
            return download.bring(address, archive, Path(data.root) / archive.path, progress)
        except download.Unusable as why:
            failed.append(f"{address}: {why}")
            wrong = wrong or why.wrong
    code = ExitCode.DATA if wrong else ExitCode.NO_INPUT
    what = f"{archive.name} cannot be fetched for data.name={data.name}"
    expected = f"{archive.size} bytes with md5 {archive.md5}"
    raise Failure(what, found="; ".join(failed), expected=expected, fix=by_hand(missing, data), code=code)


def by_hand(missing: list[Archive], data: Data) -> str:
    """What to do without a network: the command for where there is one, or which files to put where."""
    command = archives.fetch_command(data.name, Path(data.root).absolute())
    folder = (Path(data.root) / missing[0].path).parent.absolute()
    files = ", ".join(f"{archive.name} (md5 {archive.md5}, from {archive.addresses(None)[0]})" for archive in missing)
    return (
        f"where there is a network (on a cluster: its login node) run `{command}`; or put {files} into {folder} and "
        "start again: what is there is verified and unpacked; or set data.mirror to the address of a folder that has it"
    )


def _waiting(data: Data, holder: Holder | None) -> str:
    return f"waiting for {holder or 'another process'}, which fetches {data.name} into {data.root}"


def _refuse_little_room(archive: Archive, root: Path) -> None:
    """Raises Failure (IO) before an hour of downloading, instead of after it."""
    need = archive.size + sum(file.size or archive.size // len(archive.files) for file in archive.files)
    if shutil.disk_usage(root).free < need:
        short = _refusal(OSError(errno.ENOSPC, "too little"), root)
        short.expected = f"{refusals.sized(need)} free for {archive.name} and what it holds"
        raise short


@contextmanager
def _told(root: Path) -> Iterator[None]:
    """Turn an OSError below data.root into its Failure."""
    try:
        yield
    except OSError as error:
        raise _refusal(error, Path(error.filename or root)) from error


def _refusal(error: OSError, path: Path) -> Failure:
    failure = refusals.failure(error, path)
    if failure.code == ExitCode.OUTPUT:
        failure.fix = _PLACE
    elif failure.code == ExitCode.IO:
        failure.fix = _SPACE if error.errno in (errno.ENOSPC, errno.EDQUOT) else _SERVER
    return failure


@contextmanager
def _noted(place: Path, holder: Holder, data: Data) -> Iterator[None]:
    """Leave word of a failure for those who wait: they need not try the same again, one after the other."""
    note = place.with_name(f"{place.name}.failed")
    durable.remove(note)
    try:
        yield
    except Failure as failure:
        if failure.code != ExitCode.STOPPED:
            with suppress(Failure, OSError):
                told = {"token": holder.token, "mirror": data.mirror, "by": str(holder)}
                durable.write_json(note, told | {"failure": failure.as_json()})
        raise


def _raise_what_failed(place: Path, waited: Waited | None, data: Data) -> None:
    """Raises the Failure of the process that was waited for, where it asked the same addresses."""
    if waited is None or waited.token is None:
        return
    try:
        note = json.loads(place.with_name(f"{place.name}.failed").read_bytes())
        same = (note["token"], note["mirror"]) == (waited.token, data.mirror)
        failure, by = note["failure"], note["by"]
        again = Failure(
            f"{failure['what']} ({by} tried)",
            fix=failure["fix"],
            code=ExitCode(failure["code"]),
            found=failure.get("found"),
            expected=failure.get("expected"),
        )
    except (OSError, ValueError, TypeError, KeyError):
        return
    if same:
        raise again
