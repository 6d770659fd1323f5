"""Why a case ended its test: one line for lists, and the whole text."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_distbench.judging.policy import Conclusion
from pytest_distbench.judging.update_policy import why_not_storable
from pytest_distbench.records.run import CaseResult
from pytest_distbench.report import case_text, pair_text


def headline(result: CaseResult, conclusion: Conclusion) -> str:
    """One line; empty where the case simply passed."""
    launch = result.launches[-1]
    match conclusion.reason:
        case "launch" if launch.outcome == "skipped":
            return launch.reason or "all ranks skipped"
        case "launch":
            return case_text.launch_headline(launch)
        case "nothing_judged":
            shown = ", ".join(v.metric for v in result.verdicts) or "nothing"
            return (
                f"nothing was measured that can be judged: the body recorded {shown}; give what matters to rank.record "
                "with better='lower', 'higher' or 'exact', or use rank.timed"
            )
        case "refused":
            return f"not stored: {why_not_storable(result.launches)}"
        case "regressed" if conclusion.outcome == "xfailed":
            return result.xfail_perf
        case "regressed":
            return pair_text.headline(result) if _is_paired(result) else case_text.regression_headline(result)
        case "unaccepted":
            return case_text.unaccepted_headline(conclusion.verdicts)
        case "missing" if _is_paired(result):
            return pair_text.missing_text(result)
        case "missing":
            return f"no baseline for {result.environment.platform}"
        case _:
            return ""


def explanation(result: CaseResult, conclusion: Conclusion, *, command: str, platforms: Sequence[str]) -> str:
    """The text of a failed test.

    Args:
        result: of the case.
        conclusion: why it failed.
        command: that runs the test again.
        platforms: hardware classes that have baselines.
    """
    update = f"{command} --distbench-update"
    match conclusion.reason:
        case "launch":
            return case_text.launch_text(result, rerun_command=command)
        case "refused":
            return case_text.refused_text(result)
        case "regressed" if _is_paired(result):
            return pair_text.regression_text(result, rerun_command=command)
        case "regressed":
            return case_text.regression_text(result, update_command=update)
        case "unaccepted" if _is_paired(result):
            return pair_text.unaccepted_text(result, conclusion.verdicts, rerun_command=command)
        case "unaccepted":
            return case_text.unaccepted_text(result, conclusion.verdicts, update_command=update)
        case "missing" if not _is_paired(result):
            return case_text.missing_text(result, platforms=list(platforms), update_command=f"{update}=new")
        case _:
            return headline(result, conclusion)


def _is_paired(result: CaseResult) -> bool:
    return result.reference.kind == "paired"
