"""This module holds the trackers that the project tests with their real packages.

Each is told the run's name when it begins, and the exit code of a start at its end. A later start continues its run.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from accelerate.tracking import GeneralTracker, TensorBoardTracker

from entrypoint import ExitCode

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
