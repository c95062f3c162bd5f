"""Trackers (wandb, mlflow, ...) get the values of metrics.jsonl, the run's name, and how each start ended.

Each tracker works in its own thread, so one that fails or blocks neither stops nor delays the training. CLASSES are
those that the project tests with their real packages: a later start continues their run.
"""

from __future__ import annotations

import importlib
import json
import queue
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

from accelerate.tracking import GeneralTracker, TensorBoardTracker

from entrypoint import ExitCode, Failure, redact_value, redact_words
from train import files, plugin
from train.config import schema
from train.config.schema import RunConfig

TRACKERS_KEY: Final = "log.trackers"
TRACKERS_FOLDER: Final = "trackers"  # of a run folder: for trackers that write files, and for RUN_IDS_FILE
RUN_IDS_FILE: Final = "run-ids.json"
MAX_WAITING: Final = 1000  # log points and evaluations that a tracker may lag behind
MAX_REASON_CHARACTERS: Final = 300
RETRY_S: Final = 10.0  # after a first error, and twice as long after each further one
MAX_DOUBLINGS: Final = 6
MAX_ATTEMPTS: Final = 3  # for a record that fails while others pass
PAUSES_AT_END_S: Final = (0.0, 1.0, 3.0)  # before each of the last attempts
INODE_KEY: Final = "folder_inode"
Points = Mapping[str, float]
IMPORTED_MODULES: Final = {"tensorboard": "torch.utils.tensorboard"}  # what a tracker imports, if it is not its name
STEP_KEY: Final = "step"
# Any other exit code: FAILED.
MLFLOW_STATUSES: Final[Mapping[int, str]] = {ExitCode.OK: "FINISHED", ExitCode.STOPPED: "KILLED"}


class ResumableTracker(GeneralTracker):  # type: ignore[misc]
    """A tracker whose run a later start continues.

    exit_code: of the start; it is set before `finish`, and until then that of a failure. project_variable: of the
    library; it overrides the project. variables: those that keep the library's files in `{folder}`, whose address is
    `{uri}`; they are set unless the user has set them.
    """

    requires_logging_directory = False
    project_variable = ""
    variables: ClassVar[Mapping[str, str]] = {}
    tracker: Any = None  # the library's own run
    exit_code: int = ExitCode.BUG

    def __init__(self, project: str, *, run_name: str, run_id: str | None) -> None:
        """run_id: of the run that an earlier start began; None begins one."""
        super().__init__()
        self.project, self.run_name, self.run_id = project, run_name, run_id


class WandbTracker(ResumableTracker):
    """Weights & Biases. A start that stopped in order to be continued is `preempted`, not `finished`."""

    name = "wandb"
    project_variable = "WANDB_PROJECT"

    variables: ClassVar[Mapping[str, str]] = {
        "WANDB_DIR": "{folder}",
        **{f"WANDB_{name.upper()}_DIR": f"{{folder}}/wandb/{name}" for name in ("cache", "config", "data", "artifact")},
    }

    def start(self) -> None:
        import wandb

        project = re.sub(r"[/\\#?%:]", "-", self.project)  # wandb allows none of these
        self.tracker = wandb.init(project=project, name=self.run_name, id=self.run_id, resume="allow")
        self.run_id = str(self.tracker.id)
        self.tracker.define_metric("*", step_metric=STEP_KEY)
        self._step, self._row = -1, int(self.tracker.step) - 1

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        self.tracker.config.update(values, allow_val_change=True)

    def log(self, values: Mapping[str, Any], step: int, **kwargs: Any) -> None:
        # wandb ignores a row with a lower number than the last, as a step has after a rollback or a kill.
        if step != self._step:
            self._step, self._row = step, max(step, self._row + 1)
        self.tracker.log({**values, STEP_KEY: step}, step=self._row)

    def finish(self) -> None:
        if self.exit_code == ExitCode.STOPPED:
            self.tracker.mark_preempting()
        self.tracker.finish(exit_code=self.exit_code)


class MLflowTracker(ResumableTracker):
    """MLflow. A start that stopped in order to be continued is KILLED, not FINISHED."""

    name = "mlflow"
    project_variable = "MLFLOW_EXPERIMENT_NAME"

    variables: ClassVar[Mapping[str, str]] = {
        "MLFLOW_TRACKING_URI": "sqlite:///{folder}/mlflow.db",
        # Its own default is a folder of the working folder, whose path must hold no quote: it becomes SQL.
        "_MLFLOW_SERVER_ARTIFACT_ROOT": "{uri}/mlflow-artifacts",
        # What failed is sent again later: else a server that is gone would hold up each record for minutes.
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
        "MLFLOW_DISABLE_TELEMETRY": "true",
    }

    def start(self) -> None:
        import mlflow

        try:
            self.tracker = mlflow.start_run(run_id=self.run_id) if self.run_id else None
        except mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":  # as on another server
                raise
        if self.tracker is None:
            # Not a search for the name, which a quote in it would end.
            experiment = mlflow.get_experiment_by_name(self.project)
            experiment_id = experiment.experiment_id if experiment else mlflow.create_experiment(self.project)
            self.tracker = mlflow.start_run(experiment_id=experiment_id, run_name=self.run_name)
        self.run_id = str(self.tracker.info.run_id)

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        import mlflow

        for some in _split(values, mlflow.utils.validation.MAX_PARAMS_TAGS_PER_BATCH):
            mlflow.log_params(some)

    def log(self, values: Mapping[str, Any], step: int, **kwargs: Any) -> None:
        import mlflow

        for some in _split(values, mlflow.utils.validation.MAX_METRICS_PER_BATCH):
            mlflow.log_metrics(some, step=step)

    def finish(self) -> None:
        import mlflow

        mlflow.end_run(MLFLOW_STATUSES.get(self.exit_code, "FAILED"))


def _split(values: Mapping[str, Any], size: int) -> Iterator[dict[str, Any]]:
    """The values in parts of at most this size, more than which MLflow refuses."""
    items = [*values.items()]
    return (dict(items[at : at + size]) for at in range(0, len(items), size))


# log.trackers: the name, which is also that of the package -> the class.
CLASSES: Final[Mapping[str, type[GeneralTracker]]] = {
    each.name: each for each in (MLflowTracker, TensorBoardTracker, WandbTracker)
}


def load_tracker_classes(names: Sequence[str]) -> dict[str, type[GeneralTracker]]:
    """The classes of `log.trackers`: ours, and the user's own (package.module:Class). All ranks call it.

    Raises:
        Failure: USAGE as `plugin.load_factory`, or for what is no subclass of GeneralTracker.
    """
    classes: dict[str, Any] = {}
    for name in names:
        classes[name] = loaded = plugin.load_factory(name, TRACKERS_KEY) if schema.is_factory(name) else CLASSES[name]
        if not isinstance(loaded, type) or not issubclass(loaded, GeneralTracker):
            raise Failure(
                f"{TRACKERS_KEY} {name} is no tracker",
                found=f"a {type(loaded).__name__}",
                expected="a subclass of accelerate.tracking.GeneralTracker",
                fix="name such a class",
                code=ExitCode.USAGE,
            )
    return classes


class Trackers:
    """The trackers of this start. Without `start_trackers` there are none."""

    def __init__(self, threads: Sequence[TrackerThread] = ()) -> None:
        self._threads = threads

    def log(self, points: Points, *, step: int) -> None:
        """Pass the points on. Never blocks, never fails."""
        for thread in self._threads:
            thread.log(points, step=step)

    def end(self, exit_code: int | None) -> None:
        """Let each tracker finish; only the first call counts. Does not wait: the worker does, once all else is done.

        exit_code: of this start, which the trackers are told; None tells them nothing.
        """
        for thread in self._threads:
            thread.end(exit_code)
        self._threads = ()


def start_trackers(
    classes: Mapping[str, type[GeneralTracker]],
    config: RunConfig,
    folder: Path,
    environ: MutableMapping[str, str],
    warn: Callable[[str], None],
) -> Trackers:
    """Start a thread for each tracker, on rank 0. A tracker that cannot be started gives a warning.

    The project is called like run.output_dir, the run like run.name.

    Args:
        folder: of the run; the trackers' files go there, unless `environ` (of this process) says where.
    """
    if not classes:
        return Trackers()
    own_folder = folder.absolute() / TRACKERS_FOLDER
    with suppress(OSError):  # the trackers that need the folder say so
        own_folder.mkdir(exist_ok=True)
    run_ids = RunIds(own_folder / RUN_IDS_FILE)
    if run_ids.is_of_copy:
        warn(f"note: {folder} is a copy, or was moved from another disk: it gets runs of its own in its trackers")
    values = hyperparameters(config)
    threads = []
    for name, tracker_class in classes.items():
        if issubclass(tracker_class, ResumableTracker):
            for variable, value in tracker_class.variables.items():
                environ.setdefault(variable, value.format(folder=own_folder, uri=own_folder.as_uri()))
        with suppress(Exception, SystemExit):  # the thread meets the same error, and reports it
            # Not in the thread: data workers are forked, and a lock of an import would stay locked in them. Two
            # threads that import a package at the same time may also meet in a deadlock.
            importlib.import_module(IMPORTED_MODULES.get(name) or name.partition(":")[0])
        begin = partial(_begin, name, tracker_class, config, own_folder, environ, run_ids, values)
        threads.append(TrackerThread(name, begin, warn))
    return Trackers(threads)


def _begin(
    name: str,
    tracker_class: type[GeneralTracker],
    config: RunConfig,
    folder: Path,
    environ: Mapping[str, str],
    run_ids: RunIds,
    values: Mapping[str, Any],
) -> GeneralTracker:
    """Begin a run of the tracker, or continue that of an earlier start, which has its hyperparameters."""
    project = Path(config.run.output_dir).absolute().name or config.run.name
    run_id = None
    if issubclass(tracker_class, ResumableTracker):
        run_id = run_ids.read().get(name)
        project = environ.get(tracker_class.project_variable) or project
        tracker = tracker_class(project, run_name=config.run.name, run_id=run_id)
    else:
        folders = [str(folder)] if tracker_class.requires_logging_directory else []
        tracker = tracker_class(project, *folders)
    try:
        tracker.start()
        if run_id is None or tracker.run_id != run_id:  # mlflow refuses to change the values of a run that continues
            tracker.store_init_configuration(dict(values))
            if isinstance(tracker, ResumableTracker):
                run_ids.write(name, str(tracker.run_id))
    except BaseException:
        with suppress(Exception, SystemExit):
            tracker.finish()
        raise
    return tracker


class TrackerThread:
    """One tracker in a thread of its own. Records that an error kept from it are sent again later, in their order.

    The first error gives a warning. While MAX_WAITING records wait, further ones are lost; the end says how many.
    """

    def __init__(self, name: str, begin: Callable[[], GeneralTracker], warn: Callable[[str], None]) -> None:
        self._name, self._begin, self._warn = name, begin, warn
        self._tracker: GeneralTracker | None = None
        self._queue: queue.SimpleQueue[tuple[Points, int] | None] = queue.SimpleQueue()
        self._unsent: deque[tuple[Points, int]] = deque()
        self._lost = self._failures = 0
        self._has_warned, self._retry_at = False, 0.0
        self._exit_code: int | None = None
        # No daemon: the worker waits some seconds for it, and skips the library's exit handlers while it is blocked.
        threading.Thread(target=self._work, name=f"the tracker {name}").start()

    def log(self, points: Points, *, step: int) -> None:
        """Pass the points to the thread."""
        if self._queue.qsize() + len(self._unsent) < MAX_WAITING:
            self._queue.put((points, step))
        else:
            self._lost += 1
            self._complain(f"{MAX_WAITING} records wait for it")

    def end(self, exit_code: int | None) -> None:
        """Let the tracker get what was logged, then the exit code."""
        self._exit_code = exit_code
        self._queue.put(None)

    def _work(self) -> None:
        self._attempt(self._send_records)  # begins
        for record in iter(self._queue.get, None):
            self._unsent.append(record)
            if time.monotonic() >= self._retry_at and not self._attempt(self._send_records):
                self._skip_refused_record()
        is_sent = self._insist(self._send_records)
        self._lost += len(self._unsent)
        is_told = self._exit_code is None or (self._insist if is_sent else self._attempt)(self._finish)
        if self._lost:
            self._warn(f"warning: the tracker {self._name} lacks {self._lost:,} records; metrics.jsonl has all")
        elif self._has_warned and is_sent:
            self._warn(f"note: the tracker {self._name} has all records now")
        if not is_told:
            self._warn(f"warning: the tracker {self._name} was not told that this start ended")

    def _send_records(self) -> None:
        self._tracker = self._tracker or self._begin()
        while self._unsent:
            self._send_record(0)

    def _send_record(self, index: int) -> None:
        assert self._tracker is not None
        points, step = self._unsent[index]
        self._tracker.log(dict(points), step=step)
        del self._unsent[index]

    def _finish(self) -> None:
        if self._tracker is not None:
            with suppress(AttributeError):  # of a user's own class
                self._tracker.exit_code = self._exit_code
            self._tracker.finish()

    def _attempt(self, action: Callable[[], None]) -> bool:
        """Whether the action had no error. After one, the next attempt has to wait."""
        try:
            action()
        except (Exception, SystemExit) as error:
            self._failures += 1
            self._retry_at = time.monotonic() + RETRY_S * 2 ** min(self._failures - 1, MAX_DOUBLINGS)
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            self._complain(redact_words([first_line])[0][:MAX_REASON_CHARACTERS])
            return False
        self._failures = 0
        return True

    def _insist(self, action: Callable[[], None]) -> bool:
        """Several attempts at the end: whoever holds a lock may let it go."""
        for pause_s in PAUSES_AT_END_S:
            time.sleep(pause_s)
            if self._attempt(action):
                return True
        return False

    def _skip_refused_record(self) -> None:
        """Leave out the first record if a later one passes: the library refuses it, and would refuse it for ever."""
        if self._failures >= MAX_ATTEMPTS and self._tracker is not None and len(self._unsent) > 1:
            with suppress(Exception, SystemExit):
                self._send_record(-1)
                self._unsent.popleft()
                self._lost += 1

    def _complain(self, reason: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            text = f"warning: the tracker {self._name} fails, training goes on (its records are sent later): {reason}"
            self._warn(text)


class RunIds:
    """The ids of this run in the trackers that can continue it, in a file of the run's folder.

    The file names its folder's inode: a copy of the folder must not write into the runs of the original. A path would
    not do, since a container may show the same folder at another one.
    """

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    @property
    def is_of_copy(self) -> bool:
        """Whether the file was written in another folder."""
        inode = files.read_json_object(self._path).get(INODE_KEY)
        return inode is not None and inode != self._path.parent.stat().st_ino

    def read(self) -> dict[str, str]:
        """By tracker. Empty if there is no such file, or if it is of another folder."""
        values = {} if self.is_of_copy else files.read_json_object(self._path)
        # Trackers make a folder of an id: only a plain name stays where they put it.
        return {name: run_id for name, run_id in values.items() if files.is_plain_name(run_id)}

    def write(self, name: str, run_id: str) -> None:
        """Add the id of a tracker's run."""
        with self._lock:
            ids = self.read() | {name: run_id}
            files.write_json(self._path, {INODE_KEY: self._path.parent.stat().st_ino} | ids)


def hyperparameters(config: RunConfig) -> dict[str, bool | int | float | str]:
    """`section.key` -> value, without secrets. Lists and null are JSON."""
    return {
        key: value
        if isinstance(value, bool | int | float)
        else redact_value(key, value if isinstance(value, str) else json.dumps(value))
        for key, value in _flatten("", asdict(config))
    }


def _flatten(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flatten(f"{prefix}{name}.", value)
        else:
            yield f"{prefix}{name}", value
