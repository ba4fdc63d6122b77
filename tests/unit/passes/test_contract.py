"""Pipelines whose passes do not fit together are refused before anything runs."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from counterpoint.errors import ContractError
from counterpoint.passes.contract import Contract, check_contracts


class Named(NamedTuple):
    name: str
    contract: Contract


def named(name: str, provides: str = "", requires: str = "", conflicts: str = "") -> Named:
    words = (frozenset(text.split()) for text in (provides, requires, conflicts))
    made = dict(zip(("provides", "requires", "conflicts_with"), words, strict=True))
    return Named(name, Contract(**made))


SPLIT = named("split", provides="starts-and-waits")
BUCKET = named("bucket", provides="buckets", requires="starts-and-waits", conflicts="in-place")
LOWER = named("lower", provides="in-place")


def test_passes_in_the_right_order_fit() -> None:
    check_contracts([SPLIT, BUCKET, LOWER])


def test_what_the_graph_gives_counts_as_provided() -> None:
    check_contracts([BUCKET], given={"starts-and-waits"})


def test_a_pass_provides_its_own_name() -> None:
    check_contracts([SPLIT, named("after-split", requires="split")])


def test_missing_facts_are_named_with_who_would_provide_them() -> None:
    with pytest.raises(ContractError, match=r"bucket requires 'starts-and-waits'.* split would"):
        check_contracts([BUCKET], known=[SPLIT, LOWER])


def test_a_provider_that_comes_too_late_is_named() -> None:
    with pytest.raises(ContractError, match="which split provides, but only after it"):
        check_contracts([BUCKET, SPLIT])


def test_a_fact_that_nobody_provides_is_said_to_be_so() -> None:
    with pytest.raises(ContractError, match="which no pass provides"):
        check_contracts([BUCKET])


def test_conflicts_name_the_earlier_pass() -> None:
    with pytest.raises(ContractError, match="bucket conflicts with 'in-place', which lower provides before it"):
        check_contracts([SPLIT, LOWER, BUCKET])


def test_all_findings_come_in_one_message() -> None:
    with pytest.raises(ContractError) as caught:
        check_contracts([LOWER, BUCKET])
    assert caught.value.what.count("\n") == 2
