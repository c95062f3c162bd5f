"""The package turns a scheduler's environment into N running processes.

It never imports torch. `train` may import the names that are offered here, and no others.
"""

from __future__ import annotations

from entrypoint import engines, file_writer, monitor, network
from entrypoint.accelerators import nvidia
from entrypoint.children import die_with_parent
from entrypoint.console import (
    PrintableText,
    config_words,
    dump_json,
    join_lines,
    list_some,
    pip_command,
    pluralize,
    print_message,
    protect_output_streams,
    remember_typed_words,
    shell_command,
    to_printable,
    typed_program,
    write_styled,
)
from entrypoint.doctor.preflight import run_preflight
from entrypoint.errors import ExitCode, Failure, refuse_lost_output, resource_limit_failure
from entrypoint.files import open_regular_file, parse_json, read_json, read_json_object, read_regular_file
from entrypoint.handover import ATTEMPT_VARIABLE, DEVICE_VARIABLE, Handover
from entrypoint.hang import HangTimeouts, SupervisionPolicy
from entrypoint.heartbeat import SIGNAL_REPEAT_WINDOW_S, TRACE_SIGNAL, Heartbeat, attach_heartbeat
from entrypoint.job import JobInfo, job_info_from_environ
from entrypoint.launch import run_plan
from entrypoint.machine import filesystem_type, free_memory_mib, num_usable_cores
from entrypoint.monitor import ProcessMeter, ResourceMonitor
from entrypoint.mounts import is_ephemeral_path, unmounted_path_failure
from entrypoint.options import (
    LaunchOptions,
    StrictArgumentParser,
    add_launch_arguments,
    expand_path,
    has_variable,
    parse_launch_options,
)
from entrypoint.plan import NO_DRIVER_SOURCE, Plan, find_device, make_plan
from entrypoint.preload import preload_mapped_files
from entrypoint.redaction import redact, redact_value, redact_words
from entrypoint.run_errors import DEADLINE_CAUSE, ExitRecord, RunError, RunErrors
from entrypoint.threads import start_daemon_thread
from entrypoint.world import World, world_from_environ

__all__ = [
    "ATTEMPT_VARIABLE",
    "DEADLINE_CAUSE",
    "DEVICE_VARIABLE",
    "NO_DRIVER_SOURCE",
    "SIGNAL_REPEAT_WINDOW_S",
    "TRACE_SIGNAL",
    "ExitCode",
    "ExitRecord",
    "Failure",
    "Handover",
    "HangTimeouts",
    "Heartbeat",
    "JobInfo",
    "LaunchOptions",
    "Plan",
    "PrintableText",
    "ProcessMeter",
    "ResourceMonitor",
    "RunError",
    "RunErrors",
    "StrictArgumentParser",
    "SupervisionPolicy",
    "World",
    "add_launch_arguments",
    "attach_heartbeat",
    "config_words",
    "die_with_parent",
    "dump_json",
    "engines",
    "expand_path",
    "file_writer",
    "filesystem_type",
    "find_device",
    "free_memory_mib",
    "has_variable",
    "is_ephemeral_path",
    "job_info_from_environ",
    "join_lines",
    "list_some",
    "make_plan",
    "monitor",
    "network",
    "num_usable_cores",
    "nvidia",
    "open_regular_file",
    "parse_json",
    "parse_launch_options",
    "pip_command",
    "pluralize",
    "preload_mapped_files",
    "print_message",
    "protect_output_streams",
    "read_json",
    "read_json_object",
    "read_regular_file",
    "redact",
    "redact_value",
    "redact_words",
    "refuse_lost_output",
    "remember_typed_words",
    "resource_limit_failure",
    "run_plan",
    "run_preflight",
    "shell_command",
    "start_daemon_thread",
    "to_printable",
    "typed_program",
    "unmounted_path_failure",
    "world_from_environ",
    "write_styled",
]
