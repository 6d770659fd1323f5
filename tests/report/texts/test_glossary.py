"""What words mean: each verdict says it, and what was printed leads to its entry."""

from __future__ import annotations

import pytest

from pytest_distbench.launch.diagnosis.texts import SIGNS
from pytest_distbench.records.reasons import REASONS, VERDICTS, because
from pytest_distbench.report.texts.glossary import entries, explain


def names(text: str) -> list[str]:
    return [entry.name for entry in explain(text)]


@pytest.mark.parametrize("name", VERDICTS)
def test_each_verdict_says_what_it_means_and_what_to_do(name: str) -> None:
    [entry] = (entry for entry in explain(name) if entry.kind == "verdict")

    assert entry.name == name
    assert entry.means.endswith(".")
    assert entry.next_step


@pytest.mark.parametrize("code", REASONS)
def test_each_reason_says_what_happened_and_its_verdict(code: str) -> None:
    [entry] = (entry for entry in explain(code) if entry.kind == "reason")

    assert entry.name == code
    assert entry.means.endswith(f". Verdict: {REASONS[code].verdict}.")
    assert entry.next_step or not REASONS[code].fails


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("3 missing", "missing"),
        ("!  latency[message_bytes=4096]  33 us", "latency"),
        ("steps_to_bleu", "steps_to_<metric>"),
        ("phase/forward", "phase/<name>"),
        ("hung in body, ended after 4.6 s: rank 1 at test_h.py:7 in hang", "hung in ..."),
        ("rank 2 alone waits in all_reduce", "deadlock: ..."),
        ("rank 1 raised ValueError: bad", "rank N raised ..."),
        ("rank 1 killed by SIGSEGV", "rank N killed by ..."),
        ("waiting since 3 min for the run that uses GPU-0: pid 5", "waiting for ..."),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "the GPU's memory is full"),
    ],
)
def test_what_was_printed_leads_to_its_entry(printed: str, name: str) -> None:
    assert name in names(printed)


def test_only_whole_words_lead_to_an_entry() -> None:
    assert "new" not in names("new_fraction")
    assert names("blatency") == []

    assert {sign.meaning for sign in SIGNS if sign.meaning} <= {entry.name for entry in entries()}


def test_a_reason_of_a_conftest_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REASONS, "odd", because("regressed", "Odd in a way."))
    [entry] = explain("odd")

    assert (entry.means, entry.next_step) == ("Odd in a way. Verdict: regressed.", "")
