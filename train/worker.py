"""One rank of a training: `python -m train.worker`, started by `train`, ends with an exit code and an exit file.

Whatever takes seconds to import comes after whatever a stop signal or a wrong start needs.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import shlex
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
    ATTEMPT_VARIABLE,
    ExitCode,
    Failure,
    RunError,
    RunErrors,
    attach_heartbeat,
    print_message,
    protect_output_streams,
    remember_typed_words,
    resource_limit_failure,
    world_from_environ,
)
from train import fault_injection, files, line_profiling, plugin
from train.checkpoint import store
from train.checkpoint.store import CommittedCheckpoint
from train.config import environment, load
from train.config.schema import RunConfig
from train.inference import checkpoints
from train.rank_context import RankContext
from train.run.continue_command import TYPED_COMMAND_VARIABLE
from train.run.folder import newest_checkpoint, run_folder
from train.run.lock import RunLock
from train.run.stop import StopSignals

COMPILED_CODE_VARIABLE: Final = "TORCHINDUCTOR_CACHE_DIR"
KINETO_SILENT: Final = "99"
USER_THREADS_TIMEOUT_S: Final = 10.0
REPORT_FIX: Final = "please report it, with logs/ and errors/ of the run's folder"


def main() -> NoReturn:
    """`python -m train.worker [--config FILE] [section.key=value ...]`.

    With `--evaluate CHECKPOINT --scratch FOLDER [--split NAME] [--json] [--per-image FILE] [--report [--explain]]` it
    evaluates instead of training.
    """
    protect_output_streams(os.environ)
    remember_typed_words(shlex.split(os.environ.get(TYPED_COMMAND_VARIABLE, "")))
    sys.unraisablehook = hide_half_built_iterator
    signals = StopSignals()
    try:
        signals.install()
    except RuntimeError as error:  # the system has no thread left
        exit_now(write_exit_files(show_error(error, None), None))
    code = run(sys.argv[1:], os.environ, signals)
    # After an error in a process group, NCCL would wait for ranks that are gone; after it, Python for a user's thread.
    if not is_in_process_group() and not user_threads_run_on(USER_THREADS_TIMEOUT_S):
        atexit._run_exitfuncs()
    exit_now(code)  # in the interpreter's own end, a thread of gloo's has turned a saved rank into a SIGABRT


def hide_half_built_iterator(unraisable: sys.UnraisableHookArgs) -> None:
    """An iterator of torch's that met a limit of the system while it was built raises once more when it is deleted."""
    if "_MultiProcessingDataLoaderIter" not in repr(unraisable.object):
        sys.__unraisablehook__(unraisable)


def run(argv: Sequence[str], environ: MutableMapping[str, str], signals: StopSignals) -> int:
    """Train as one rank; returns the exit code. Errors are shown here, once.

    The heartbeat reports the end, so that the parent notices a process that a user's code ended (os._exit) with 0.
    """
    context, heartbeat = None, attach_heartbeat(environ)
    try:
        arguments = build_parser().parse_args(argv)
        world = world_from_environ(environ)
        config, folder, checkpoint = load_config(arguments)
        # An evaluation loads no optimizer, no loss and no tracker.
        names = (config.data.name, config.model.name) if checkpoint else plugin.names_of_training(config)
        plugin.add_config_folder_to_path(arguments.config, *names)
        context = RankContext(world=world, folder=folder, heartbeat=heartbeat, signals=signals)
        if arguments.lock_number is not None and world.rank == 0:
            context.lock = RunLock(folder=folder, number=arguments.lock_number)
        context.previous_stop = RunErrors.in_run(folder).describe_unfinished_save()
        RunErrors.in_run(folder).clear_rank(rank=world.rank, world_size=world.world_size)
        if checkpoint:
            signals.when = "before the evaluation was over"
        signals.exit_on_signal(partial(exit_from_other_thread, context))
        context.faults = fault_injection.parse_faults(
            environ.get(fault_injection.FAULT_VARIABLE), world.rank, environ.get(ATTEMPT_VARIABLE, "0")
        )
        context.faults.strike("start", 0)
        variables = environment.remove_conflicting_variables(environ, download=config.data.download)
        environment.limit_openmp_spinning(environ)
        redirect_nccl_warnings(environ, context)
        if checkpoint:
            with signals.deferred(), no_garbage_collection():
                from train.inference import evaluate
            code = evaluate.evaluate_on_rank(
                config,
                checkpoint,
                world,
                environ,
                as_json=arguments.json,
                split=arguments.split,
                per_image=arguments.per_image,
                for_report=arguments.report,
                with_heat_maps=arguments.explain,
                heartbeat=heartbeat,
            )
        else:
            keep_compiled_code(environ, config)
            silence_profiler(environ, config)
            with signals.deferred(), no_garbage_collection():
                from train import session
            with profiled_lines(arguments, config, context):
                code = session.train_on_rank(
                    config, context, environ, variables=variables, argv=sys.argv, started_at=time.time()
                )
    except (Exception, SystemExit) as error:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch's raises for every data worker that ends, here too
        signals.record_only()
        code = write_exit_files(show_error(error, context), context, own=isinstance(error, SystemExit))
    heartbeat.beat("end")
    return code


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Imports leave no garbage: collecting takes a fifth of the time that importing torch takes. The imported objects
    live until the end, and are not collected in training either."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def load_config(arguments: argparse.Namespace) -> tuple[RunConfig, Path, CommittedCheckpoint | None]:
    """The configuration, the folder that this rank writes to, and the checkpoint with --evaluate.

    An evaluation does not write into the run's folder.
    """
    if arguments.evaluate is None:
        config = load.load_config(arguments.config, arguments.overrides)
        return config, run_folder(config), None
    checkpoint = store.open_checkpoint(Path(arguments.evaluate), damaged_fix=checkpoints.OTHER_CHECKPOINT_FIX)
    config, _ = checkpoints.load_config(checkpoint, arguments.config, arguments.overrides)
    return config, Path(arguments.scratch), checkpoint


def keep_compiled_code(environ: MutableMapping[str, str], config: RunConfig) -> None:
    """Let torch.compile keep its code where the next start finds it, unless the user says where: its own choice, /tmp,
    is lost with the container. To be called before torch is loaded."""
    if config.train.compile is not False and not environ.get(COMPILED_CODE_VARIABLE):
        folder = files.private_cache_folder(environ, "compiled") or tempfile.mkdtemp(prefix="compiled-")
        environ[COMPILED_CODE_VARIABLE] = str(folder)


def redirect_nccl_warnings(environ: MutableMapping[str, str], context: RankContext) -> None:
    """Let NCCL write its warnings into logs/, unless the user says which and where.

    They alone tell why NCCL could not start; on the console they and NCCL's version would disturb a healthy run.
    """
    world = context.world
    if world.world_size > 1 and not environ.get("NCCL_DEBUG"):
        environ["NCCL_DEBUG"] = "WARN"
        if not environ.get("NCCL_DEBUG_FILE"):
            context.nccl_log = context.folder.absolute() / "logs" / f"nccl-rank-{world.rank:04d}.log"
            environ["NCCL_DEBUG_FILE"] = str(context.nccl_log)


def silence_profiler(environ: MutableMapping[str, str], config: RunConfig) -> None:
    """torch's profiler prints messages for its own developers on stderr."""
    if config.profile.steps is not None:
        environ.setdefault("KINETO_LOG_LEVEL", KINETO_SILENT)


def profiled_lines(
    arguments: argparse.Namespace, config: RunConfig, context: RankContext
) -> AbstractContextManager[None]:
    """With --profile-lines, rank 0 measures the time of each line inside. torch must be loaded before."""
    if not arguments.profile_lines or context.world.rank != 0:
        return nullcontext()
    return line_profiling.timed(config, context.folder, partial(print, flush=True))


def show_error(error: Exception | SystemExit, context: RankContext | None) -> Failure:
    """Print the error: a failure as its block, a bug of ours with its traceback."""
    error = make_printable(error)
    failure = error if isinstance(error, Failure) else explain_error(error, context)
    if failure is None:
        traceback.print_exception(error)
        return Failure(f"{type(error).__name__}: {error}", fix=REPORT_FIX, code=ExitCode.BUG)
    if context and context.trainer:
        failure.kept = failure.kept or newest_checkpoint(context.folder)
    print_message(str(failure), sys.stderr)  # in one piece: the parent folds whole lines
    return failure


def make_printable(error: Exception | SystemExit) -> Exception | SystemExit:
    """The error, or another one if its class (of a user's code) fails to describe it."""
    try:
        str(error)
        return error
    except Exception:
        return RuntimeError(f"{type(error).__name__}, whose text fails itself").with_traceback(error.__traceback__)


def explain_error(error: Exception | SystemExit, context: RankContext | None) -> Failure | None:
    """The failure that an error of torch, of the system or of sys.exit means; None if it is unknown."""
    if isinstance(error, SystemExit):
        return sys_exit_failure(error)
    if limit_failure := resource_limit_failure(error):
        return limit_failure
    try:
        from train.distributed import device
        from train.run import errors
    except ImportError:
        return torch_not_loaded_failure(error)
    trainer = context.trainer if context else None
    if context and context.nccl_log:
        with suppress(OSError):  # it does not exist if NCCL was not used
            error = device.add_nccl_warning(error, context.nccl_log.read_text(errors="replace"))
    is_fixed = trainer is not None and trainer.parallel.fixes_micro_batch
    return errors.as_failure(error, trainer.batches if trainer else None, exact=is_fixed)


def sys_exit_failure(error: SystemExit) -> Failure:
    """Nothing of ours calls sys.exit while a rank works. Its code would be taken for ours: 75 for a save."""
    return Failure(
        "sys.exit was called before this rank's work was done",
        found=f"sys.exit({error.code!r:.200})",
        fix="look for it in your own code or a library (raise an exception there); start the same command again to "
        "resume",
        code=ExitCode.PEER,
    )


def torch_not_loaded_failure(error: Exception) -> Failure:
    """Without torch no error says more: there was no memory for it, or its files cannot be read."""
    return Failure(
        "torch cannot be loaded",
        found=str(error),
        fix="raise the limits on memory (ulimit -v, --mem), or check that the image or installation is complete",
        code=ExitCode.RESOURCE,
    )


def build_parser() -> argparse.ArgumentParser:
    """The command line that `train` writes."""
    parser = argparse.ArgumentParser(prog="train.worker", allow_abbrev=False)
    parser.add_argument("--config", metavar="FILE")
    parser.add_argument("--evaluate", metavar="CHECKPOINT")
    parser.add_argument("--scratch", metavar="FOLDER")
    parser.add_argument("--lease", metavar="NUMBER", type=int, dest="lock_number")
    parser.add_argument("--split", default="validation")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--per-image", metavar="FILE", type=Path)
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--explain", action="store_true")
    parser.add_argument(line_profiling.OPTION, action="store_true")
    parser.add_argument("overrides", nargs="*", metavar="section.key=value")
    return parser


def exit_from_other_thread(context: RankContext, failure: Failure) -> NoReturn:
    """End this rank while its main thread does not react."""
    code = write_exit_files(show_error(failure, context), context)
    context.heartbeat.beat("end")
    exit_now(code)


def exit_now(code: int) -> NoReturn:
    """End the process without waiting for anything in it."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def is_in_process_group() -> bool:
    """Whether this rank has met others and not left their process group."""
    distributed = sys.modules.get("torch.distributed")
    return distributed is not None and bool(distributed.is_initialized())


def user_threads_run_on(timeout_s: float) -> bool:
    """Whether a non-daemon thread still runs after the time-out; Python would wait for it. Names such threads."""
    until = time.monotonic() + timeout_s
    threads = [thread for thread in threading.enumerate() if not thread.daemon]
    others = [thread for thread in threads if thread is not threading.main_thread()]
    for thread in others:
        thread.join(max(0.0, until - time.monotonic()))
    running = [thread.name for thread in others if thread.is_alive()]
    for name in running:
        print_message(f"warning: {name} is still busy after {timeout_s:g} s; its work is cut off", sys.stderr)
    return bool(running)


def write_exit_files(failure: Failure, context: RankContext | None, *, own: bool = False) -> int:
    """Write the reason into errors/, tell the trackers, and return the code.

    Not into a folder that another start has locked by now. own: this rank's own error, whatever its code usually means.
    """
    if context is not None:
        errors = RunErrors.in_run(context.folder)
        if not (context.lock and context.lock.is_lost()):
            # A rank that lost a peer, or was stopped because of it, does not know the cause.
            symptom, rank = failure.code.symptom and not own, context.world.rank
            errors.write_cause(
                RunError(failure=failure, host=socket.gethostname(), rank=rank, step=context.step, symptom=symptom)
            )
        exit_record = errors.read_exit()
        context.end_trackers(exit_record.code if exit_record else failure.code)
    return int(failure.code)


if __name__ == "__main__":
    main()
