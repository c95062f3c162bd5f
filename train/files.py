"""These functions write files that appear whole or not at all, read small files safely, and
translate an OSError into a Failure with a fix.

Large content is written with O_DIRECT where the file system allows it, past the page cache.
"""

from __future__ import annotations

import difflib
import errno
import fcntl
import os
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from entrypoint import ExitCode, Failure, dump_json, file_writer
from entrypoint import open_regular_file as open_regular_file
from entrypoint import parse_json as parse_json
from entrypoint import read_json as read_json
from entrypoint import read_json_object as read_json_object
from entrypoint import read_regular_file as read_regular_file

_FREE_SPACE_FIX = "free space there, or set run.output_dir to another file system"
_OUTPUT_FOLDER_FIX = "set run.output_dir to a folder that you may write (in a container: mount one with -v or --bind)"
_FILE_SYSTEM_FIX = "look at the file system (dmesg, mount), then start again: the run goes on from its last checkpoint"
SYMLINK_FIX: Final = "remove the link, or set run.output_dir to the place where the run is to be kept"

# errno -> the run's exit code, and the fix, for the run's own files. Any other number is an input/output error.
# `decode.OS_ERRORS` is a table of its own, for reading an image: no number has the same fix there, missing permission
# is NO_INPUT instead of OUTPUT, and any other number is a damaged image.
ERRNO_MEANINGS: dict[int, tuple[ExitCode, str]] = {
    errno.ENOSPC: (ExitCode.IO, _FREE_SPACE_FIX),
    errno.EDQUOT: (ExitCode.IO, "your quota is used up (quota -s, lfs quota): delete files, or " + _FREE_SPACE_FIX),
    errno.EROFS: (ExitCode.OUTPUT, f"{_OUTPUT_FOLDER_FIX}; one that was writable until now has failed: see dmesg"),
    errno.EACCES: (ExitCode.OUTPUT, _OUTPUT_FOLDER_FIX),
    errno.EPERM: (ExitCode.OUTPUT, _OUTPUT_FOLDER_FIX),
    errno.ENOTDIR: (ExitCode.OUTPUT, _OUTPUT_FOLDER_FIX),
    errno.EEXIST: (ExitCode.OUTPUT, _OUTPUT_FOLDER_FIX),
    errno.EISDIR: (ExitCode.OUTPUT, _OUTPUT_FOLDER_FIX),
    errno.ENAMETOOLONG: (ExitCode.OUTPUT, "use a shorter run.name or run.output_dir"),
    errno.ELOOP: (ExitCode.SECURITY, SYMLINK_FIX),
    errno.EFBIG: (ExitCode.RESOURCE, "raise the limit on file sizes (ulimit -f)"),
    errno.EMFILE: (ExitCode.RESOURCE, "raise the limit on open files (ulimit -n)"),
    errno.ENFILE: (ExitCode.RESOURCE, "close files on this node, or ask its administrator"),
}


def os_error_failure(error: OSError, path: Path, action: str = "write") -> Failure:
    """The Failure if the system refuses `action` on `path`: its error, the free space and a fix."""
    number = error.errno or errno.EIO
    if action == "read" and number in (errno.EINVAL, errno.EFBIG):  # of `read_regular_file`
        fix = "put a regular file in its place, as this project writes it"
        return Failure(f"cannot read {path}", found=error.strerror, fix=fix, code=ExitCode.DATA)
    code, fix = ERRNO_MEANINGS.get(number, (ExitCode.IO, _FILE_SYSTEM_FIX))
    details = f"{os.strerror(number)} (errno {number}, {errno.errorcode.get(number, '?')}){_describe_free_space(path)}"
    return Failure(f"cannot {action} {path}", found=details, fix=fix, code=code)


def bad_data_failure(
    name: object, what: str, actual: str, expected: str = "one of each", fix: str = "write the file again"
) -> Failure:
    """The Failure for data that cannot be trained on. `name`: of its file or factory."""
    return Failure(what, found=f"{name}: {actual}", expected=expected, fix=fix, code=ExitCode.DATA)


def _describe_free_space(path: Path) -> str:
    """`; 1.5 MB free of 64.0 MB` on the file system of `path`; empty if it does not answer."""
    # Not Path.exists(), which raises for a long name.
    existing = next((p for p in (path, *path.parents) if os.path.exists(p)), Path("/"))
    with suppress(OSError):
        disk = os.statvfs(existing)
        free, size = disk.f_bavail * disk.f_frsize, disk.f_blocks * disk.f_frsize
        return f"; {format_bytes(free)} free of {format_bytes(size)}"
    return ""


def format_bytes(count: int) -> str:
    """`1.5 MB`; less than 1 MB in kB, so that a small checkpoint does not have 0.0 MB."""
    return f"{count / 1e6:.1f} MB" if count >= 1e6 else f"{count / 1e3:.1f} kB"


@contextmanager
def translate_os_errors(
    path: Path, action: str = "write", fixes: Mapping[ExitCode, str] = MappingProxyType({})
) -> Iterator[None]:
    """Translate an OSError from `action` on `path` into a Failure. fixes: better ones than the usual, by exit code."""
    try:
        yield
    except OSError as error:
        failure = os_error_failure(error, path, action)
        failure.fix = fixes.get(failure.code, failure.fix)
        raise failure from error


# What a value that is not as expected raises on its way through a parser.
MALFORMED_ERRORS: Final = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
# Surrogates that stand for no byte are in no file's name.
PLAIN_NAME_PATTERN: Final = re.compile(r"[^./\0\ud800-\udc7f\udd00-\udfff][^/\0\ud800-\udc7f\udd00-\udfff]{0,254}")


def is_plain_name(name: object) -> bool:
    """Whether a name that was read, and that others may have written, is one of a file in a known folder.

    A path, `..`, a hidden name, and what no file can be called are none. Every such name passes here before it becomes
    a part of a path.
    """
    return isinstance(name, str) and PLAIN_NAME_PATTERN.fullmatch(name) is not None


def cache_folder(environ: Mapping[str, str]) -> Path | None:
    """The project's folder in XDG_CACHE_HOME or ~/.cache, which may not exist yet; None without a home."""
    home = environ.get("HOME", "")
    caches = environ.get("XDG_CACHE_HOME") or (f"{home}/.cache" if os.path.isdir(home) else None)
    return Path(caches) / "train-image" if caches else None


def private_cache_folder(environ: Mapping[str, str], name: str) -> Path | None:
    """A cache folder for code, which only its owner can write. It is created if need be; None if that fails."""
    cache = cache_folder(environ)
    if cache is None:
        return None
    folder = cache / name
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.lstat()
    except OSError:
        return None
    own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
    return folder if own and os.access(folder, os.W_OK) else None


def write_atomic(path: Path, data: bytes) -> None:
    """Replace the content of the file `path` by `data`, as `file_writer.replace_file` does; remove what a kill left.

    Raises:
        Failure: IO, OUTPUT, RESOURCE or SECURITY, as in `ERRNO_MEANINGS`.
    """
    with translate_os_errors(path), file_writer.replace_file(path) as stream:
        _write_all(stream.fileno(), memoryview(data))
    with suppress(OSError):
        for left in file_writer.left_files(path.parent, [path.name], min_age_s=file_writer.MAX_WRITE_S):
            remove(left)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value as `write_atomic` does, indented."""
    write_atomic(path, f"{dump_json(value, indent=2)}\n".encode())


DIRECT_BLOCK_BYTES: Final = 4096  # memory addresses and file offsets must be multiples of it; no disk needs more
MIN_DIRECT_BYTES: Final = 2**20  # smaller files are written as usual
DIRECT_CHUNK_BYTES: Final = 2**24  # bytes of one call
# The errors of file systems without O_DIRECT, of memory that is not aligned, and of memory that only a driver can reach
# (some pinned memory).
DIRECT_UNSUPPORTED_ERRNOS: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.EFAULT)


def _write_direct(handle: int, data: memoryview) -> memoryview:
    """Write complete blocks of `data` to a new file, if it is large; returns the rest.

    A checkpoint's copy in the page cache would displace files that are read, and the kernel writes it out beside the
    training: then a checkpoint delays training 7 times as long (row 11a of docs/evidence/performance.md).
    If the file system or the memory does not allow it, the rest is returned.

    Raises:
        OSError: as os.write.
    """
    if len(data) < MIN_DIRECT_BYTES:
        return data
    flags, at, end = fcntl.fcntl(handle, fcntl.F_GETFL), 0, len(data) // DIRECT_BLOCK_BYTES * DIRECT_BLOCK_BYTES
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_DIRECT)
        while at < end:
            at += os.write(handle, data[at : min(at + DIRECT_CHUNK_BYTES, end)])
    except OSError as error:
        if error.errno not in DIRECT_UNSUPPORTED_ERRNOS:
            raise
    finally:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags)
    return data[at:]


def create_file(path: Path, data: bytes | memoryview) -> None:
    """Create the file `path`, never through a link, write `data` and call fsync. Raises OSError."""
    handle = file_writer.open_new_file(path)
    try:
        _write_all(handle, memoryview(data))
        os.fsync(handle)
    finally:
        os.close(handle)  # NFS and quotas may report an error only at close: let it raise


def _write_all(handle: int, data: memoryview) -> None:
    rest = _write_direct(handle, data)
    while rest:
        rest = rest[os.write(handle, rest) :]


def remove_temporary_files(folder: Path) -> list[str]:
    """Remove the files that killed processes left in `folder`; returns their names.

    Call it before this run writes there.
    """
    paths = sorted(folder.glob(f"{file_writer.TEMPORARY_PREFIX}*"))
    for path in paths:
        remove(path)
    return [path.name for path in paths]


def remove(path: Path) -> None:
    """Delete a file, a link, or a folder with its content, as far as the system allows."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink()


PROBE_NAME: Final = "probe"


def prepare_folder(folder: Path, need: int = 0) -> None:
    """Create `folder`, write a file to test it, and check that `need` bytes are free.

    Raises:
        Failure: OUTPUT if it is not writable, IO if less than `need` bytes are free.
    """
    with translate_os_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    probe = file_writer.temporary_path(folder / PROBE_NAME)
    with translate_os_errors(folder):
        try:
            create_file(probe, b"\n")
        finally:
            remove(probe)
    refuse_full_disk(folder, need)


KERNEL_FOLDERS: Final = ("/proc", "/sys")  # root may write there by its rights, and nobody can make a folder


def refuse_unwritable(folder: Path) -> None:
    """Refuse a folder in which nothing can be written, or which cannot be made. Nothing is written.

    Raises:
        Failure: as `prepare_folder`, but for a full disk.
    """
    existing = next(path for path in (folder.absolute(), *folder.absolute().parents) if os.path.lexists(path))
    number = None
    if not os.path.isdir(existing):
        number = errno.ENOTDIR
    elif not os.access(existing, os.W_OK | os.X_OK):
        number = errno.EROFS if os.statvfs(existing).f_flag & os.ST_RDONLY else errno.EACCES
    elif any(existing.resolve().is_relative_to(kernels) for kernels in KERNEL_FOLDERS):
        number = errno.ENOENT
    if number is not None:
        raise os_error_failure(OSError(number, os.strerror(number)), folder)


def refuse_full_disk(folder: Path, need: int) -> None:
    """Raise a Failure (IO) if the file system of `folder`, which may not exist yet, has less than `need` bytes free."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    with translate_os_errors(folder):
        disk = os.statvfs(existing)
    if disk.f_bavail * disk.f_frsize < need:
        short = os_error_failure(OSError(errno.ENOSPC, "too little"), folder)
        short.expected = f"{format_bytes(need)} free"
        raise short


def refuse_unusable_file(path: Path, option: str, suffix: str) -> None:
    """Refuse, before anything is computed, a file that the user named and that cannot or should not be written.

    Raises:
        Failure: USAGE for a name without `suffix`, so that no other file of the user's is replaced by mistake; OUTPUT
            for a folder, a link or a device, and where this user may not write.
    """
    if path.suffix.lower() != suffix:
        raise Failure(
            f"{option} takes the name of a {suffix} file",
            found=str(path),
            fix=f"write {option} {path.name or 'file'}{suffix}",
            code=ExitCode.USAGE,
        )
    reason, fix = None, _other_file_fix(option, suffix)
    if not os.path.isdir(path.parent):
        reason, fix = f"{path.parent} is no folder", f"mkdir -p {path.parent}"
    elif not os.access(path.parent, os.W_OK):
        reason = f"{path.parent} is not writable"
    elif os.path.lexists(path) and not stat.S_ISREG(path.lstat().st_mode):
        reason = "it is there, and no plain file"
    if reason is not None:
        raise Failure(f"cannot write {path}", found=reason, fix=fix, code=ExitCode.OUTPUT)


def write_named_file(path: Path, data: bytes, option: str, suffix: str) -> None:
    """Write a file that the user named, as `write_atomic` does; its fix names the option."""
    try:
        write_atomic(path, data)
    except Failure as failure:
        failure.fix = f"free space there, or {_other_file_fix(option, suffix)}"
        raise


def _other_file_fix(option: str, suffix: str) -> str:
    return f"write {option} DIR/NAME{suffix}, in a folder that you may write"


MAX_NAME_CHARACTERS: Final = 40  # of a name in a line


def did_you_mean(path: Path) -> str:
    """`write PATH; or `, with the existing path most similar in its first missing part; else empty."""
    with suppress(OSError):
        if os.path.lexists(path):
            return ""
        existing = next(folder for folder in path.absolute().parents if folder.is_dir())
        missing, *below = path.absolute().relative_to(existing).parts
        names = {name.lower(): name for name in os.listdir(existing)}
        for close in difflib.get_close_matches(missing.lower(), names, 3):
            if os.path.exists(near := existing.joinpath(names[close], *below)):
                return f"write {shlex.quote(os.path.relpath(near) if not path.is_absolute() else str(near))}; or "
    return ""


def one_line(text: str) -> str:
    """Escape, as Python does, the characters that would end a line, hide a part of it or control a terminal."""
    return "".join(letter if letter.isprintable() and letter != "\\" else _escape_character(letter) for letter in text)


def shorten_name(name: str, widest: int = MAX_NAME_CHARACTERS) -> str:
    """One line of at most `widest` characters of the name, before characters are escaped."""
    return one_line(name if len(name) <= widest else f"{name[: widest - 1]}…")


def _escape_character(letter: str) -> str:
    return letter.encode("unicode_escape").decode()
