"""The history of compiles: numbered, bounded, safe to write from several threads."""

from __future__ import annotations

import logging
import pickle
import threading

import pytest

from counterpoint.report.history import CompileRecord, History


def record(graph: str = "0/0 forward", **changes: object) -> CompileRecord:
    fields: dict[str, object] = {
        "graph": graph,
        "role": "forward",
        "collectives": 2,
        "origin": "run",
        "cache": "miss",
        "requested": "verify='off'",
        "in_force": {"codegen": "eager"},
    }
    return CompileRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_records_come_back_oldest_first_with_rising_numbers() -> None:
    history = History()
    for name in ("a", "b", "c"):
        history.add(record(name))
    assert [(r.graph, r.number) for r in history.records()] == [("a", 1), ("b", 2), ("c", 3)]


def test_only_the_newest_are_kept() -> None:
    history = History(kept=2)
    for name in ("a", "b", "c"):
        history.add(record(name))
    assert [r.graph for r in history.records()] == ["b", "c"]


def test_clearing_forgets_records_but_never_reuses_a_number() -> None:
    history = History()
    history.add(record())
    history.clear()
    assert history.records() == ()
    assert history.add(record()).number == 2


def test_writing_from_many_threads_loses_nothing() -> None:
    history = History(kept=10_000)
    threads = [threading.Thread(target=lambda: [history.add(record()) for _ in range(100)]) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(r.number for r in history.records()) == list(range(1, 801))


def test_a_record_keeps_what_it_was_given() -> None:
    given = {"codegen": "eager"}
    kept = History().add(record(in_force=given))
    given["codegen"] = "inductor"
    assert kept.in_force == {"codegen": "eager"}


def test_in_full_it_tells_what_was_asked_for_and_what_is_in_force() -> None:
    told = record(requested="codegen='inductor'", in_force={"codegen": "eager"}).in_full().splitlines()
    assert told[0] == str(record())
    assert told[1:] == ["  requested: codegen='inductor'", "  codegen: eager"]
    assert "  requested: nothing" in record(requested="").in_full()


def test_a_record_can_be_sent_to_another_process() -> None:
    kept = History().add(record())
    assert pickle.loads(pickle.dumps(kept)) == kept


def test_each_record_is_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="counterpoint"):
        History().add(record(problems=("the passes failed (KeyError)",)))
    (line,) = caplog.messages
    assert "graph 0/0 forward: 2 collectives" in line
    assert "cache: miss" in line
    assert "the passes failed (KeyError)" in line
