"""The job scripts, read and not run: those in launch/, and those that `entrypoint job-script` writes."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import jsonschema
import pytest
import yaml
from machines import machine

from entrypoint import ExitCode, Failure, LaunchOptions
from entrypoint import __main__ as main
from entrypoint import job_script as job_scripts
from entrypoint.launchers import detect_allocation
from train.config import load
from train.run import deadline

LAUNCH = Path(__file__).parents[1] / "launch"
NO_JOBS = ("workstation.sh", "scaling.sh")  # started by hand, and never as a job
OTHERS = {file: name for name, file in job_scripts.OTHER_SCHEDULERS.items()}  # not Slurm's
SCRIPTS = sorted(path for path in LAUNCH.glob("*.sh") if path.name not in (*NO_JOBS, *OTHERS))
KUBERNETES = json.loads((Path(__file__).parent / "data" / "kubernetes.json").read_text())
SETTINGS = sorted([LAUNCH / "site.env.example", *LAUNCH.glob("fabric/*.env")])
# The tasks of one node and their share of it; what is not here belongs to the site or to the user.
SHAPES = {
    "singlegpu": ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=1"),
    "multigpu": ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=4"),
    "multigpu_srun": ("--nodes=1", "--ntasks-per-node=4", "--gpus-per-node=4"),
    "multinode": ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4"),
    "multinode_srun": ("--nodes=2", "--ntasks-per-node=4", "--gpus-per-node=4"),
    "sweep": ("--nodes=1", "--ntasks-per-node=1", "--gpus-per-node=1"),
    "torchrun": ("--nodes=2", "--ntasks-per-node=1", "--gpus-per-node=4"),
}


def name_of(path: Path) -> str:
    return str(path.relative_to(LAUNCH))


def options(script: Path) -> list[str]:
    """The options of all #SBATCH lines."""
    return options_in(script.read_text())


def options_in(text: str) -> list[str]:
    lines = re.findall(r"^#SBATCH (.*?)(?: #.*)?$", text, re.M)
    return [word for line in lines for word in line.split()]


def job_script(*words: str) -> str:
    """What `entrypoint job-script` writes."""
    return job_scripts.write_job_script(main.build_parser().parse_args(["job-script", *words]))


def test_every_script_that_was_promised_is_there() -> None:
    assert {path.stem for path in SCRIPTS} == set(SHAPES)


@pytest.mark.parametrize("script", [*sorted(LAUNCH.glob("*.sh")), *(LAUNCH / name for name in OTHERS)], ids=name_of)
def test_no_line_of_a_script_is_longer_than_100_columns(script: Path) -> None:
    assert [line for line in script.read_text().splitlines() if len(line) > 100] == []


@pytest.mark.parametrize("name", ["multigpu.sh", "sweep.sh"])
def test_a_beginner_reads_the_whole_script_on_one_screen(name: str) -> None:
    lines = (LAUNCH / name).read_text().splitlines()
    assert len(lines) <= 42
    assert len([line for line in lines if line and not line.startswith("#")]) <= 14


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_is_what_entrypoint_job_script_writes(script: Path) -> None:
    assert script.read_text() == job_script(script.stem), f"entrypoint job-script {script.stem} > launch/{script.name}"


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_can_be_run_directly(script: Path) -> None:
    assert script.stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_asks_for_the_shape_that_its_name_says(script: Path) -> None:
    assert set(SHAPES[script.stem]) <= set(options(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_survives_preemption_and_a_requeue(script: Path) -> None:
    signal = "TERM" if script.stem == "torchrun" else "USR1"
    assert {"--open-mode=append", "--requeue", f"--signal={signal}@120"} <= set(options(script))


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_memory_and_exclusive_use_are_shown_and_not_asked_for(script: Path) -> None:
    shown = re.findall(r"^##SBATCH (--(?:mem|exclusive)\S*) +# \S", script.read_text(), re.M)
    assert shown == (["--mem=64G"] if script.stem == "sweep" else ["--mem=64G", "--exclusive"])
    assert not [word for word in options(script) if word.startswith(("--mem", "--exclusive"))]


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_a_script_holds_nothing_of_a_site(script: Path) -> None:
    assert not [word for word in options(script) if word.startswith(("--account", "--partition", "--qos", "--res"))]


@pytest.mark.parametrize("path", SETTINGS, ids=name_of)
def test_every_line_of_settings_has_its_reason_above_it(path: Path) -> None:
    blocks = path.read_text().split("\n\n")[1:]
    assert blocks
    for block in blocks:
        assert re.match(r"# [A-Z\"].*[.:]", block), block


@pytest.mark.parametrize("path", SETTINGS, ids=name_of)
def test_settings_read_twice_are_the_same_as_once(path: Path) -> None:
    text = re.sub(r"^# (?=export|ulimit)", "", path.read_text(), flags=re.M)  # what is only shown, too
    shown = [subprocess.run(
        ["bash", "-c", "set -eu; " + '. /dev/stdin <<<"$0"; ' * times + "export -p", text],
        capture_output=True, text=True, timeout=20, check=True,
    ).stdout for times in (1, 2)]  # fmt: skip
    assert shown[0] == shown[1]
    assert "declare -x" in shown[0]


@pytest.mark.parametrize("path", [path for path in SETTINGS if path.parent.name == "fabric"], ids=name_of)
def test_a_fabric_says_whether_it_was_run(path: Path) -> None:
    head = path.read_text().split("\n\n")[0]
    assert ("Run here" in head) == (path.stem == "ethernet")
    assert "ot run here" in head


@pytest.mark.parametrize("page", ["README.md", "docs/clusters.md", "docs/tutorial/05-imbalance-and-exercises.md"])
def test_a_page_that_names_the_sweep_shows_how_its_file_is_written(page: str, tmp_path: Path) -> None:
    text = (LAUNCH.parent / page).read_text()
    command = re.search(r"printf '.*' .* > lr\.txt", text)
    assert command
    assert command.start() < text.index("launch/sweep.sh")
    subprocess.run(["bash", "-c", command[0]], cwd=tmp_path, timeout=20, check=True)
    rates = [load.load_config(None, line.split()).optim.lr for line in (tmp_path / "lr.txt").read_text().splitlines()]
    assert rates == [0.01, 0.1]


def test_a_site_s_own_settings_are_not_committed() -> None:
    ignored = subprocess.run(["git", "check-ignore", "launch/site.env"], cwd=LAUNCH.parent, timeout=20)
    assert ignored.returncode == 0


def test_a_script_for_a_site_holds_what_was_asked_for() -> None:
    words = "--nodes=4 --gpus-per-node=8 --time=8:00:00 --partition=gpu-a100 --account=p1 --mem=0 --cpus-per-gpu=12"
    words += " --module=apptainer/1.4 --bind=/a --bind=/b --fabric=efa --image=/images/x.sif"
    text = job_script(*words.split())
    asked = dict(word[2:].split("=") for word in options_in(text) if "=" in word)
    shape = [asked[name] for name in ("nodes", "ntasks-per-node", "gpus-per-node", "cpus-per-task", "time")]
    assert shape == ["4", "1", "8", "96", "8:00:00"]
    assert [asked[name] for name in ("partition", "account", "mem")] == ["gpu-a100", "p1", "0"]
    for line in (
        "module load apptainer/1.4 || exit 78",
        "export APPTAINER_BIND=/a,/b # ",
        "source launch/fabric/efa.env || exit 66 # ",
        "image=${IMAGE:-/images/x.sif} # ",
    ):
        assert f"\n{line}" in text


@pytest.mark.parametrize("words", ["multinode_srun --gpus-per-node=8", "--task-per-gpu --gpus-per-node=8"])
def test_one_task_per_gpu_divides_the_cpus(words: str) -> None:
    assert {"--ntasks-per-node=8", "--cpus-per-task=8"} <= set(options_in(job_script(*words.split())))


@pytest.mark.parametrize("words", [(), ("--gpus-per-node=1",), ("--nodes=2", "--gpus-per-node=1")])
def test_nodes_and_gpus_are_numbers_of_one_script(words: tuple[str, ...]) -> None:
    ours = [line for line in job_script("multigpu").splitlines() if not line.startswith("#SBATCH")]
    assert [line for line in job_script(*words).splitlines() if not line.startswith("#SBATCH")] == ours


def test_the_head_of_a_script_names_no_file_that_it_may_not_be() -> None:
    assert not re.findall(r"\w+\.sh", job_script("--nodes=4"))


@pytest.mark.parametrize("name", [name for name, shape in job_scripts.SHAPES.items() if shape.replaced_by])
def test_an_old_name_asks_for_what_its_notice_says(name: str) -> None:
    text = job_script(name)
    notice = re.search(r'^echo "note: .*" \\\n  "sbatch (.*) launch/multigpu.sh"$', text, re.M)
    assert notice
    given = dict(word.split("=") for word in notice[1].split())
    usual = dict(word.split("=") for word in options(LAUNCH / "multigpu.sh") if "=" in word)
    assert usual | given == dict(word.split("=") for word in options_in(text) if "=" in word)


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_what_many_sites_want_is_shown_and_switched_off(script: Path) -> None:
    shown = re.findall(r"^##SBATCH --([a-z-]+)", script.read_text(), re.M)
    names = ["partition", "account", "qos", "constraint", "reservation", "mail-type", "mem", "exclusive"]
    assert shown == (names[:-1] if script.stem == "sweep" else names)


@pytest.mark.parametrize("name", ["partition", "account", "qos", "constraint", "reservation", "mail-type", "mem"])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_line_is_switched_on_by_its_value(shape: str, name: str) -> None:
    text = job_script(shape, f"--{name}=7")
    assert re.search(rf"^#SBATCH --{name}=7\b", text, re.M)
    assert f"##SBATCH --{name}=" not in text


@pytest.mark.parametrize("script", SCRIPTS, ids=name_of)
def test_the_log_has_the_job_s_name_and_number(script: Path) -> None:
    assert f"--output=%x-{'%A_%a' if script.stem == 'sweep' else '%j'}.out" in options(script)


@pytest.mark.parametrize(
    ("words", "gpus", "tasks", "cpus"),
    [("multigpu --gres=gpu:a100:8", "gpu:a100:8", 1, 64), ("multinode_srun --gres=gpu:2", "gpu:2", 2, 8)],
)
def test_gres_asks_for_the_gpus_of_each_node(words: str, gpus: str, tasks: int, cpus: int) -> None:
    text = job_script(*words.split())
    assert {f"--gres={gpus}", f"--ntasks-per-node={tasks}", f"--cpus-per-task={cpus}"} <= set(options_in(text))
    assert not [word for word in options_in(text) if word.startswith("--gpus-per-node")]


def test_mail_and_exclusive_use_are_switched_on() -> None:
    text = job_script("--mail-user=me@site.org", "--exclusive")
    assert {"--mail-type=END,FAIL", "--mail-user=me@site.org", "--exclusive"} <= set(options_in(text))
    assert {"--mail-type=ALL"} <= set(options_in(job_script("--mail-type=ALL")))


def test_a_folder_may_be_named_by_a_variable_of_the_job() -> None:
    text = job_script("--bind", "$SCRATCH", "--bind", "${PROJECT:?}/data")
    assert "\nexport APPTAINER_BIND=$SCRATCH,${PROJECT:?}/data # " in text


def test_an_account_of_htcondor_is_switched_on_by_its_value() -> None:
    text = job_script("--scheduler", "htcondor", "--account", "p1")
    assert "accounting_group = p1" in text.splitlines()


@pytest.mark.parametrize("words", [["--scheduler", name] for name in ("slurm", *job_scripts.OTHER_SCHEDULERS)], ids=str)
def test_no_value_of_a_template_is_left_open(words: list[str]) -> None:
    assert not re.findall(r"@[A-Z_]+[:?@]", job_script(*words))


@pytest.mark.parametrize(
    "words",
    ["--nodes=0", "--nodes=two", "--gpus-per-node=-1", "--time=4h", "--partition=a;b", "--bind=/a b",
     "--image=$(x).sif", "--module='x'", "multi", "sweep --gpus-per-node=2", "--bind=", "--bind=${x",
     "--mail-user=a b", "--mail-type=END;x",
     "--gres=a100:4", "--gres=gpu:a100", "--gres=gpu:0", "--gres=gpu:4 --gpus-per-node=2"],
)  # fmt: skip
def test_a_script_that_could_not_run_is_not_written(words: str) -> None:
    with pytest.raises(Failure) as caught:
        job_script(*re.split(r" (?=--)", words))
    assert caught.value.code == ExitCode.USAGE


def test_a_scheduler_in_the_place_of_a_shape_is_answered_with_its_option() -> None:
    with pytest.raises(Failure) as caught:
        job_script("lsf")
    assert caught.value.fix == "write `entrypoint job-script --scheduler lsf`"


@pytest.mark.parametrize(
    ("words", "form"),
    [
        ("--mem=128GB", "128G"),
        ("--time=24h", "24:00:00"),
        ("--bind=/a b", "a path"),
        ("--constraint='a'", "a100&nvlink"),
    ],
)
def test_a_value_that_cannot_be_used_is_answered_with_its_form(words: str, form: str) -> None:
    with pytest.raises(Failure) as caught:
        job_script(words)
    assert form in str(caught.value.expected)


def test_a_sweep_of_larger_runs_is_told_to_stay_at_one_gpu() -> None:
    with pytest.raises(Failure, match="--gres=gpu:a100:4 is more") as caught:
        job_script("sweep", "--gres=gpu:a100:4")
    assert caught.value.fix.startswith("leave sweep at one GPU")


@pytest.mark.parametrize("file", OTHERS)
def test_a_script_of_another_scheduler_is_what_job_script_writes(file: str) -> None:
    assert (LAUNCH / file).read_text() == job_script("--scheduler", OTHERS[file])


@pytest.mark.parametrize("file", OTHERS)
def test_a_script_of_another_scheduler_starts_again_after_the_codes_that_are_requeued(file: str) -> None:
    text = (LAUNCH / file).read_text()
    codes = [str(int(code)) for code in ExitCode if code.requeue]
    listed = [separator.join(codes) for separator in (" ", ", ")]
    assert "may_start_again" in text or any(codes in text for codes in listed) or file == "skypilot.yaml"


@pytest.mark.parametrize("file", [name for name in OTHERS if name.endswith(".sh")])
def test_a_script_of_another_scheduler_can_be_read_by_bash(file: str) -> None:
    done = subprocess.run(["bash", "-n", str(LAUNCH / file)], capture_output=True, text=True, timeout=20)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", job_scripts.OTHER_SCHEDULERS)
def test_the_users_numbers_stand_in_every_script(name: str) -> None:
    text = job_script("--scheduler", name, "--nodes", "3", "--gpus-per-node", "7")
    assert re.search(r"\b(3|21)\b", text)
    assert re.search(r"\b(7|21)\b", text)


@pytest.mark.parametrize(
    ("scheduler", "line"),
    [
        ("pbs", "#PBS -q gpu-a100"),
        ("flux", "# flux: --queue=gpu-a100"),
        ("gridengine", "#$ -q gpu-a100"),
        ("lsf", "#BSUB -q gpu-a100"),
    ],
)
def test_a_partition_is_the_queue_of_other_schedulers(scheduler: str, line: str) -> None:
    assert line in job_script("--scheduler", scheduler, "--partition", "gpu-a100").splitlines()


def test_flux_reads_no_line_that_is_only_shown() -> None:
    active = re.findall(r"^\W*flux:.*$", (LAUNCH / "flux.sh").read_text(), re.M | re.I)
    assert not [line for line in active if "queue" in line or "bank" in line]


@pytest.mark.parametrize(
    ("time", "limit"),
    [("30", "00:30:00"), ("30:15", "00:30:15"), ("4:00:00", "04:00:00"), ("1-6", "30:00:00"), ("2-00:30", "48:30:00")],
)
def test_a_time_is_read_as_slurm_reads_it(time: str, limit: str) -> None:
    assert f"#PBS -l walltime={limit}" in job_script("--scheduler", "pbs", "--time", time)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--scheduler", "cobalt"), "no scheduler is called 'cobalt'"),
        (("--scheduler", "kubernetes", "--partition", "gpu"), "has no place for --partition"),
        (("multigpu", "--scheduler", "pbs"), "has no place for 'multigpu'"),
        (("--scheduler", "pbs", "--qos", "high"), "has no place for --qos"),
        (("--scheduler", "pbs", "--qos", "pbs"), "has no place for --qos"),
        (("--scheduler", "lsf", "--gres", "gpu:4"), "has no place for --gres"),
    ],
)
def test_what_a_scheduler_does_not_have_is_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(Failure, match=message) as caught:
        job_script(*words)
    assert caught.value.code == ExitCode.USAGE


@pytest.mark.parametrize(
    ("words", "option"),
    [
        ("sweep --exclusive", "--exclusive"),
        ("sweep --fabric efa", "--fabric"),
        ("torchrun --task-per-gpu", "--task-per-gpu"),
    ],
)
def test_an_option_that_a_script_of_slurm_would_ignore_is_refused(words: str, option: str) -> None:
    with pytest.raises(Failure, match=f"a script for {words.split()[0]} has no place for {option}"):
        job_script(*words.split())


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        ("--gpus 8", "write --gpus-per-node"),
        ("--cpus-per-task=8", "write --cpus-per-gpu"),
        ("sweep --array=1-8", "leave it out, and give it to sbatch: sbatch --array=1-8 job.sh cfg.yaml"),
    ],
)
def test_an_option_of_sbatch_is_answered_with_the_way_to_give_it(words: str, fix: str) -> None:
    with pytest.raises(Failure) as caught:
        job_script(*words.split())
    assert caught.value.fix == fix


@pytest.mark.parametrize("name", ["efa", "slingshot"])
def test_a_network_s_folders_are_added_once_to_those_of_the_script(name: str) -> None:
    lines = re.findall(r"^# (folders=.*|\[\[ .*APPTAINER_BIND.*)$", (LAUNCH / f"fabric/{name}.env").read_text(), re.M)
    commands = "\n".join(["export APPTAINER_BIND=/scratch", *lines, *lines, "echo $APPTAINER_BIND"])
    binds = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, timeout=20, check=True).stdout
    assert binds.startswith("/scratch,/opt/")
    assert len(set(binds.split(","))) == len(binds.split(","))


def test_the_pods_of_the_manifest_are_one_training_of_all_nodes() -> None:
    service, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    container = job["spec"]["template"]["spec"]["containers"][0]
    environ = {each["name"]: each.get("value", "1") for each in container["env"]}
    found = detect_allocation(environ, LaunchOptions(), machine())
    assert (found.node_rank, found.num_nodes, found.master_port) == (1, job["spec"]["completions"], 23456)
    assert found.master_addr == f"{job['metadata']['name']}-0.{service['metadata']['name']}"
    assert job["spec"]["template"]["spec"]["subdomain"] == service["metadata"]["name"]


@pytest.mark.parametrize("kind", ["core.v1.Service", "batch.v1.Job"])
def test_the_manifest_follows_the_schema_of_kubernetes(kind: str) -> None:
    documents = {each["kind"]: each for each in yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())}
    schema = jsonschema.Draft202012Validator({**KUBERNETES, "$ref": f"#/$defs/io.k8s.api.{kind}"})
    assert [error.message for error in schema.iter_errors(documents[kind.rpartition(".")[2]])] == []


def test_a_key_that_kubernetes_does_not_know_is_found() -> None:
    _, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    job["spec"]["template"]["spec"]["containers"][0]["comand"] = ["train"]
    schema = jsonschema.Draft202012Validator({**KUBERNETES, "$ref": "#/$defs/io.k8s.api.batch.v1.Job"})
    assert any("comand" in error.message for error in schema.iter_errors(job))


def test_all_pods_of_the_manifest_have_the_job_s_id() -> None:
    _, job = yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text())
    variables = {each["name"]: each for each in job["spec"]["template"]["spec"]["containers"][0]["env"]}
    label = variables["ENTRYPOINT_JOB_CHAIN"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert label == "metadata.labels['batch.kubernetes.io/controller-uid']"  # set since Kubernetes 1.27


def test_a_line_of_a_submit_file_ends_with_its_value() -> None:
    lines = (LAUNCH / "htcondor.sub").read_text().splitlines()
    assert not [line for line in lines if "#" in line.lstrip("#")]


def test_htcondor_holds_no_job_that_stops_at_its_time_limit() -> None:
    text = job_script("--scheduler", "htcondor", "--time", "1-6")
    limit = re.search(r"--time-limit (\S+)", text)
    held = re.search(r"allowed_job_duration = (\d+)", text)
    assert limit
    assert held
    assert deadline.parse_time_limit(limit[1]) + 600 == int(held[1])
