"""Visits folded into a record: what it says of the time, and which verdict lasts."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import numpy as np
import pytest

from commbench.results.record import Record, fold
from commbench.results.status import FAILURES
from tests.runs import bad_visit, cell, facts, group, visit

# What issue and documentation promise to scripts.
KEYS = (
    *("collective", "backend", "library", "algorithm", "observed_algorithm", "evidence", "protocol"),
    *("observed_protocol", "channels", "status", "reason", "size", "count", "dtype", "redop", "inplace", "buffer"),
    *("group", "nranks", "nnodes", "method", "loop", "time_us", "time_us_low", "time_us_high", "time_us_mean"),
    *("time_us_min", "time_us_max", "time_us_p99", "iterations", "rounds", "launch", "algbw", "busbw", "wrong"),
    *("simulated", "predicted", "ranks", "hosts", "drift", "arrival_skew_us", "exit_skew_us", "skew_error_us"),
    "late_starts",
)
MEASURED = [name for name in KEYS if name.startswith("time_us") or name in ("algbw", "busbw")]

CHANCE = random.Random("record")
ROUNDS = [[CHANCE.lognormvariate(2, 0.5) for _ in range(n)] for n in (5, 11, 7, 5, 101, 3, 9)]


def test_a_record_has_the_promised_keys() -> None:
    assert set(KEYS) - set(fold(facts(), cell(), []).to_dict()) == set()


def test_a_record_never_changes() -> None:
    record = fold(facts(), cell(), [])
    with pytest.raises(dataclasses.FrozenInstanceError):
        record.status = "ok"  # type: ignore[misc]


def test_a_record_survives_json() -> None:
    record = fold(facts(), cell(), [visit(samples) for samples in ROUNDS])
    assert Record(**json.loads(json.dumps(record.to_dict()))) == record


def test_the_time_is_the_median_of_the_rounds_medians() -> None:
    record = fold(facts(), cell(), [visit(samples) for samples in ROUNDS])
    assert record.time_us == pytest.approx(np.median([np.median(samples) for samples in ROUNDS]), abs=1e-4)
    assert record.rounds == len(ROUNDS)


def test_mean_extremes_and_p99_are_over_all_iterations() -> None:
    record = fold(facts(), cell(), [visit(samples) for samples in ROUNDS])
    every = np.concatenate(ROUNDS)
    assert record.iterations == every.size
    assert record.time_us_mean == pytest.approx(every.mean(), abs=1e-4)
    assert (record.time_us_min, record.time_us_max) == (every.min(), every.max())
    assert record.time_us_p99 == pytest.approx(np.quantile(every, 0.99), abs=1e-4)


def test_one_stalled_iteration_shows_though_the_median_hides_it() -> None:
    record = fold(facts(), cell(), [visit([10.0] * 8 + [5000.0])] * 3)
    assert (record.time_us, record.time_us_max) == (10.0, 5000.0)
    assert record.time_us_mean == pytest.approx((8 * 10 + 5000) / 9, abs=1e-4)


def test_the_interval_is_over_rounds_and_null_below_five() -> None:
    visits = [visit([time - 0.9, time, time + 99.0]) for time in (5.0, 1.0, 4.0, 2.0, 3.0)]
    five, four = fold(facts(), cell(), visits), fold(facts(), cell(), visits[:4])
    assert (five.time_us_low, five.time_us_high) == (1.0, 5.0)
    assert (four.time_us_low, four.time_us_high) == (None, None)


def test_rates_follow_from_the_time() -> None:
    record = fold(facts(groups={"all": group(busbw_factor=1.75)}), cell(size=8_000_000), [visit([2000.0])])
    assert record.algbw == pytest.approx(4.0)  # 8 MB in 2 ms
    assert record.busbw == pytest.approx(7.0)


def test_a_cell_without_visits_was_not_measured() -> None:
    record = fold(facts(), cell(), [])
    assert (record.status, record.reason) == ("not_measured", "the run ended before it was reached")


def test_a_cell_that_does_not_apply_keeps_the_plans_reason() -> None:
    record = fold(facts(), cell(status="not_applicable", reason="no NVLS on a CPU"), [])
    assert (record.status, record.reason) == ("not_applicable", "no NVLS on a CPU")


@pytest.mark.parametrize("status", ["rejected", "not_measured", "timeout", "failed", "substituted", "wrong"])
def test_what_was_not_measured_is_null_and_never_zero(status: str) -> None:
    fields = fold(facts(), cell(), [bad_visit(status, wrong=3 if status == "wrong" else None)]).to_dict()
    assert (fields["status"], fields["reason"]) == (status, "it broke")
    assert {name: fields[name] for name in MEASURED} == dict.fromkeys(MEASURED)


def test_one_wrong_answer_withdraws_all_times_for_good() -> None:
    good = visit([10.0])
    record = fold(facts(), cell(), [good, bad_visit("wrong", "2 elements differ", wrong=2), good, good])
    assert (record.status, record.reason, record.wrong) == ("wrong", "2 elements differ", 2)
    assert (record.time_us, record.algbw, record.busbw) == (None, None, None)


@pytest.mark.parametrize("status", ["rejected", "substituted"])
def test_a_refusal_lasts(status: str) -> None:
    assert fold(facts(), cell(), [visit(), bad_visit(status), visit()]).status == status


@pytest.mark.parametrize("status", ["timeout", "failed", "not_measured"])
def test_a_failure_is_forgiven_when_a_later_visit_went_well(status: str) -> None:
    record = fold(facts(), cell(), [bad_visit(status), visit([8.0], session=1), visit([9.0], session=1)])
    assert (record.status, record.reason, record.time_us, record.rounds) == ("ok", "", 8.5, 2)


@pytest.mark.parametrize("status", ["timeout", "failed"])
def test_a_failure_after_good_visits_stands(status: str) -> None:
    assert fold(facts(), cell(), [visit(), visit(), bad_visit(status)]).status == status


@pytest.mark.parametrize("status", ["timeout", "failed"])
def test_a_failure_is_not_forgotten_because_there_was_no_time_to_try_again(status: str) -> None:
    visits = [bad_visit(status), bad_visit("not_measured", "the budget is spent", session=1)]
    assert fold(facts(), cell(), visits).status == status


def test_a_cut_is_none_where_there_was_a_time() -> None:
    record = fold(facts(), cell(), [visit([8.0]), bad_visit("not_measured", "the budget is spent", session=1)])
    assert (record.status, record.reason, record.time_us) == ("ok", "", 8.0)


def test_a_cell_that_the_plan_cut_keeps_its_reason() -> None:
    record = fold(facts(), cell(status="not_measured", reason="too large"), [])
    assert (record.status, record.reason) == ("not_measured", "too large")


def test_wrong_elements_add_up_over_the_checks_and_are_null_without_any() -> None:
    assert fold(facts(), cell(), [visit(wrong=0), visit(wrong=0)]).wrong == 0
    assert fold(facts(), cell(), [visit(wrong=None), visit(wrong=None)]).wrong is None
    assert fold(facts(), cell(), [visit(wrong=0), bad_visit("wrong", wrong=3), bad_visit("wrong", wrong=4)]).wrong == 7


def test_what_ran_and_how_that_is_known_stands_beside_what_was_asked_for() -> None:
    evidence: dict[str, Any] = {
        "observed_algorithm": "ring",
        "evidence": "read back",
        "observed_protocol": "ll",
        "channels": 2,
    }
    record = fold(facts(), cell("auto"), [visit(**evidence, loop="compiled")])
    assert {name: getattr(record, name) for name in evidence} == evidence
    assert (record.algorithm, record.loop) == ("auto", "compiled")


def test_calls_in_chunks_are_told() -> None:
    assert fold(facts(), cell(), [visit(calls=3)]).calls == 3


def test_only_what_broke_ends_with_an_error() -> None:
    assert set(FAILURES) == {"wrong", "substituted", "failed", "timeout"}
