"""What words mean: each verdict says it, and what was printed leads to its entry."""

from __future__ import annotations

import pytest

from pytest_distbench.launch.diagnosis.texts import SIGNS
from pytest_distbench.records.kinds import VERDICT_KINDS, VerdictKind
from pytest_distbench.records.reasons import REASONS
from pytest_distbench.report.texts.glossary import entries, explain


def names(text: str) -> list[str]:
    return [entry.name for entry in explain(text)]


@pytest.mark.parametrize("name", VERDICT_KINDS)
def test_each_verdict_says_what_it_means_and_what_to_do(name: str) -> None:
    [entry] = (entry for entry in explain(name) if entry.kind == "verdict")

    assert entry.name == name
    assert entry.means.endswith(".")
    assert entry.next_step


@pytest.mark.parametrize("code", REASONS)
def test_each_reason_says_what_happened_and_its_verdict(code: str) -> None:
    [entry] = (entry for entry in explain(code) if entry.kind == "reason")

    assert entry.name == code
    assert entry.means.endswith(f". Verdict: {REASONS[code].kind}.")
    assert entry.next_step or not VERDICT_KINDS[REASONS[code].kind].fails


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("3 no longer measured", "lost"),
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
    assert "lost" not in names("lost_fraction")
    assert names("blatency") == []

    assert {sign.meaning for sign in SIGNS if sign.meaning} <= {entry.name for entry in entries()}


def test_a_verdict_of_a_conftest_is_explained_by_its_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(VERDICT_KINDS, "odd", VerdictKind(mark="o", words="odd in a way"))
    [entry] = explain("odd")

    assert (entry.means, entry.next_step) == ("odd in a way", "")
