"""The environment of a rank: nothing of the host's Python, and writable places."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from entrypoint import environment

HOME = {"HOME": "/tmp", "USER": "u", "LOGNAME": "u"}


def cleaned(environ: dict[str, str], *, foreign: bool = False, scratch: Path | None = None) -> dict[str, str]:
    return environment.clean_environ(HOME | environ, foreign=foreign, scratch=scratch)[0]


def notes(environ: dict[str, str], scratch: Path | None = None) -> list[str]:
    return environment.clean_environ(HOME | environ, foreign=False, scratch=scratch)[1]


@pytest.mark.parametrize("name", ["PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"])
def test_the_hosts_python_settings_are_kept_out_and_said(name: str) -> None:
    assert name not in cleaned({name: "/evil"})
    assert any(name in note for note in notes({name: "/evil"}))


def test_what_is_kept_out_is_said_in_one_line(tmp_path: Path) -> None:
    user_site = tmp_path / ".local/lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    user_site.mkdir(parents=True)
    lines = notes({"PYTHONPATH": "/evil", "PYTHONHOME": "/evil", "HOME": str(tmp_path)})
    assert lines == [f"not used, it would change what is imported: PYTHONPATH, PYTHONHOME, {user_site}"]


@pytest.mark.parametrize("foreign", [False, True])
def test_no_program_waits_for_input_at_its_end(foreign: bool) -> None:
    assert "PYTHONINSPECT" not in cleaned({"PYTHONINSPECT": "1"}, foreign=foreign)
    assert notes({"PYTHONINSPECT": "1"}) == ["not used, it would make a finished program wait for input: PYTHONINSPECT"]


def test_a_clean_environment_needs_no_notes() -> None:
    assert notes({}) == []


def test_our_own_worker_ignores_the_working_directory_and_the_user_site() -> None:
    child = cleaned({})
    assert (child["PYTHONSAFEPATH"], child["PYTHONNOUSERSITE"]) == ("1", "1")


def test_our_own_worker_finds_a_checkout_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site.getsitepackages", lambda: [str(tmp_path)])
    assert cleaned({"PYTHONPATH": "/evil"})["PYTHONPATH"] == str(Path(__file__).parents[2])


def test_a_foreign_script_finds_the_modules_beside_it() -> None:
    assert "PYTHONSAFEPATH" not in cleaned({"PYTHONSAFEPATH": "1"}, foreign=True)


def test_the_callers_environment_is_not_changed() -> None:
    environ = HOME | {"PYTHONPATH": "/evil"}
    environment.clean_environ(environ, foreign=False, scratch=None)
    assert environ["PYTHONPATH"] == "/evil"


def test_a_home_that_cannot_be_written_is_replaced_and_said(tmp_path: Path) -> None:
    assert cleaned({"HOME": "/proc"}, scratch=tmp_path)["HOME"] == str(tmp_path)
    assert any("HOME (/proc)" in note for note in notes({"HOME": "/proc"}, scratch=tmp_path))


def test_caches_that_pointed_into_an_unwritable_home_follow_the_new_one(tmp_path: Path) -> None:
    child = cleaned({"HOME": "/proc", "XDG_CACHE_HOME": "/proc/c", "HF_HOME": "/tmp"}, scratch=tmp_path)
    assert "XDG_CACHE_HOME" not in child
    assert child["HF_HOME"] == "/tmp"


def test_a_temporary_folder_that_cannot_be_written_is_replaced(tmp_path: Path) -> None:
    assert cleaned({"TMPDIR": "/proc"}, scratch=tmp_path)["TMPDIR"] == str(tmp_path)


def test_an_unknown_uid_has_a_name_all_the_same() -> None:
    assert environment.user_name(54321) == "uid54321"


def test_a_missing_user_is_filled_in() -> None:
    child, _ = environment.clean_environ({"HOME": "/tmp"}, foreign=False, scratch=None)
    assert child["USER"] == child["LOGNAME"] == environment.user_name(os.getuid())


def test_preloaded_files_that_are_not_here_are_left_out_and_said(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.touch()
    environ = {"LD_PRELOAD": f"/host/lib.so:{library}"}
    assert cleaned(environ)["LD_PRELOAD"] == str(library)
    assert "/host/lib.so" in notes(environ)[0]


@pytest.mark.parametrize("name", ["CC", "CXX"])
@pytest.mark.parametrize("compiler", ["/opt/none/gcc", "nvc", "gcc -m64", ""])
def test_a_compiler_that_is_not_here_is_left_out_and_said(name: str, compiler: str) -> None:
    environ = {name: compiler, "PATH": "/nowhere"}
    assert name not in cleaned(environ)
    assert notes(environ) == [f"{name} names a compiler that is not here and is left out: {compiler}"]


def test_a_compiler_that_is_here_is_the_users_word(tmp_path: Path) -> None:
    compiler = tmp_path / "gcc-14"
    compiler.touch(mode=0o755)
    environ = {"CC": str(compiler), "CXX": "gcc-14", "PATH": str(tmp_path)}
    assert (cleaned(environ).items() >= environ.items(), notes(environ)) == (True, [])


def test_writable_is_found_out_by_writing(tmp_path: Path) -> None:
    assert environment.is_writable(tmp_path)
    assert not environment.is_writable("/proc")
    assert not environment.is_writable(tmp_path / "missing")
    assert not environment.is_writable(None)


def test_temporary_files_go_to_the_first_folder_that_can_be_written() -> None:
    assert environment.scratch_parent({"TMPDIR": "/proc"}) == Path("/tmp")


def test_scratch_prefers_the_users_temporary_folder(tmp_path: Path) -> None:
    assert environment.scratch_parent({"TMPDIR": str(tmp_path)}) == tmp_path
