"""What words mean: each verdict says it, and what was printed leads to its term."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.recorded import unpack
from support.results import PAIRED, end_of, result, verdict

from pytest_distbench import judging
from pytest_distbench.commands.cli import main
from pytest_distbench.judging.terms import closed
from pytest_distbench.launch.evidence import SIGNS
from pytest_distbench.launch.starters import LAUNCHERS
from pytest_distbench.records.iteration import TRAINING_STEP
from pytest_distbench.records.reasons import REASONS, VERDICTS, because
from pytest_distbench.records.record import replace
from pytest_distbench.records.run import STATISTICS
from pytest_distbench.report.tables import TABLES
from pytest_distbench.store.files import read_run_record
from pytest_distbench.tools.explain import explain, terms

ROOT = Path(__file__).parents[2]


def names(text: str) -> list[str]:
    return [term.name for term in explain(text)]


@pytest.mark.parametrize("name", [*VERDICTS, *REASONS])
def test_each_verdict_and_each_reason_says_what_it_means_and_what_to_do(name: str) -> None:
    [term] = (term for term in explain(name) if term.kind == ("verdict" if name in VERDICTS else "reason"))

    assert term.name == name
    assert term.means.endswith("." if name in VERDICTS else f". Verdict: {REASONS[name].verdict}.")
    assert term.next_step


@pytest.mark.parametrize("name", [name for term in terms() if term.kind == "word" for name in (term.name, *term.also)])
def test_each_word_is_known_by_all_its_names_and_says_what_to_do(name: str) -> None:
    in_capitals = name.upper() if len(name) > 1 else name  # N is another name than n
    [term] = (term for term in explain(in_capitals) if term.kind == "word")

    assert term.means.endswith(".")
    assert term.next_step
    assert explain(f"of the {name} of it")


HEADS = {column.heading for table in TABLES.values() for column in table.columns if isinstance(column.heading, str)}


@pytest.mark.parametrize("name", [*STATISTICS, *LAUNCHERS, *sorted(HEADS - {""}), TRAINING_STEP, "training_start"])
def test_each_statistic_launcher_and_head_of_a_column_is_known(name: str) -> None:
    assert all(term.means.endswith(".") for term in explain(name))
    assert explain(name)


def test_a_platform_is_known_by_its_form() -> None:
    assert names("cpu-intel-xeon-f6m167-2c") == ["platform"]


def test_every_page_that_is_named_has_that_section() -> None:
    for page in {term.page for term in terms()}:
        name, _, section = page.partition("#")
        headings = re.findall(r"^#+ (.*)", (ROOT / "docs" / name).read_text(), re.MULTILINE)
        assert section in ["", *(re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings)]


@pytest.mark.parametrize(
    ("printed", "name"),
    [
        ("within limits", "within-threshold"),
        ("3 missing", "missing"),
        ("!  latency[message_bytes=4096]  33 us", "latency"),
        ("!  step  12.9 ms  10.75 ms  +18.8 %  +10%  3", "regressed"),
        ("steps_to_bleu", "steps_to_<metric>"),
        ("phase/forward", "phase/<name>"),
        ("hung in body, ended after 4.6 s: rank 1 at test_h.py:7 in hang", "hung in ..."),
        ("rank 2 alone waits in all_reduce", "deadlock: ..."),
        ("rank 1 raised ValueError: bad", "rank N raised ..."),
        ("rank 1 killed by SIGSEGV", "rank N killed by ..."),
        ("waiting since 3 min for the run that uses GPU-0: pid 5", "waiting for ..."),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "the GPU's memory is full"),
        ("step +18.8 % (threshold +10%)", "beyond-threshold"),
        (
            "interleaved A/B with a90c25b475 (baseline commit): +18.8 % over 3 pairs; A/A noise +0.0 %",
            "beyond-threshold",
        ),
        ("flaky: passed at attempt 2, before: step +20.0 %", "flaky"),
        ("!  checksum  3  2  +50.0 %  exact  1", "exact-number"),
        ("checksum: 3, baseline 2 (exact)", "exact-number"),
        ("xfail_perf of test_a[ws2] is no longer needed: nothing regressed (why)", "no longer needed"),
        ("1 case failed as expected (xfail_perf)", "failed as expected"),
        ("A test_a[ws2]: step +30.0 % (threshold +10%) (advisory: shared runner)", "advisory"),
        ("? git ignores the baselines that were recorded (.gitignore:1: *.json): git add", "git ignores the baselines"),
        ("? 26 cases stored with fewer than 5 launches: their noise is not known", "few launches"),
        ("Busy machine: other processes used 1.5 of 2 cores: a baseline recorded now would be noisy", "busy machine"),
        ("baselines in baselines/cpu: 0 changed, 3 new, 0 kept", "what an update wrote"),
        ("    34 cases measured, nothing to compare with (N): test_a[ws2]", "nothing to compare with"),
        ("? not confirmed by A/B: this is a shallow clone: git fetch --deepen=100", "shallow clone"),
        ("origin/main has no commit of that name", "compared with itself"),
        ("it trains, and nothing judges whether it learns", "nothing judges whether it learns"),
        ("rank 0 printed nothing", "matches nothing in the output"),
    ],
)
def test_a_printed_line_leads_to_its_term(printed: str, name: str) -> None:
    assert names(printed)[0] == name or name in ("latency", "flaky")
    assert name in names(printed)


def sentences() -> Iterator[tuple[str, str]]:
    """Each code with a text of the rules that it is given with; ``7`` stands for what is put into one."""
    for path in Path(next(iter(judging.__path__))).glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) or (isinstance(node, ast.Tuple) and len(node.elts) == 2):
                given = node.elts if isinstance(node, ast.Tuple) else [*node.args, *(k.value for k in node.keywords)]
                for code, text in itertools.pairwise(map(_text, given)):
                    if code in REASONS and len(re.findall("[a-z]{3}", text)) > 2:
                        yield code, text


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "7" for part in node.values)  # type: ignore[misc]
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_what_a_rule_says_leads_to_its_reason_first() -> None:
    found = list(sentences())

    assert len(found) > 30
    assert [
        (code, text, names(text)[:1]) for code, text in found if text != "slower, but 7" and names(text)[:1] != [code]
    ] == []


def test_lines_of_recorded_runs_are_explained(tmp_path: Path) -> None:
    """Lines of a run without baselines, apart from its rows, and of one that failed."""
    left_open = replace(verdict("noise"), is_open=True)
    failed = result(verdict("communication"), closed(left_open, "communication changed"), reference=PAIRED)
    for results in (read_run_record(unpack("000", tmp_path)).results, [failed]):
        told = end_of(results, record="pytest")
        rest = "[ !?~+x] |what that means|Next steps|All numbers"
        said = [line.text for line in told if line.text and not re.match(rest, line.text)]
        assert said
        assert [line for line in said if not explain(line)] == []


def test_only_whole_words_lead_to_a_term() -> None:
    assert "new" not in names("new_fraction")
    assert names("blatency") == []

    assert {sign.meaning for sign in SIGNS if sign.meaning} <= {term.name for term in terms()}


def test_a_reason_of_a_conftest_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(REASONS, "odd", because("regressed", "Odd in a way."))
    [term] = explain("odd")

    assert (term.means, term.next_step) == ("Odd in a way. Verdict: regressed.", "")


def explained(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert main(["explain", *words]) == 0
    return capsys.readouterr().out.splitlines()


def test_words_are_explained_or_listed(capsys: pytest.CaptureFixture[str]) -> None:
    name, means, next_step, page = explained(capsys, "regressed")
    assert name == "regressed (verdict)"
    assert means == f"  {VERDICTS['regressed'].means}"
    assert next_step.startswith("  next: ")
    assert page == "  more: verdicts.html#verdicts of the documentation"

    lines = explained(capsys, "rank 1 killed by SIGKILL", "2 missing")
    assert [line for line in lines if line.endswith(")")] == ["rank N killed by ... (failure)", "missing (verdict)"]

    lines = explained(capsys)
    assert {"verdicts", "reasons", "metrics", "failures", "  regressed", "  busbw", "  deadlock: ..."} <= set(lines)

    assert main(["explain", "peak_memroy"]) == 2
    assert "'peak_memroy' is unknown; did you mean 'peak_memory'?" in capsys.readouterr().err
