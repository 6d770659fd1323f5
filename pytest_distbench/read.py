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
    the number times ``scale`` is in ``unit``: ``scale=1e-3, unit="s"`` for milliseconds. Without ``scale``, a number
    with ``ms`` or another unit behind it becomes one in ``unit``.
``rank``
    of the output or file; ``"all"``: every rank's, reduced as by ``rank.record``.
``skip``, ``first``
    the first ``skip`` values do not count; of the others only the ``first`` ones do.
``take``
    how a series becomes the launch's value: first, last, min, max, mean, median, sum. Default: the 25th percentile for
    times, the whole series for a curve, the last value for ``floor``, ``same`` and ``steps``.
``at``, ``identity``, ``at_most``, ``at_least``
    as in ``rank.record``.
``where``
    of ``csv``, ``jsonl`` and ``json``: the rows that count, as ``where={"rank": 0}``.
``step``
    of the same: the column or key that says how far the training is. Where it goes back, the training was restarted:
    what it has made again counts once, as last made, and a line says so. Default: the first that all rows have of
    ``global_step``, ``_step``, ``step``, ``iteration`` and ``iter``, and ``epoch``. None: no column.

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
    """Keywords of all readers; see the module."""

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


class RowReading(Reading, total=False):
    """Further keywords of readers of rows: ``where`` and ``step``, see the module."""

    where: Mapping[str, Scalar]
    step: str | None


def stdout(pattern: str, **reading: Unpack[Reading]) -> Reader:
    """Read each match of a regular expression in the output of a rank, stderr too, at most one per line.

    Args:
        pattern: regular expression with one group, around the number, or several, one of them ``(?P<value>...)``.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("stdout", pattern, reading)


def jsonl(path: str | PathLike[str], key: str, **reading: Unpack[RowReading]) -> Reader:
    """Read the value of a key in each line of a file with one JSON object a line.

    A ``null`` counts as ``nan`` where rows have a value, as an empty cell of :func:`csv` does.

    Args:
        path: relative to the script's working directory; it may hold what ``args`` may.
        key: ``loss``, or ``eval.loss`` for ``loss`` inside ``eval``; ``losses.0`` is the first of a list.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("jsonl", path, reading, key=key)


def json(path: str | PathLike[str], key: str, **reading: Unpack[RowReading]) -> Reader:
    """Read a number in a file that is one JSON document, or one of each element of a list in it.

    Args:
        path: relative to the script's working directory; it may hold what ``args`` may.
        key: ``test.accuracy`` for ``accuracy`` inside ``test``; ``log_history[].loss`` for ``loss`` in each element of
            the list ``log_history`` that has it; ``loss[]`` for a list of numbers.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("json", path, reading, key=key)


def csv(path: str | PathLike[str], column: str, **reading: Unpack[RowReading]) -> Reader:
    """Read the cells of a column of a CSV file with a header; in a file ``.tsv`` tabs separate them.

    An empty cell does not count if something else is logged in its row, or only every few rows have a value. Else it
    is a ``nan``, which pandas writes so.

    Args:
        path: relative to the script's working directory; it may hold what ``args`` may.
        column: name of the column.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("csv", path, reading, key=column)


def mllog(key: str, *, since: str = "", **reading: Unpack[Reading]) -> Reader:
    """Read the value of each event of MLPerf's log (lines ``:::MLLOG {...}`` in the output).

    Args:
        key: name of the event, such as ``eval_accuracy``; ``tracked_stats.throughput`` for one of its values.
        since: an event from which the seconds are counted, instead of the value: ``mllog("run_stop", since="run_start",
            unit="s", better="lower")``.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("mllog", "", reading, key=key, since=since)


def tensorboard(folder: str | PathLike[str], tag: str, **reading: Unpack[Reading]) -> Reader:
    """Read a scalar of TensorBoard's event files, in the order of its steps. Needs the package ``tensorboard``.

    Each folder is a run. Runs below ``folder`` are joined if they have no step in common; if ``folder`` itself has the
    tag, they do not count.

    Args:
        folder: relative to the script's working directory; it may hold what ``args`` may. ``runs/loss_train`` for the
            curve ``train`` of ``SummaryWriter("runs").add_scalars("loss", ...)``.
        tag: such as ``train/loss``.
        reading: see the module.
    """
    __tracebackhide__ = True
    return _reader("tensorboard", folder, reading, key=tag)


def _reader(kind: str, source: str | PathLike[str], reading: Reading, *, key: str = "", since: str = "") -> Reader:
    __tracebackhide__ = True
    options: dict[str, Any] = dict(reading)
    better = options.pop("better", "info")
    limits = options.pop("at_least", None), options.pop("at_most", None)
    unit = options.get("unit", "")
    problem = ""
    known = (RowReading if kind in ("csv", "json", "jsonl") else Reading).__optional_keys__
    if unknown := sorted(set(reading) - known):
        problem = f"unknown keyword {', '.join(unknown)}; known are {', '.join(sorted(known))}"
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
    for name in ("at", "identity", "where"):
        if isinstance(given := options.get(name), Mapping):
            options[name] = dict(given)
    return Reader(kind=kind, source=fspath(source), key=key, since=since, better=better, **options)
