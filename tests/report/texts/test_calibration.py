"""What a calibration says: what can be found here, with how many launches, and what would hold the tolerance."""

from __future__ import annotations

from support.calibrations import calibration, case_result, drawn

from pytest_distbench.commands.calibrate import analyse
from pytest_distbench.report.texts.calibration import calibration_lines


def test_a_quiet_machine_holds_the_tolerance() -> None:
    found = calibration(drawn(4, 5, sigma=0.01))
    lines = calibration_lines(found, show_all=False)

    assert "a tolerance of 10% holds here for 1 of 1 metric with 10 launches" in lines
    assert any(line.startswith("A/A: ") and line.endswith(": 0 false alarms in 2 comparisons") for line in lines)
    assert not [line for line in lines if line.startswith("?")]


def test_a_noisy_machine_says_how_many_launches_would_hold_it() -> None:
    found = calibration(drawn(4, 5, sigma=0.07), tolerance=0.2)
    needed = found.cases[0].metrics[0].launches_needed
    text = "\n".join(calibration_lines(found, show_all=False))

    assert needed is not None
    assert f"with {needed}" in text
    assert f"? for 1 more with {needed} launches" in text


def test_a_machine_that_no_number_of_launches_helps_is_told_so() -> None:
    text = "\n".join(calibration_lines(calibration(drawn(4, 5, sigma=0.1)), show_all=False))

    assert "? not for 1 that are too noisy, be the launches a hundred or any number:" in text


def test_a_drifting_machine_says_that_launches_do_not_help() -> None:
    found = calibration(drawn(4, 5, sigma=0.01, drift=0.5))
    text = "\n".join(calibration_lines(found, show_all=False))

    assert "? not for 1 that move from round to round" in text
    assert "only more than a doubling would be seen" in text
    assert "proposed" not in text


def test_a_step_between_the_halves_is_a_false_alarm_and_named() -> None:
    quiet = drawn(4, 5, sigma=0.01)
    found = calibration([[v * (1.0 if i < 2 else 1.5) for v in values] for i, values in enumerate(quiet)])
    lines = calibration_lines(found, show_all=False)

    assert found.cases[0].alarms == ["step"]
    assert "! test_a.py::test_a step" in lines


def test_the_noisiest_come_first_and_the_rest_is_counted() -> None:
    sizes = {f"latency[message_bytes={i}]": 0.001 * i for i in range(1, 101)}
    rounds = [
        [
            case_result({"step": drawn(1, 5, sigma=0.001, seed=r)[0]}, test="test_quiet"),
            case_result({key: drawn(1, 5, sigma=s, seed=1000 * r + i)[0] for i, (key, s) in enumerate(sizes.items())}),
        ]
        for r in range(4)
    ]
    found = analyse(rounds, tolerance=0.1, duration_s=1.0)
    lines = calibration_lines(found, show_all=False)

    detectable = [m.detectable["10+10"] for m in found.cases[1].metrics]
    assert detectable == sorted(detectable, reverse=True)
    assert len(lines) < 30
    assert len(calibration_lines(found, show_all=True)) > 100
    headings = [line.partition(" ")[0] for line in lines if " launches, " in line]
    assert headings == ["test_a.py::test_a", "test_quiet.py::test_quiet"]
    assert any("95 more, " in line for line in lines)
