"""The stock engine: what it reads of torchrun; and what torch does wrong."""

from __future__ import annotations

from pytest_distbench.launch.elastic.torchrun import rendezvous_seconds

EVENT = (
    '{"name": "torchelastic.worker.status.RENDEZVOUS", "source": "AGENT", "timestamp": 0, "metadata": '
    '{"run_id": "x", "group_rank": 0, "duration_ms": 1250, "agent_restarts": 1}}'
)


def test_the_time_of_each_rendezvous_is_read_of_an_agents_log() -> None:
    log = "\n".join(["W1122 master warning", EVENT, EVENT.replace("RENDEZVOUS", "START"), "{torn RENDEZVOUS", EVENT])

    assert rendezvous_seconds(log) == [1.25, 1.25]
