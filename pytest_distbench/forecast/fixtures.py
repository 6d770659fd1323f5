"""ForecastCall, the fixture ``forecast``: a step on many ranks, without them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from pytest_distbench.errors import DistbenchError, DistbenchWarning, show
from pytest_distbench.forecast.cluster import read_cluster
from pytest_distbench.forecast.model import COLLECTIVES
from pytest_distbench.plugin.arguments import Called, Judged
from pytest_distbench.plugin.distbench import Distbench
from pytest_distbench.plugin.outcomes import Run
from pytest_distbench.units import format_percent

if TYPE_CHECKING:
    from pytest_distbench.worker.context import RankContext

_RECORD = "pytest_distbench.forecast.record:record"
_MOST_RANKS = 1 << 20
_MOST_WORLDS = 16


class ForecastCall:
    """The ``forecast`` fixture."""

    def __init__(self, distbench: Distbench) -> None:
        self._distbench = distbench

    def __call__(
        self,
        train: Callable[[RankContext], object] | str,
        *,
        worlds: Sequence[int],
        cluster: str,
        params: Mapping[str, Any] | None = None,
        fake_tensors: bool = False,
        **options: Unpack[Judged],
    ) -> Run:
        """Forecast a step of a training at each of several sizes, and judge it against the baseline.

        One process runs the training as rank 0 of so many, on a backend that moves no data. Judged exactly are the
        communication fingerprint of each size, ``gradient_bytes``, ``activation_bytes`` and ``flops``;
        ``step_forecast`` may not rise by more than the tolerance, 2 % unless ``tolerance={"step_forecast": ...}`` says
        otherwise. It is shown only where the cluster states no computing, which then is measured on this machine.

        Args:
            train: body with a loop of ``rank.timed`` or ``rank.goal``.
            worlds: numbers of ranks to forecast, 1 or more each.
            cluster: description of the cluster: a TOML file next to the test, or the name of one in this package.
            params: parameters of the body.
            fake_tensors: the body's tensors have shapes and no data, so that no network is too large, and each number
                that is read from one is 1. DistributedDataParallel, and shapes that depend on values, need data.

        Raises:
            Regression: the forecast rose, or what a rank computes, sends or holds changed.
            LaunchFailed: the body failed, or has no step.
            Misuse: an argument or the cluster cannot be used.
        """
        self._distbench.skip_without_timings("forecast has ranks of its own")
        given = self._distbench.arguments("forecast")
        given.keywords(options, self.__call__, Judged)
        if not isinstance(worlds, Sequence) or isinstance(worlds, str) or not 1 <= len(worlds) <= _MOST_WORLDS:
            given.refuse(f"worlds={show(worlds)}: wanted a list of 1 to {_MOST_WORLDS} numbers of ranks: [64, 1024]")
        sizes = [given.whole("worlds: a number of ranks", world, least=1, most=_MOST_RANKS) for world in worlds]
        if len({*sizes}) < len(sizes):
            given.refuse(f"worlds={show(worlds)}: wanted each once")
        try:
            described = read_cluster(given.text("cluster", cluster), given.file.parent, frozenset(COLLECTIVES))
        except DistbenchError as error:
            given.refuse(str(error))
        if described.computing and described.missed > described.within:
            off = f"is off by {format_percent(described.missed)}, more than within={described.within:g}"
            warnings.warn(f"forecast: cluster {cluster!r} {off}: no step is judged", DistbenchWarning, stacklevel=2)
        is_fake = given.yes_or_no("fake_tensors", fake_tensors)
        if is_fake and not described.computing:
            given.refuse(f"fake_tensors=True: nothing to measure; wanted a cluster with [computing], not {cluster!r}")
        own = {} if params is None else dict(given.mapping("params", params))
        wanted = Called(
            body=train,
            argument="train",
            called_by=_RECORD,
            params={
                "worlds": sizes,
                "cluster": msgspec.to_builtins(described),
                "params": own,
                "fake_tensors": is_fake,
            },
            world_size=None if self._distbench.world_size == 1 else 1,  # the case has it in its name
            **options,
        )
        return self._distbench.path.run(given, wanted)
