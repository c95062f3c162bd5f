"""Slurm's compressed lists."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from entrypoint.errors import Failure
from entrypoint.hostlist import expand_counts, expand_hosts

NAMES = st.lists(st.from_regex(r"[a-z][a-z0-9.-]{0,8}", fullmatch=True), min_size=1, max_size=20)
COUNTS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 9)), min_size=1, max_size=9)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("node01", ["node01"]),
        ("a,b", ["a", "b"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[1,5-6]", ["n1", "n5", "n6"]),
        (
            "rack[1-2]n[03,07-08]-ib",
            ["rack1n03-ib", "rack1n07-ib", "rack1n08-ib", "rack2n03-ib", "rack2n07-ib", "rack2n08-ib"],
        ),
        ("n[1-2],login,g[3]", ["n1", "n2", "login", "g3"]),
        ("n[001-002]x", ["n001x", "n002x"]),
        ("[1-2]", ["1", "2"]),
        ("node03,node01", ["node03", "node01"]),
    ],
)
def test_node_lists_expand_in_slurms_order(text: str, names: list[str]) -> None:
    assert list(expand_hosts(text, "X")) == names


@pytest.mark.parametrize(
    "text", ["", " ", ",", "a,,b", "n[", "n]", "n[1-", "n[2-1]", "n[a-b]", "n[[1]]", "n[]", "n[1-99999999]", "a,"]
)
def test_a_list_outside_the_grammar_is_refused_by_name(text: str) -> None:
    with pytest.raises(Failure, match="SLURM_STEP_NODELIST"):
        expand_hosts(text, "SLURM_STEP_NODELIST")


def test_a_product_of_ranges_is_bounded_before_it_is_made() -> None:
    with pytest.raises(Failure, match="X cannot be read"):
        expand_hosts("n[1-60000][1-60000][1-60000]", "X")


@given(NAMES)
def test_plain_names_pass_unchanged(names: list[str]) -> None:
    assert list(expand_hosts(",".join(names), "X")) == names


@given(st.integers(0, 5000), st.integers(0, 300), st.integers(1, 6))
def test_a_range_has_every_number_once_and_keeps_its_zeros(first: int, more: int, width: int) -> None:
    names = expand_hosts(f"n[{first:0{width}d}-{first + more:0{width}d}]", "X")
    assert list(names) == [f"n{number:0{width}d}" for number in range(first, first + more + 1)]


@pytest.mark.parametrize(
    ("text", "counts"), [("4", [4]), ("4(x2)", [4, 4]), ("2(x3),1", [2, 2, 2, 1]), ("4,2,1", [4, 2, 1])]
)
def test_counts_expand_in_node_order(text: str, counts: list[int]) -> None:
    assert list(expand_counts(text, "X")) == counts


@given(COUNTS)
def test_compressed_counts_are_read_back(pairs: list[tuple[int, int]]) -> None:
    text = ",".join(f"{count}(x{repeat})" for count, repeat in pairs)
    assert list(expand_counts(text, "X")) == [count for count, repeat in pairs for _ in range(repeat)]


@pytest.mark.parametrize("text", ["", "4(x)", "x2", "4(2)", "-1", "4,,2", "1(x99999999)"])
def test_counts_outside_the_grammar_are_refused_by_name(text: str) -> None:
    with pytest.raises(Failure, match="SLURM_TASKS_PER_NODE"):
        expand_counts(text, "SLURM_TASKS_PER_NODE")


def test_many_long_ranges_are_refused_before_they_fill_the_memory() -> None:
    with pytest.raises(Failure, match="cannot be read"):
        expand_hosts(",".join(["n[0-65535]"] * 9000), "SLURM_STEP_NODELIST")


@pytest.mark.parametrize("text", [f"n[0-{'9' * 5000}]", f"n[{'9' * 5000}]"])
def test_a_number_of_thousands_of_digits_is_outside_the_grammar(text: str) -> None:
    with pytest.raises(Failure, match="cannot be read"):
        expand_hosts(text, "SLURM_STEP_NODELIST")
