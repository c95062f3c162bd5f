"""One rank: from its command line and environment to a training that ends with an exit code and a reason on disk."""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from entrypoint import (
    ExitCode,
    Failure,
    attach_heartbeat,
    print_message,
    protect_output_streams,
    resource_limit_failure,
    world_from_environ,
)
from train import fault_injection, files, line_profiling, plugin
from train.config import environment, load
from train.config.schema import RunConfig
from train.inference import checkpoints
from train.inference.checkpoints import ChosenCheckpoint
from train.run import exit_file
from train.run.bell import Bell
from train.run.folder import run_folder
from train.run.lock import RunLock
from train.run.seat import Seat


def main() -> NoReturn:
    """`python -m train.worker [--config FILE] [section.key=value ...]`, started by `train`; ends with its exit code.

    With `--evaluate CHECKPOINT --scratch FOLDER [--all] [--json]` it measures instead of training.
    """
    protect_output_streams()
    bell = Bell()
    try:
        bell.listen()
    except RuntimeError as error:  # the system has no thread left
        vanish(leave(told(error, None), None))
    code = run(sys.argv[1:], os.environ, bell)
    # A rank left in disorder: NCCL would wait for ranks that are gone. And Python would wait for a user's thread.
    if not in_a_group() and not held_up(THREADS_S):
        atexit._run_exitfuncs()
    vanish(code)  # in the interpreter's own end, a thread of gloo's has turned a saved rank into a SIGABRT


SILENT: Final = "99"
CODE: Final = "TORCHINDUCTOR_CACHE_DIR"
THREADS_S: Final = 10.0  # at the end: for threads of the user's code
REPORT: Final = "please report it, with logs/ and errors/ of the run's folder"


def run(argv: Sequence[str], environ: MutableMapping[str, str], bell: Bell) -> int:
    """Train as one rank. Whatever goes wrong is shown here, once.

    That this was the end is said on the pulse too: without that (os._exit in a user's code), success is none.

    What takes seconds to import comes after what a signal or a wrong start needs.
    """
    seat, pulse = None, attach_heartbeat(environ)
    try:
        arguments = build_parser().parse_args(argv)
        world = world_from_environ(environ)
        config, folder, measured = wanted(arguments)
        names = (config.data.name, config.model.name)  # an evaluation loads no optimizer
        plugin.add_config_folder_to_path(arguments.config, *names, *(() if measured else (config.optim.name,)))
        seat = Seat(world=world, folder=folder, pulse=pulse)
        if arguments.lease is not None and world.rank == 0:
            seat.claim = RunLock(folder=folder, number=arguments.lease)
        seat.before = exit_file.describe_unfinished_save(seat.folder)
        exit_file.clear_rank(seat.folder, rank=world.rank, world_size=world.world_size)
        bell.undone = "before the evaluation was over" if measured else bell.undone
        bell.may_leave(partial(abandon, seat))
        seat.faults = fault_injection.parse_faults(
            environ.get(fault_injection.FAULT_VARIABLE), world.rank, environ.get("ENTRYPOINT_ATTEMPT", "0")
        )
        seat.faults.strike("start", 0)
        found = environment.remove_conflicting_variables(environ, download=config.data.download)
        environment.limit_openmp_spinning(environ)
        keep_warnings(environ, seat)
        if measured:
            with bell.importing(), uncollected():
                from train.inference import evaluate
            facts = {"as_json": arguments.json, "all_": arguments.all}
            code = evaluate.evaluate_on_rank(config, measured, world, environ, **facts, pulse=pulse)
        else:
            keep_code(environ, config)
            hush_profiler(environ, config)
            with bell.importing(), uncollected():
                from train.run import session
            with timed_lines(arguments, config, seat):
                code = session.run(config, seat, environ, bell, found=found, argv=sys.argv, now=time.time())
    except (Exception, SystemExit) as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises for every data worker that ends, here too
        bell.only_note()
        code = leave(told(error, seat), seat)
    pulse.beat("end")
    return code


@contextmanager
def uncollected() -> Iterator[None]:
    """Imports leave no garbage: looking for it is a fifth of what torch's take. What they have made stays to the end,
    and is not looked through in training either."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def wanted(arguments: argparse.Namespace) -> tuple[RunConfig, Path, ChosenCheckpoint | None]:
    """The configuration, the folder that this rank writes to, and the checkpoint where it is to be measured.

    A measurement leaves the run's folder alone.
    """
    if arguments.evaluate is None:
        config = load.load_config(arguments.config, arguments.overrides)
        return config, run_folder(config), None
    found = checkpoints.reopen_checkpoint(Path(arguments.evaluate))
    config, _ = checkpoints.load_config(found, arguments.config, arguments.overrides)
    return config, Path(arguments.scratch), found


def keep_code(environ: MutableMapping[str, str], config: RunConfig) -> None:
    """Let torch.compile keep its code where the next start finds it, unless the user says where: its own choice, /tmp,
    goes with the container. To be called before torch is loaded."""
    if config.train.compile is not False and not environ.get(CODE):
        environ[CODE] = str(files.private_cache_folder(environ, "compiled") or tempfile.mkdtemp(prefix="compiled-"))


def keep_warnings(environ: MutableMapping[str, str], seat: Seat) -> None:
    """Let NCCL write its warnings into logs/, unless the user says what and where.

    They are the only place where NCCL's start tells its reason, and on the console they and NCCL's version would be in
    the way of a run that is well.
    """
    if seat.world.world_size > 1 and not environ.get("NCCL_DEBUG"):
        environ["NCCL_DEBUG"] = "WARN"
        if not environ.get("NCCL_DEBUG_FILE"):
            seat.warnings = seat.folder.absolute() / "logs" / f"nccl-rank-{seat.world.rank:04d}.log"
            environ["NCCL_DEBUG_FILE"] = str(seat.warnings)


def hush_profiler(environ: MutableMapping[str, str], config: RunConfig) -> None:
    """What torch's profiler tells its own developers, on stderr, is nothing that the user could act on."""
    if config.profile.steps is not None:
        environ.setdefault("KINETO_LOG_LEVEL", SILENT)


def timed_lines(arguments: argparse.Namespace, config: RunConfig, seat: Seat) -> AbstractContextManager[None]:
    """With --profile-lines rank 0 takes the time of each line inside. Not before torch is loaded."""
    if not arguments.profile_lines or seat.world.rank != 0:
        return nullcontext()
    return line_profiling.timed(config, seat.folder, partial(print, flush=True))


def told(error: Exception | SystemExit, seat: Seat | None) -> Failure:
    """Show the error: a failure as its block, a bug of ours with its traceback."""
    error = readable(error)
    failure = error if isinstance(error, Failure) else understood(error, seat)
    if failure is None:
        traceback.print_exception(error)
        return Failure(f"{type(error).__name__}: {error}", fix=REPORT, code=ExitCode.BUG)
    failure.kept = failure.kept or last_checkpoint(seat)
    print_message(str(failure), sys.stderr)  # in one piece: the parent folds whole lines
    return failure


def readable(error: Exception | SystemExit) -> Exception | SystemExit:
    """The error, or one in its place where a user's class fails to say what it is."""
    try:
        str(error)
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}, whose text fails itself").with_traceback(error.__traceback__)


def understood(error: Exception | SystemExit, seat: Seat | None) -> Failure | None:
    """What torch's, the system's or a caller of sys.exit means, where it is known."""
    if isinstance(error, SystemExit):
        return left(error)
    if limited := resource_limit_failure(error):
        return limited
    try:
        from train.distributed import device
        from train.run import errors
    except ImportError:
        return unloaded(error)
    job = seat.job if seat else None
    if seat and seat.warnings:
        with suppress(OSError):  # it is not there where NCCL was not used
            error = device.add_nccl_warning(error, seat.warnings.read_text(errors="replace"))
    return errors.as_failure(error, job.batches if job else None, exact=job is not None and job.exact is not None)


def left(error: SystemExit) -> Failure:
    """Nothing of ours calls sys.exit while a rank is at work: its code would pass for ours, 75 for a save."""
    return Failure(
        "sys.exit was called before this rank's work was done",
        found=f"sys.exit({error.code!r:.200})",
        fix="look for it in your own code or a library (raise an exception there); start the same command again to "
        "resume",
        code=ExitCode.PEER,
    )


def unloaded(error: Exception) -> Failure:
    """Without torch nothing says more: there was no room for it, or its files cannot be read."""
    return Failure(
        "torch cannot be loaded",
        found=str(error),
        fix="raise the limits on memory (ulimit -v, --mem), or look whether the image or installation is whole",
        code=ExitCode.RESOURCE,
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train` writes."""
    parser = argparse.ArgumentParser(prog="train.worker", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--evaluate", metavar="CHECKPOINT")
    parser.add_argument("--scratch", metavar="FOLDER")
    parser.add_argument("--lease", metavar="NUMBER", type=int)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(line_profiling.OPTION, action="store_true")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


def abandon(seat: Seat, failure: Failure) -> NoReturn:
    """End this rank from another thread, while its main thread is deaf."""
    code = leave(told(failure, seat), seat)
    seat.pulse.beat("end")
    vanish(code)


def vanish(code: int) -> NoReturn:
    """End the process without waiting for anything in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def in_a_group() -> bool:
    """Whether this rank has met others and not taken its leave."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_initialized())


def held_up(patience_s: float) -> bool:
    """Whether a thread that is no daemon keeps this process from ending, after so long."""
    until = time.monotonic() + patience_s
    others = [thread for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in others)


def last_checkpoint(seat: Seat | None) -> str | None:
    """Where the next start goes on; None before training began."""
    if seat is None or seat.job is None:
        return None
    from train.checkpoint import store

    with suppress(Failure):
        return next((str(path) for path in reversed(store.list_checkpoints(seat.job.checkpoints).values())), None)
    return None


def leave(failure: Failure, seat: Seat | None) -> int:
    """Leave the reason in errors/, and return its code. Not in a folder that is another start's by now."""
    if seat is not None and not (seat.claim and seat.claim.is_lost()):
        exit_file.write_rank_failure(seat.folder, failure, rank=seat.world.rank, host=socket.gethostname())
        # Who lost a peer, or was told to stop because of it, does not know why; who does may have said so already.
        if failure.code not in (ExitCode.PEER, ExitCode.STOPPED) or exit_file.read_exit(seat.folder) is None:
            exit_file.write_exit(seat.folder, code=failure.code, step=seat.step, cause=failure.what)
    return int(failure.code)


if __name__ == "__main__":
    main()
