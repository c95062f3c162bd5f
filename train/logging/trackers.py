"""Trackers (wandb, mlflow, ...) get the values of metrics.jsonl through Accelerate's tracker classes.

Each tracker works in its own thread, so one that fails or blocks neither stops nor delays the training.
"""

from __future__ import annotations

import importlib
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from accelerate.tracking import LOGGER_TYPE_TO_CLASS, GeneralTracker

from entrypoint import ExitCode, Failure, redact_value, redact_words
from train import files, plugin
from train.config import schema
from train.config.schema import RunConfig

TRACKERS_KEY: Final = "log.trackers"
TRACKERS_FOLDER: Final = "trackers"  # of a run folder: for trackers that write files, and for RUN_IDS_FILE
RUN_IDS_FILE: Final = "run-ids.json"
MAX_WAITING: Final = 1000  # log points and evaluations that a tracker may lag behind
MAX_REASON_CHARACTERS: Final = 300
Points = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumableTracker:
    """How a tracker's class continues a run.

    name, id: the arguments for the run's name and id. read_id: reads the id of the run that was begun. arguments:
    further ones. project_variable: overrides the project, which Accelerate passes to the library in its place.
    """

    name: str
    id: str
    read_id: Callable[[Any], str]
    arguments: Mapping[str, Any]
    project_variable: str = ""


IMPORTED_MODULES: Final = {"tensorboard": "torch.utils.tensorboard"}  # what a tracker imports, if it is not its name
# dvclive goes on in its folder. All other trackers begin a new run with each start.
RESUMABLE_TRACKERS: Final[Mapping[str, ResumableTracker]] = {
    "wandb": ResumableTracker(
        name="name",
        id="id",
        read_id=lambda run: str(run.id),
        arguments={"resume": "allow"},
        project_variable="WANDB_PROJECT",
    ),
    "mlflow": ResumableTracker(name="run_name", id="run_id", read_id=lambda run: str(run.info.run_id), arguments={}),
}


def load_tracker_classes(names: Sequence[str]) -> dict[str, type[GeneralTracker]]:
    """The classes of `log.trackers`: Accelerate's, and the user's own (package.module:Class). All ranks call it.

    Raises:
        Failure: USAGE as `plugin.load_factory`, or for what is no subclass of GeneralTracker.
    """
    return {name: _tracker_class(name) for name in names}


def _tracker_class(name: str) -> type[GeneralTracker]:
    if not schema.is_factory(name):
        return LOGGER_TYPE_TO_CLASS[name]  # type: ignore[no-any-return]
    loaded: Any = plugin.load_factory(name, TRACKERS_KEY)
    if isinstance(loaded, type) and issubclass(loaded, GeneralTracker):
        return loaded
    raise Failure(
        f"{TRACKERS_KEY} {name} is no tracker",
        found=f"a {type(loaded).__name__}",
        expected="a subclass of accelerate.tracking.GeneralTracker",
        fix="name such a class",
        code=ExitCode.USAGE,
    )


class Trackers:
    """The trackers of this start. Without `start_trackers` there are none."""

    def __init__(self, threads: Sequence[TrackerThread] = ()) -> None:
        self._threads = threads

    def log(self, points: Points, *, step: int) -> None:
        """Pass the points on. Never blocks, never fails."""
        for thread in self._threads:
            thread.log(points, step=step)

    def end(self) -> None:
        """Let each tracker finish. Does not wait: the worker waits for threads once all else is done."""
        for thread in self._threads:
            thread.end()


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
        folder: of the run. environ: of this process; wandb's files go into `folder` unless it says where.
    """
    if not classes:
        return Trackers()
    own_folder = folder / TRACKERS_FOLDER
    with suppress(OSError):  # the trackers that need the folder say so
        own_folder.mkdir(exist_ok=True)
    environ.setdefault("WANDB_DIR", str(own_folder))
    values = hyperparameters(config)
    run_ids = RunIds(own_folder / RUN_IDS_FILE)
    threads = []
    for name, tracker_class in classes.items():
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
) -> Iterator[GeneralTracker]:
    """Begin a run of the tracker, or continue that of an earlier start, which has its hyperparameters.

    Yields the tracker as soon as there is one, then begins.
    """
    project = Path(config.run.output_dir).absolute().name or config.run.name
    arguments: dict[str, Any] = {}
    resumable, run_id = RESUMABLE_TRACKERS.get(name), None
    if name == "dvclive":  # by default each start deletes the values of the one before, in the working folder
        arguments = {"dir": str(folder / name), "resume": True, "dvcyaml": None, "save_dvc_exp": False}
    if resumable is not None:
        run_id = run_ids.read().get(name)
        arguments = {**resumable.arguments, resumable.name: config.run.name, resumable.id: run_id}
        project = environ.get(resumable.project_variable) or project
    folders = [str(folder)] if tracker_class.requires_logging_directory else []
    tracker = tracker_class(project, *folders, **arguments)
    yield tracker
    tracker.start()
    if resumable is not None and run_id is None:
        run_ids.write(name, resumable.read_id(tracker.tracker))
    if run_id is None:  # mlflow refuses to change a value, such as the train.epochs of a run that is continued
        tracker.store_init_configuration(dict(values))


class TrackerThread:
    """One tracker in a thread of its own. Its first error, or a queue that is full, switches it off with a warning."""

    def __init__(self, name: str, begin: Callable[[], Iterator[GeneralTracker]], warn: Callable[[str], None]) -> None:
        self._name, self._begin, self._warn = name, begin, warn
        self._is_off = False
        self._waiting: queue.Queue[tuple[Points, int] | None] = queue.Queue(MAX_WAITING)
        # No daemon: the worker waits some seconds for it, and skips the library's exit handlers while it is blocked.
        threading.Thread(target=self._work, name=f"the tracker {name}").start()

    def log(self, points: Points, *, step: int) -> None:
        """Pass the points to the thread."""
        if self._is_off:
            return
        try:
            self._waiting.put_nowait((points, step))
        except queue.Full:
            self._switch_off(f"{MAX_WAITING} records wait for it")

    def end(self) -> None:
        """Let the tracker finish what was logged."""
        with suppress(queue.Full):  # then it is switched off
            self._waiting.put_nowait(None)

    def _work(self) -> None:
        tracker: GeneralTracker | None = None
        try:
            for tracker in self._begin():  # noqa: B007 - used below
                pass
            assert tracker is not None
            while (item := self._waiting.get()) is not None and not self._is_off:
                points, step = item
                tracker.log(dict(points), step=step)
            tracker.finish()
        except (Exception, SystemExit) as error:
            first_line = f"{type(error).__name__}: {error}".splitlines()[0]
            self._switch_off(redact_words([first_line])[0][:MAX_REASON_CHARACTERS])
            with suppress(Exception, SystemExit):
                if tracker is not None:
                    tracker.finish()

    def _switch_off(self, reason: str) -> None:
        if not self._is_off:
            self._is_off = True
            self._warn(f"warning: the tracker {self._name} is switched off, training goes on: {reason}")


class RunIds:
    """The ids of this run in the trackers that can continue it, in a file of the run's folder."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, threading.Lock()

    def read(self) -> dict[str, str]:
        """By tracker. Empty if there is no such file."""
        # Trackers make a folder of an id: only a plain name stays where they put it.
        return {name: each for name, each in files.read_json_object(self._path).items() if files.is_plain_name(each)}

    def write(self, name: str, run_id: str) -> None:
        """Add the id of a tracker's run."""
        with self._lock:
            files.write_json(self._path, self.read() | {name: run_id})


def hyperparameters(config: RunConfig) -> dict[str, bool | int | float | str]:
    """`section.key` -> value, without secrets. Lists and null are JSON."""
    return dict(_flatten("", asdict(config)))


def _flatten(prefix: str, values: Mapping[str, Any]) -> Iterator[tuple[str, bool | int | float | str]]:
    for name, value in values.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict):
            yield from _flatten(f"{key}.", value)
        elif isinstance(value, bool | int | float):
            yield key, value
        else:
            text = value if isinstance(value, str) else json.dumps(value)
            yield key, redact_value(key, text)
