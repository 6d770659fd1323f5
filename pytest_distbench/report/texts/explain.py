"""Why a case ended its test: one line for lists, and the whole text. What decided is in the conclusion."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.judging.policy import Conclusion
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report.texts import case_text
from pytest_distbench.report.texts.control import not_found_headline, not_found_text
from pytest_distbench.report.texts.launch_text import launch_headline, launch_text


def headline(result: CaseResult, conclusion: Conclusion) -> str:
    """One line; empty where the case simply passed."""
    launch = result.launches[-1]
    match conclusion.reason:
        case "launch" if launch.outcome == "skipped":
            return launch.reason or "all ranks skipped"
        case "launch":
            return launch_headline(launch)
        case "nothing_judged":
            return case_text.nothing_judged_headline(result)
        case "refused":
            return case_text.refused_headline(result)
        case "regressed" | "beyond" if conclusion.outcome == "xfailed":
            return result.xfail_perf
        case "regressed" | "beyond":
            return case_text.regression_headline(result)
        case "unaccepted":
            return case_text.unaccepted_headline(conclusion.verdicts)
        case "missing":
            return case_text.missing_headline(result)
        case "not_found":
            return not_found_headline(result)
        case _:
            return ""


def explanation(result: CaseResult, conclusion: Conclusion, *, command: str, platforms: Sequence[str]) -> str:
    """The text of a failed test; ``platforms`` are the hardware classes that have baselines."""
    match conclusion.reason:
        case "launch":
            return launch_text(result, rerun_command=command)
        case "refused":
            return case_text.refused_text(result)
        case "regressed" | "beyond":
            return case_text.regression_text(result, command=command)
        case "unaccepted":
            return case_text.unaccepted_text(result, conclusion.verdicts, command=command)
        case "missing":
            return case_text.missing_text(result, platforms=platforms, command=command)
        case "not_found":
            return not_found_text(result, command=command)
        case _:
            return headline(result, conclusion)
