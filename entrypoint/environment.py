"""`clean_environ` removes the host's Python settings from the environment of a rank.

It also replaces folders that cannot be written.
"""

from __future__ import annotations

import os
import pwd
import shutil
import site
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from entrypoint.files import StrPath

# Host Python settings that reach into a container or another environment and change what is imported.
PYTHON_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP")
INSPECT_VARIABLE = "PYTHONINSPECT"
COMPILER_VARIABLES = ("CC", "CXX")
# They bind a process's threads to cores, when OpenMP is loaded: libgomp (torch's) reads the first three, the OpenMP of
# LLVM and Intel also the others. Each rank counts from the first core that it may use, and its data workers inherit the
# one core of its main thread.
THREAD_BINDING_VARIABLES = (
    *("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", "KMP_HW_SUBSET", "KMP_PLACE_THREADS"),
)
CHECKOUT = Path(__file__).parents[1]


def clean_environ(
    environ: Mapping[str, str], *, foreign: bool, scratch: StrPath | None
) -> tuple[dict[str, str], list[str]]:
    """The environment for a rank, and one note for each of the user's variables that was changed.

    foreign: the command is the user's, whose script must be able to import modules from its own
    folder. scratch: the folder to use if HOME cannot be written.
    """
    child = dict(environ)
    leaks = [name for name in PYTHON_VARIABLES if child.pop(name, None)]
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"  # of `pip install --user`
    user_packages = os.path.join(environ.get("HOME") or "/nonexistent", ".local/lib", version, "site-packages")
    leaks += [user_packages] if os.path.isdir(user_packages) else []  # also False if this user may not read it
    notes = [f"not used, it would change what is imported: {', '.join(leaks)}"] if leaks else []
    if child.pop(INSPECT_VARIABLE, None):
        notes.append(f"not used, it would make a finished program wait for input: {INSPECT_VARIABLE}")
    child["PYTHONNOUSERSITE"] = "1"
    child["PYTHONUTF8"] = "1"  # file names and logs are UTF-8 in an ASCII locale too
    child["PYTHONUNBUFFERED"] = "1"  # so that the last lines before a crash are not lost
    if foreign:
        child.pop("PYTHONSAFEPATH", None)
    else:
        child["PYTHONSAFEPATH"] = "1"
        # Whether Python finds this project by itself: a checkout may be used without.
        if not any(any(Path(folder).glob("train_image-*.dist-info")) for folder in site.getsitepackages()):
            child["PYTHONPATH"] = str(CHECKOUT)
    notes += _drop_missing_preloads(child)
    for name in COMPILER_VARIABLES:  # the host's, which triton and torch.compile would use unchecked
        if name in child and not shutil.which(child[name], path=child.get("PATH")):
            notes.append(f"{name} names a compiler that is not here and is left out: {child.pop(name)}")
    notes += _replace_unwritable_home(child, scratch)
    if "USER" not in child or "LOGNAME" not in child:
        name = child.get("USER") or child.get("LOGNAME") or user_name(os.getuid())
        child.update(USER=name, LOGNAME=name)
    return child, notes


def user_name(uid: int) -> str:
    """The account's name, or one made from the uid where there is no account (getpass.getuser() would raise)."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid{uid}"


def is_writable(folder: StrPath | None) -> bool:
    """Try it by writing: permission bits do not show quotas, read-only mounts or squashed root."""
    if not folder:
        return False
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def scratch_parent(environ: Mapping[str, str]) -> Path | None:
    """The first writable folder for temporary files.

    With a read-only root often only /dev/shm is left.
    """
    folders = (environ.get("TMPDIR"), "/tmp", "/var/tmp", "/dev/shm", ".")
    return next((Path(folder) for folder in folders if folder and is_writable(folder)), None)


def _replace_unwritable_home(child: dict[str, str], scratch: StrPath | None) -> list[str]:
    notes = []
    if scratch and not is_writable(child.get("TMPDIR") or "/tmp"):
        child["TMPDIR"] = str(scratch)
    if scratch and not is_writable(child.get("HOME")):
        notes.append(f"HOME ({child.get('HOME') or 'not set'}) cannot be written: caches go to {scratch}")
        child["HOME"] = str(scratch)
        for cache in [name for name in child if name in CACHE_VARIABLES and not is_writable(child[name])]:
            del child[cache]  # they fall back to HOME
    return notes


# Caches that the libraries keep under HOME by default, and that a user may have pointed elsewhere.
CACHE_VARIABLES = (
    "XDG_CACHE_HOME",
    "TORCHINDUCTOR_CACHE_DIR",
    "TRITON_CACHE_DIR",
    "MPLCONFIGDIR",
    "HF_HOME",
    "TORCH_HOME",
)


def _drop_missing_preloads(child: dict[str, str]) -> list[str]:
    """Remove files from LD_PRELOAD that this container does not have.

    Each program start would warn about them.
    """
    libraries = child.get("LD_PRELOAD", "").replace(":", " ").split()
    missing = [name for name in libraries if "/" in name and not Path(name).exists()]
    if not missing:
        return []
    child["LD_PRELOAD"] = " ".join(name for name in libraries if name not in missing)
    if not child["LD_PRELOAD"]:
        del child["LD_PRELOAD"]
    return [f"LD_PRELOAD names files that are not here and are left out: {' '.join(missing)}"]
