"""Made-up streams: kernels run one after the other, on the host's clock."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from support import streams
from support.streams import CUDAGraph, Device, Event, Stream


@pytest.fixture(autouse=True)
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[Device]:
    monkeypatch.setattr(streams, "CALLS", [])
    monkeypatch.setattr(streams, "STREAMS", [])
    made = Device()
    monkeypatch.setattr(streams, "DEVICE", made)
    return made


def test_a_kernel_begins_when_those_before_it_are_over(device: Device) -> None:
    device.enqueue(5.0)
    begin, end = Event(), Event()
    begin.record()
    device.enqueue(0.25)
    device.enqueue(0.5)
    end.record()

    assert begin.elapsed_time(end) == pytest.approx(750.0)
    assert not begin.query()


def test_on_an_idle_stream_it_begins_now(device: Device) -> None:
    begin, end = Event(), Event()
    begin.record()
    time.sleep(0.01)
    device.enqueue(1e-6)
    end.record()

    assert begin.elapsed_time(end) >= 10.0


def test_whoever_waits_goes_on_when_the_stream_is_done(device: Device) -> None:
    start = time.perf_counter()
    device.enqueue(0.02)
    device.current.synchronize()

    assert time.perf_counter() - start >= 0.02
    assert device.current.query()


def test_streams_run_side_by_side_until_one_waits_for_the_other(device: Device) -> None:
    side = Stream()
    side.add(5.0)
    assert device.current.query()
    device.current.wait_stream(side)
    assert not device.current.query()

    other = Stream()
    other.wait_event(side.record_event())
    assert other.busy_until == side.busy_until


def test_an_event_without_a_moment_has_no_time() -> None:
    with pytest.raises(ValueError, match="must be recorded"):
        Event().elapsed_time(Event())


def test_a_graph_takes_the_kernels_and_a_replay_runs_them_all(device: Device) -> None:
    graph = device.captured = CUDAGraph()
    device.enqueue(1.0)
    device.enqueue(2.0)
    with pytest.raises(RuntimeError, match="not permitted when stream is capturing"):
        device.current.synchronize()
    device.captured = None
    assert device.current.query()
    begin, end = Event(), Event()
    device.enqueue(1.0)
    begin.record()
    graph.replay()
    end.record()

    assert begin.elapsed_time(end) == pytest.approx(3000.0)


def test_who_waits_for_a_kernel_that_failed_is_told_and_nobody_before(device: Device) -> None:
    device.enqueue(5.0, OSError("late"))
    Stream().synchronize()
    device.enqueue(0.0)
    device.failures = [(0.0, OSError("assert"))]

    for _ in range(2):
        with pytest.raises(OSError, match="assert"):
            Stream().synchronize()
