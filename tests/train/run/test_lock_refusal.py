"""A node that cannot be used leaves word for the job script."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from entrypoint import ExitCode, Failure
from train.run import lock

IN_A_JOB = {"SLURM_JOB_ID": "7"}
NAME = f"node-{socket.gethostname()}.json"


def fail(folder: Path, code: ExitCode, environ: dict[str, str]) -> list[str]:
    """The files in errors/ after a failure in planning."""
    with pytest.raises(Failure), lock.record_node_failure(folder, environ):
        raise Failure("no GPU can be used here", fix="use another", code=code)
    return [path.name for path in folder.glob("errors/*")]


def test_an_unusable_node_of_a_job_is_named_with_its_code(tmp_path: Path) -> None:
    assert fail(tmp_path, ExitCode.NODE, IN_A_JOB) == [NAME]
    told = json.loads((tmp_path / "errors" / NAME).read_text())
    assert (told["code"], told["host"]) == (78, socket.gethostname())


def test_the_code_stands_before_the_host_as_job_scripts_read_it(tmp_path: Path) -> None:
    fail(tmp_path, ExitCode.NODE, IN_A_JOB)
    text = (tmp_path / "errors" / NAME).read_text()
    assert text.index('"code": 78') < text.index('"host"')


def test_a_node_that_does_not_fit_the_image_leaves_the_code_that_srun_hides(tmp_path: Path) -> None:
    assert fail(tmp_path, ExitCode.IMAGE_MISMATCH, IN_A_JOB) == [NAME]


@pytest.mark.parametrize("code", [ExitCode.USAGE, ExitCode.LAUNCH_CONFLICT])
def test_what_is_wrong_on_every_node_is_not_said_of_one(tmp_path: Path, code: ExitCode) -> None:
    assert fail(tmp_path, code, IN_A_JOB) == []


def test_it_is_named_as_slurm_names_it(tmp_path: Path) -> None:
    assert fail(tmp_path, ExitCode.NODE, {**IN_A_JOB, "SLURMD_NODENAME": "gpu007"}) == ["node-gpu007.json"]


def test_outside_a_job_nothing_is_written(tmp_path: Path) -> None:
    assert fail(tmp_path, ExitCode.NODE, {}) == []


def test_a_node_that_works_again_forgets_what_it_said(tmp_path: Path) -> None:
    fail(tmp_path, ExitCode.NODE, IN_A_JOB)
    lock.forget_node_failure(tmp_path, IN_A_JOB)
    assert not list(tmp_path.glob("errors/*"))


@pytest.mark.parametrize(("job", "names"), [("7", [NAME]), ("8", [])])
def test_nothing_is_left_in_a_folder_that_another_job_is_at_work_in(tmp_path: Path, job: str, names: list[str]) -> None:
    lock.lock_run_folder(
        tmp_path, lock.this_start_as_holder({"SLURM_JOB_ID": job}, launch_id="theirs", started_at=0.0), None, print
    )
    assert fail(tmp_path, ExitCode.NODE, IN_A_JOB) == names
