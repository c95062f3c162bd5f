"""The costliest operations, one a line."""

from __future__ import annotations

from torch.autograd import DeviceType

from train.profiler import OperationCost, describe_costs, format_cost_table

COSTS = [
    OperationCost(name="aten::mm", calls=1200, cpu_ms=30.0, gpu_ms=10.0),
    OperationCost(name="aten::convolution_backward_with_a_name_that_goes_on", calls=5, cpu_ms=10.0, gpu_ms=90.0),
    OperationCost(name="aten::add", calls=7, cpu_ms=60.0, gpu_ms=0.0),
]


def listed(*, on_gpu: bool, most: int = 9) -> list[str]:
    return format_cost_table(COSTS, total_ms=100.0, on_gpu=on_gpu, most=most, width=79, what="operation").splitlines()


def test_on_a_cpu_its_time_orders_them_and_is_shared_out() -> None:
    head, *rows = listed(on_gpu=False)
    assert head.split() == ["operation", "calls", "CPU", "ms", "share"]
    assert [row.split() for row in rows[:2]] == [
        ["aten::add", "7", "60.0", "60.0%"],
        ["aten::mm", "1,200", "30.0", "30.0%"],
    ]


def test_on_a_gpu_its_time_does() -> None:
    head, *rows = listed(on_gpu=True)
    assert head.split() == ["operation", "calls", "CPU", "ms", "GPU", "ms", "share"]
    assert [row.split()[-2:] for row in rows] == [["90.0", "90.0%"], ["10.0", "10.0%"], ["0.0", "0.0%"]]


def test_every_line_has_the_same_width_however_long_a_name_is() -> None:
    lines = listed(on_gpu=True)
    assert {len(line) for line in lines} == {79}
    assert "…" in lines[1]


def test_only_the_first_are_listed() -> None:
    assert [line.split()[0] for line in listed(on_gpu=False, most=1)] == ["operation", "aten::add"]


def test_a_name_cannot_reach_for_the_terminal() -> None:
    hostile = [OperationCost(name="a\x1b[2J\nb", calls=1, cpu_ms=1.0, gpu_ms=0.0)]
    text = format_cost_table(hostile, total_ms=0.0, on_gpu=False, most=1, width=79, what="operation")
    assert text.splitlines()[1].startswith("a?[2J?b ")


class Event:
    """One line of the profiler's, made up: this machine has no GPU."""

    def __init__(self, key: str, *, cpu: float = 0.0, gpu: float = 0.0, kernel: bool = False, mark: bool = False):
        self.key, self.count, self.is_user_annotation = key, 1, mark
        self.self_cpu_time_total, self.self_device_time_total = 1000 * cpu, 1000 * gpu
        self.device_type = DeviceType.CUDA if kernel else DeviceType.CPU


MADE_UP = (
    Event("aten::conv", cpu=1, gpu=60),
    Event("cudaDeviceSynchronize", cpu=500),
    Event("sm90_kernel", gpu=60, kernel=True),
    Event("triton_kernel", gpu=40, kernel=True),
    Event("Optimizer.step#SGD.step", gpu=99, kernel=True, mark=True),
)


def test_on_a_gpu_operations_share_what_its_kernels_took() -> None:
    first, second = describe_costs(MADE_UP, on_gpu=True)[0].splitlines()[1:]
    assert (first.split()[0], first.split()[-1]) == ("aten::conv", "60.0%")
    assert (second.split()[0], second.split()[-1]) == ("cudaDeviceSynchronize", "0.0%")


def test_on_a_gpu_the_file_lists_its_kernels_too() -> None:
    _, text = describe_costs(MADE_UP, on_gpu=True)
    assert [line.split()[0] for line in text.partition("kernel on the GPU")[2].splitlines()[1:]] == [
        "sm90_kernel",
        "triton_kernel",
    ]


def test_where_nobody_may_look_at_the_gpu_the_cpus_times_are_shown_and_said_to_be() -> None:
    head, *_, note = describe_costs(MADE_UP[:2], on_gpu=True)[0].splitlines()
    assert "GPU ms" not in head
    assert note.endswith("these are the CPU's times")
