r"""Readers: numbers from the output or the files of an unchanged script, for ``distbench.run(..., read={...})``.

.. code-block:: python

    distbench.run("train.py", read={
        "loss_curve": stdout(r"iter \d+: loss ([\d.]+)", better="curve", first=10),
        "step_time": stdout(r"time ([\d.]+)ms", scale=1e-3, unit="s", better="lower", skip=5),
        "accuracy": jsonl("{launch_dir}/metrics.jsonl", "eval.accuracy", better="floor"),
    })

All take these keywords:

``better``
    as in ``rank.record``; ``info``, the default, is shown and not judged.
``unit``, ``scale``
    the number times ``scale`` is in ``unit``: ``scale=1e-3, unit="s"`` for milliseconds.
``rank``
    of the output or file; ``"all"``: every rank's, reduced as by ``rank.record``.
``skip``, ``first``
    the first ``skip`` values do not count; of the others only the ``first`` ones do.
``take``
    how a series becomes the launch's value: first, last, min, max, mean, median, sum. Default: the 25th percentile for
    times, the whole series for a curve, the last value for ``floor``, ``same`` and ``steps``.
``at``, ``identity``, ``at_most``, ``at_least``
    as in ``rank.record``.

An impossible reader is refused when it is made, or by ``distbench.run``. A value that is not there is an error that
shows the nearest lines of the output, or what there is instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any, Literal, TypedDict, Unpack

from pytest_distbench.errors import ConfigurationError, line_outside, show
from pytest_distbench.records.kinds import METRIC_KINDS, Better
from pytest_distbench.records.metric import NUMBER as NUMBER
from pytest_distbench.records.metric import BoundValue, Reader, Scalar, bounds_between


class Reading(TypedDict, total=False):
    """What all readers take; see the module."""

    better: Better
    unit: str
    scale: float
    rank: int | Literal["all"]
    skip: int
    first: int | None
    take: str
    at: Mapping[str, Scalar]
    identity: Mapping[str, Scalar]
    at_most: BoundValue | None
    at_least: BoundValue | None


def stdout(pattern: str, **reading: Unpack[Reading]) -> Reader:
    """Each match of a regular expression in the output of a rank, stderr too, at most one per line.

    Args:
        pattern: with one group, around the number, or with several, one of which is ``(?P<value>...)``.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("stdout", pattern, reading)


def jsonl(path: str | PathLike[str], key: str, **reading: Unpack[Reading]) -> Reader:
    """The value of a key in each line of a file with one JSON object a line.

    Args:
        path: relative to the script's working directory; it may hold what ``args`` may.
        key: ``loss``, or ``eval.loss`` for ``loss`` inside ``eval``.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("jsonl", path, reading, key=key)


def csv(path: str | PathLike[str], column: str, **reading: Unpack[Reading]) -> Reader:
    """The cells of a column of a CSV file with a header; empty cells do not count.

    Args:
        path: relative to the script's working directory; it may hold what ``args`` may.
        column: its name.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("csv", path, reading, key=column)


def mllog(key: str, *, since: str = "", **reading: Unpack[Reading]) -> Reader:
    """The value of each event of MLPerf's log (lines ``:::MLLOG {...}`` in the output).

    Args:
        key: of the event, such as ``eval_accuracy``.
        since: an event from which the seconds are counted, instead of the value: ``mllog("run_stop", since="run_start",
            unit="s", better="lower")``.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("mllog", "", reading, key=key, since=since)


def tensorboard(folder: str | PathLike[str], tag: str, **reading: Unpack[Reading]) -> Reader:
    """A scalar of TensorBoard's event files, in the order of its steps. Needs the package ``tensorboard``.

    Args:
        folder: relative to the script's working directory; it may hold what ``args`` may.
        tag: such as ``train/loss``.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("tensorboard", folder, reading, key=tag)


def _reader(kind: str, source: str | PathLike[str], reading: Reading, *, key: str = "", since: str = "") -> Reader:
    """A reader of a row of :data:`pytest_distbench.launch.readers.READERS`.

    Raises:
        ConfigurationError: one cannot be made; the message has the call and its line.
    """
    __tracebackhide__ = True
    options: dict[str, Any] = dict(reading)
    better = options.pop("better", "info")
    limits = options.pop("at_least", None), options.pop("at_most", None)
    unit = options.get("unit", "")
    problem = ""
    if unknown := sorted(set(reading) - Reading.__optional_keys__):
        problem = f"unknown keyword {', '.join(unknown)}; known are {', '.join(sorted(Reading.__optional_keys__))}"
    elif not isinstance(better, str) or better not in METRIC_KINDS or METRIC_KINDS[better].shape == "tensors":
        problem = f"better={show(better)}; wanted one of {', '.join(METRIC_KINDS)}"
    elif not isinstance(source, str | PathLike):
        problem = f"{show(source)} is a {type(source).__name__}; wanted a text or a path"
    elif not isinstance(unit, str):
        problem = f"unit={show(unit)}; wanted text, such as 's'"
    if problem:
        raise ConfigurationError(f"read.{kind}: {problem} ({line_outside()})")
    try:
        options["bounds"] = bounds_between(*limits, unit=unit, where=f"read.{kind} at {line_outside()}")
    except ConfigurationError as error:
        raise ConfigurationError(f"read.{kind}: {error} ({line_outside()})") from None
    for name in ("at", "identity"):
        if isinstance(given := options.get(name), Mapping):
            options[name] = dict(given)
    return Reader(kind=kind, source=fspath(source), key=key, since=since, better=better, **options)
