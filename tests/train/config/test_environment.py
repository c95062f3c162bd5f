"""The caller's variables act on a training, are taken out, or are refused."""

from __future__ import annotations

import pytest
from strange import ACTING, REMOVED

from entrypoint import ExitCode, Failure, Handover
from entrypoint.environment import THREAD_BINDING_VARIABLES
from train.config import environment

# Variables that have nothing to do with a training.
PLAIN = {"HOME": "/home/me", "PATH": "/usr/bin", "LANG": "C.UTF-8", "SLURM_JOB_ID": "7", "RANK": "0", "TERM": "xterm"}


def caller_variables(*, download: bool = False, **environ: str) -> environment.CallerVariables:
    return environment.remove_conflicting_variables(environ, download=download)


@pytest.mark.parametrize("name", REMOVED)
def test_a_variable_that_would_change_the_training_is_taken_out_and_noted(name: str) -> None:
    environ = PLAIN | {name: REMOVED[name]}
    result = environment.remove_conflicting_variables(environ, download=False)
    assert environ == PLAIN
    assert result.removed == {name: REMOVED[name]}
    assert result.notes()[0].startswith(f"{name}: not used, ")


@pytest.mark.parametrize("name", ["CC", "CXX"])
def test_the_compiler_that_train_compile_would_take_is_shown(name: str) -> None:
    assert environment.remove_conflicting_variables({name: "gcc-14"}, download=False).describe() == f"{name}=gcc-14"


@pytest.mark.parametrize("name", ACTING)
def test_a_variable_that_the_user_may_choose_is_left_and_shown(name: str) -> None:
    environ = PLAIN | {name: ACTING[name]}
    result = environment.remove_conflicting_variables(environ, download=False)
    assert environ == PLAIN | {name: ACTING[name]}
    assert result.describe() == f"{name}={ACTING[name]}"
    assert not result.notes()


@pytest.mark.parametrize(("device", "left"), [("cpu", False), ("cuda", True)])
def test_a_debug_level_that_crashes_torch_on_the_cpu_is_taken_out_there(device: str, left: bool) -> None:
    environ = {"ENTRYPOINT_DEVICE": device, "TORCH_DISTRIBUTED_DEBUG": "DETAIL"}
    notes = environment.remove_conflicting_variables(environ, download=False).notes()
    assert ("TORCH_DISTRIBUTED_DEBUG" in environ) == left
    assert notes == ([] if left else [f"TORCH_DISTRIBUTED_DEBUG: not used, {environment.DEBUG_DETAIL_REASON}"])


def test_what_binds_all_ranks_to_the_first_core_is_taken_out_by_every_name() -> None:
    names = {name for name in environment.REMOVED_VARIABLES if name.startswith(("OMP_", "GOMP_", "KMP_"))}
    assert names == set(THREAD_BINDING_VARIABLES)


@pytest.mark.parametrize(
    ("name", "value", "binds"),
    [
        ("OMP_PROC_BIND", "close", True),
        ("OMP_PROC_BIND", "TRUE", True),
        ("OMP_PROC_BIND", "FALSE", False),
        ("KMP_AFFINITY", "granularity=fine,compact,1,0", True),
        ("KMP_AFFINITY", "none", False),
    ],
)
def test_a_binding_that_binds_nothing_is_left(name: str, value: str, binds: bool) -> None:
    environ = {name: value}
    notes = environment.remove_conflicting_variables(environ, download=False).notes()
    assert (name not in environ) == binds
    why = f"{name}: not used, all ranks and data workers of a node would share its first core"
    assert notes == [why] * binds


def test_no_variable_is_said_too() -> None:
    assert caller_variables(**PLAIN).describe() == "none set that acts here"


def test_variables_with_one_reason_are_noted_on_one_line() -> None:
    result = caller_variables(ACCELERATE_USE_CPU="1", ACCELERATE_MIXED_PRECISION="no", NVIDIA_TF32_OVERRIDE="1")
    assert result.notes() == [
        "ACCELERATE_MIXED_PRECISION, ACCELERATE_USE_CPU: not used, the config decides",
        "NVIDIA_TF32_OVERRIDE: not used, train.tf32 decides",
    ]


def test_what_our_own_parent_set_is_no_choice_of_the_users() -> None:
    handed_over = Handover(added=("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME")).to_environ()
    handed_over |= {"PYTHONUTF8": "1", "ENTRYPOINT_DEVICE": "cpu"}
    result = caller_variables(**handed_over, OMP_NUM_THREADS="4", GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="eth0")
    assert result.describe() == "NCCL_SOCKET_IFNAME=eth0"


SECRETS = {
    "HF_TOKEN": "hf_abc",
    "TORCH_API_KEY": "abc",
    "NCCL_PASSWORD": "abc",
    "HF_PAT": "abc",
    "CUDA_PASSPHRASE": "abc",
    "TORCH_HUB": "https://hub?token=abc",
    "TORCHINDUCTOR_REDIS_URL": "redis://me:abc@h",
}


def test_what_the_image_sets_is_no_choice_of_the_users() -> None:
    assert "NVIDIA_DRIVER_CAPABILITIES" not in caller_variables(NVIDIA_DRIVER_CAPABILITIES="compute,utility").acting


@pytest.mark.parametrize(("value", "shown"), [("/.singularity.d/libs", False), ("/.singularity.d/libs:/mine", True)])
def test_what_apptainer_sets_in_each_container_is_no_choice_of_the_users(value: str, shown: bool) -> None:
    assert ("LD_LIBRARY_PATH" in caller_variables(LD_LIBRARY_PATH=value).acting) is shown


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_not_shown(name: str) -> None:
    shown = caller_variables(**{name: SECRETS[name]}).describe()
    assert "abc" not in shown
    assert "(not shown)" in shown


def test_a_long_value_is_cut() -> None:
    assert len(caller_variables(LD_LIBRARY_PATH="/opt/lib:" * 100).describe()) < 120


@pytest.mark.parametrize(("download", "shown"), [(True, "https_proxy=http://(not shown)@proxy:1"), (False, "none")])
def test_a_proxy_acts_only_where_something_is_fetched(download: bool, shown: str) -> None:
    assert caller_variables(https_proxy="http://me:pass@proxy:1", download=download).describe().startswith(shown)


def refusal(environ: dict[str, str], *, device: str = "cpu", precision: str | None = "fp32") -> Failure | None:
    try:
        environment.refuse_contradicting_variables(environ, device=device, precision=precision, accumulation=4)
    except Failure as failure:
        return failure
    return None


CONTRADICTIONS = {
    "bf16": ("ACCELERATE_MIXED_PRECISION", "bf16", "train.precision=bf16"),
    "fp16": ("ACCELERATE_MIXED_PRECISION", "FP16", "train.precision=fp16"),
    "fp8": ("ACCELERATE_MIXED_PRECISION", "fp8", "leave precision to the config"),
    "accumulation": ("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "7", "train.micro_batch_size"),
    "fsdp": ("ACCELERATE_USE_FSDP", "true", "train.parallel"),
    "deepspeed": ("ACCELERATE_USE_DEEPSPEED", "True", "train.parallel"),
    "megatron": ("ACCELERATE_USE_MEGATRON_LM", "1", "train.parallel"),
    "compiler": ("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR", "leave it to the config"),
}


@pytest.mark.parametrize(("name", "value", "fix"), CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_a_variable_that_asks_for_another_training_is_refused_with_both_ways_out(
    name: str, value: str, fix: str
) -> None:
    failure = refusal({name: value})
    assert failure is not None
    assert (failure.code, failure.found) == (ExitCode.USAGE, f"{name}={value}")
    assert fix in failure.fix
    assert f"unset {name}" in failure.fix


AGREEING = {
    "what-accelerate-launch-always-writes": {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"},
    "the-same-precision": {"ACCELERATE_MIXED_PRECISION": "fp32"},
    "the-same-accumulation": {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4"},
    "no-accumulation-asked": {"ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "1"},
    "engine-not-used": {"ACCELERATE_USE_FSDP": "false"},
    "cpu-on-the-cpu": {"ACCELERATE_USE_CPU": "true"},
}


@pytest.mark.parametrize("environ", AGREEING.values(), ids=AGREEING)
def test_what_asks_for_nothing_else_is_not_refused(environ: dict[str, str]) -> None:
    assert refusal(environ) is None


def test_accelerates_cpu_is_refused_where_gpus_would_compute() -> None:
    failure = refusal({"ACCELERATE_USE_CPU": "true"}, device="cuda")
    assert failure is not None
    assert "--device cpu" in failure.fix


def test_a_precision_that_is_not_known_yet_is_compared_later() -> None:
    assert refusal({"ACCELERATE_MIXED_PRECISION": "bf16"}, device="cuda", precision=None) is None


@pytest.mark.parametrize(
    ("given", "spins"),
    [({}, environment.GOMP_SPINCOUNT), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "active"}, None)],
    ids=["nothing", "a-count", "a-policy"],
)
def test_threads_wait_as_the_user_says_or_else_briefly(given: dict[str, str], spins: str | None) -> None:
    environment.limit_openmp_spinning(given)
    assert given.get("GOMP_SPINCOUNT") == spins
