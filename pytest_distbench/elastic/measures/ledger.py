"""Did each worker continue with what was saved? Digests at loads and checkpoints, compared. Pure.

Workers are counted: slots in a generation. What a body did not hand over has no digest at a load, and is not judged.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isclose

from pytest_distbench.elastic.measures.history import History, Worker
from pytest_distbench.elastic.records import OUTSIDE, RANDOM_PART, STEPS, HeldAt
from pytest_distbench.records.kinds import grouped
from pytest_distbench.records.wire import Event

PARAMETERS = "parameters_changed_by_load"
MOMENTS = "optimizer_moments_changed_by_load"
STEP = "optimizer_step_changed_by_load"
RATE = "learning_rate_changed_by_load"
STATE = "state_changed_by_load"
POSITION = "position_changed_by_load"
RANDOM = "random_state_changed_by_load"
OLDER = "older_checkpoint_loaded"
REPLICAS = "replicas_differ"
SHARED = "batches_shared"
CUT = "batches_cut"
OTHER = "other_samples_fed"
LEFT = "state_not_handed_over"
UPDATES = "optimizer_steps_missed"

LOADS = (PARAMETERS, MOMENTS, STEP, RATE, STATE, LEFT, POSITION, OLDER, REPLICAS, UPDATES, OTHER)
"""Metrics of each job whose workers load checkpoints; :data:`RANDOM` is added if the body keeps its random state."""

_FEWEST_STEPS = 4  # of a generation whose optimizers' steps are compared with those of others

_LEFT_OUT = 0.05  # of a generation's batches, which may be without a step, and others before were not

_SAME_RATE = 1e-6  # a schedule may compute one rate in two ways


Mismatch = tuple[str, int, int, str]
"""A fault of a worker that continued: the metric, generation and slot, and the fault in words."""


def mismatches(history: History) -> list[Mismatch]:
    found = (mismatch for check in _CHECKS for mismatch in check(history))
    return sorted(found, key=lambda mismatch: mismatch[1:3])


def _of_loads(history: History) -> Iterator[Mismatch]:
    saves = _saves(history)
    for worker in history.workers.values():
        if worker.loaded is None or not worker.loaded.step:
            continue
        step, generation = worker.loaded.step, worker.joined.generation
        those = [lines for (of, at), lines in sorted(saves.items()) if at == step and of < generation and 0 in lines]
        if not those:
            continue  # written before this run, or by a worker that died with the line
        writer, own = those[-1][0], those[-1].get(worker.joined.rank)
        older = [lines[0] for (of, at), lines in saves.items() if at < step and of < generation and 0 in lines]
        found = [*_compare(worker.held, writer, own, older), *_reset(worker.held, writer, own)]
        if own is not None and (former := history.workers.get((own.generation, own.slot))) is not None:
            found += _built_otherwise(worker, former, own)
        first = next((w for w in history.members(generation).values() if not w.joined.rank and w is not worker), None)
        if own is None and first is not None:  # a newcomer that drew random numbers of its own before the load
            load, begin, load_0, begin_0 = (w.held.get(at) for w in (worker, first) for at in ("load", "begin"))
            if load and begin and load_0 and begin_0 and (drawn := load.fresh.get(RANDOM_PART)):
                same = begin.random.get("torch")
                if drawn != load_0.fresh.get(RANDOM_PART) and same and same == begin_0.random.get("torch"):
                    why = "it draws the random numbers of rank 0; before the load it drew its own"
                    found.append((RANDOM, why, 0))
        for metric, what, was_older in found:
            behind = f"{what}, after the checkpoint of step {step}"
            yield (metric, generation, worker.joined.slot, behind)
            if was_older:
                yield (OLDER, generation, worker.joined.slot, f"{behind}: it is that of step {was_older}")


def _compare(
    held: Mapping[HeldAt, Event], writer: Event, own: Event | None, older: Sequence[Event]
) -> Iterator[tuple[str, str, int]]:
    """Differences from the checkpoint: the metric, words, and the step of the older checkpoint that fits, or 0."""

    def older_with(field: str, name: str, value: object) -> int:
        steps = [line.step for line in older if value and getattr(line, field).get(name) == value]
        return max(steps, default=0)

    for at in ("begin", "step"):
        line = held.get(at)
        if line is None:
            continue
        for metric, field, words in (
            (PARAMETERS, "parameters", "the parameters of {} are not the saved ones"),
            (PARAMETERS, "buffers", "the buffers of {} are not the saved ones"),
            (MOMENTS, "moments", "the state of the optimizer {} is not the saved one"),
            (STEP, "steps", "the optimizer {} counts another number of steps than when it was saved"),
        ):
            saved = getattr(writer, field)
            for name, value in getattr(line, field).items():
                if name in saved and saved[name] != value:
                    called = f"the optimizer {name}" if metric == PARAMETERS and name.startswith(STEPS) else name
                    why = words.format(called) + (f" ({value or 'none'}, {saved[name]})" if metric == STEP else "")
                    is_telling = metric in (PARAMETERS, MOMENTS)  # a count of steps says nothing that they do not
                    yield metric, why, older_with(field, name, value) if is_telling else 0
    if (line := held.get("load")) is not None:
        for name, rates in line.rates.items():
            if name in writer.rates and writer.rates[name] != rates:
                yield RATE, f"{name} has the learning rates {rates}, and {writer.rates[name]} were saved", 0
        for name, state in line.states.items():
            source = own if name in line.per_rank else writer
            if source is not None and name in source.states and source.states[name] != state:
                yield STATE, f"the state of {name} is not the saved one", older_with("states", name, state)
    if (line := held.get("begin")) is not None:
        here, there = (line.step, line.epoch, line.position), (writer.step, writer.epoch, writer.position)
        if here != there:
            yield POSITION, "step {}, epoch {}, sample {} of it".format(*here) + ", and {}, {}, {}".format(*there), 0
        loaded = held.get("load")
        for stream in loaded.random if loaded is not None and own is not None else ():
            if own is not None and stream in own.random and line.random.get(stream) != own.random[stream]:
                yield RANDOM, f"the random stream of {stream} is not at the position that this rank's had", 0


def _reset(held: Mapping[HeldAt, Event], writer: Event, own: Event | None) -> Iterator[tuple[str, str, int]]:
    """Parts that were loaded as saved, but begin with their state from before the load: the body has reset them.

    Other changes before the first batch are right: a sampler gets its epoch, a rule for the number of nodes sets the
    rates of a schedule. At the beginning of an epoch, counts of each epoch restart.
    """
    begin, load = held.get("begin"), held.get("load")
    if begin is None or load is None or not begin.position:
        return
    for name, state in begin.states.items():
        source = own if name in begin.per_rank else writer
        came_back = source is not None and source.states.get(name) == load.states.get(name) != state
        if came_back and load.fresh.get(name) == state:
            yield STATE, f"the state of {name} was loaded, but at the first batch it is as before the load", 0


def _built_otherwise(worker: Worker, former: Worker, own: Event) -> Iterator[tuple[str, str, int]]:
    """Buffers that no checkpoint keeps and training did not change, but that this generation built differently.

    Built for another number of nodes, or for another rank, they may differ.
    """
    begin, begun = worker.held.get("begin"), former.held.get("begin")
    if begin is None or begun is None or worker.joined.world_size != former.joined.world_size:
        return
    for name, built in begin.built.items():
        if own.built.get(name) == begun.built.get(name) not in (None, built):
            yield PARAMETERS, f"the buffer {name}, which is not saved, is not built as before", 0


def _of_fields(history: History) -> Iterator[Mismatch]:
    """Attributes of parts, and states of other objects, that start from their first value again after a load.

    They must change between checkpoints, and be the same on all ranks: caches and timestamps are not. A count whose
    value after the first step differs from that of the very beginning was set by the body.
    """
    saves = _saves(history)
    first = {line.at: line for line in reversed(history.of("held")) if line.rank == 0}
    for worker in history.workers.values():
        begin, step = worker.held.get("begin"), worker.held.get("step")
        if begin is None or worker.loaded is None or not worker.loaded.step:
            continue
        generation = worker.joined.generation
        behind = [at for at in sorted(saves) if at[1] <= worker.loaded.step and at[0] < generation and 0 in saves[at]]
        last = [at for at in behind if at[0] == behind[-1][0]] if behind else []
        if len(last) < 2:
            continue
        before, saved = (saves[at][0] for at in last[-2:])
        for name, fields in begin.fields.items():
            for field, value in fields.items():
                there = [line.fields.get(name, {}).get(field) for line in saves[last[-1]].values()]
                moves = before.fields.get(name, {}).get(field) != there[0] and len(set(there)) == 1
                if name in saved.per_rank or not moves or value == there[0]:
                    continue
                if name.startswith(OUTSIDE):
                    called = name.removeprefix(OUTSIDE)
                    why = f"{called} changes during training and starts again: pass it to rank.training(...)"
                    yield (LEFT, generation, worker.joined.slot, why)
                    continue
                pairs = [(begin, first.get("begin")), *([(step, first.get("step"))] if value.isdecimal() else [])]
                if all(_field(now, name, field) == _field(then, name, field) for now, then in pairs):
                    why = f"{name}.{field} changes during training and starts again: it is not saved, or it is reset"
                    yield (STATE, generation, worker.joined.slot, why)


def _field(line: Event | None, name: str, field: str) -> str:
    return "" if line is None else line.fields.get(name, {}).get(field, "")


def _of_options(history: History) -> Iterator[Mismatch]:
    """Workers whose optimizer has other options than rank 0's, or than an earlier generation of as many nodes had.

    A rule may set others for another number of nodes. If a schedule changes options within a generation, only those of
    the same step are compared.
    """
    lines = [line for line in history.of("held") if line.options]
    firsts = [line for line in lines if line.rank == 0]
    for begin in (line for line in lines if line.at == "begin"):
        nodes = history.world_size(begin.generation)
        for name, options in begin.options.items():
            known = [line for line in firsts if line.generation <= begin.generation and name in line.options]
            here = [line for line in known if line.generation == begin.generation and line.at == "begin"]
            before = [line for line in known if line.generation < begin.generation]
            alike = [line for line in before if history.world_size(line.generation) == nodes]
            settings = {(line.generation, tuple(line.options[name])) for line in before}
            is_scheduled = len(settings) > len({line.generation for line in before})
            then = [line for line in alike if line.step == begin.step or not is_scheduled][-1:]
            for line, of in [*((line, "with as many nodes") for line in then), *((line, "of rank 0") for line in here)]:
                if (there := line.options[name]) != options:
                    why = f"{name} is set to {_those_apart(options, there)}, and {of} to {_those_apart(there, options)}"
                    yield (STATE, begin.generation, begin.slot, why)
                    break


def _those_apart(options: Sequence[str], others: Sequence[str]) -> str:
    return ", ".join(o for i, o in enumerate(options) if [o] != [*others[i : i + 1]]) or "nothing"


def _of_updates(history: History) -> Iterator[Mismatch]:
    """Workers whose optimizers step less or more often than those of an earlier generation, or drop gradients.

    With another number of nodes they may accumulate gradients until a step has as many samples as before. One step may
    be unfinished when a generation ends, and a gradient scaler drops gradients that overflow.
    """
    known: list[tuple[int, float, float]] = []
    for generation in history.generations:
        nodes = history.world_size(generation)
        mine: list[tuple[int, float, float]] = []
        for slot, worker in history.members(generation).items():
            counts = [step.updates for step in worker.steps if step.updates is not None]
            if len(counts) < _FEWEST_STEPS:
                continue
            updates, batches = sum(counts), len(counts)
            given_up = sum(step.is_given_up for step in worker.steps)
            mine.append((nodes, updates / batches, given_up / batches))
            if not known:
                continue
            alike = [row for row in known if row[0] == nodes] or known
            rates = [(ratio, ratio * nodes / of) for of, ratio, _ in alike]
            expected = {rate * batches for usual, other in rates for rate in (usual, min(other, max(usual, 1.0)))}
            most_given_up = max(share for _, _, share in known)
            if all(abs(updates - wanted) > 1 + _LEFT_OUT * batches for wanted in expected):
                usual = alike[0][1]
                why = f"its optimizers took {updates} steps in {batches} batches; before it was {usual:g} per batch"
            elif given_up > most_given_up * batches + 2 and given_up * 4 >= batches:
                why = f"gradients of {given_up} of {batches} batches were dropped without an optimizer step"
            else:
                continue
            yield (UPDATES, generation, slot, why)
        known += mine


def _of_movement(history: History) -> Iterator[Mismatch]:
    """Workers that change fewer tensors between two checkpoints than each earlier generation did."""
    least: dict[str, int] = {}
    for generation in history.generations:
        lines = [line for line in history.of("held") if line.at == "save" and line.generation == generation]
        for slot in dict.fromkeys(line.slot for line in lines):
            for name, before in least.items():
                changed = [line.moved[name] for line in lines if line.slot == slot and name in line.moved]
                if changed and max(changed) < before:
                    why = f"{max(changed)} tensors of {name} changed between two checkpoints; before it was {before}"
                    yield (UPDATES, generation, slot, why)
        for line in lines:
            for name, count_ in line.moved.items():
                least[name] = min(least.get(name, count_), count_)


def _of_samples(history: History) -> Iterator[Mismatch]:
    """Workers whose model received rows that earlier generations had for other batches' samples, or one row twice."""
    known: dict[tuple[str, str], set[int]] = {}
    by_generation = grouped((line.generation, line) for line in history.of("fed"))
    for generation, lines in sorted(by_generation.items()):
        wrong: dict[int, list[int]] = {}
        fed = []
        for line in lines:
            worker = history.workers.get((generation, line.slot))
            samples = worker.samples(line.step) if worker is not None else []
            for name, rows in line.of_samples.items():
                if len(rows) != len(samples):
                    continue
                fed += [((name, row), sample) for row, sample in zip(rows, samples, strict=True)]
                for row, times in Counter(rows).items():
                    those = known.get((name, row), set())
                    if those and times > len(those & {*samples}):
                        wrong.setdefault(line.slot, []).append(min(those))
        for slot, others in wrong.items():
            if len(others) > 1:
                why = f"its model received sample {others[0]} instead of its own, and {len(others) - 1} more"
                yield (OTHER, generation, slot, why)
        for key, sample in fed:
            known.setdefault(key, set()).add(sample)


def _of_rates(history: History) -> Iterator[Mismatch]:
    """Ranks with another learning rate than rank 0, or than as many nodes had at the same step before."""
    for generation in history.generations:
        members = [worker for worker in history.members(generation).values() if worker.steps]
        first = next((w for w in members if w.joined.rank == 0), None)
        for worker in members:
            step, slot = worker.steps[0], worker.joined.slot
            here, there = _first_rates(worker), [] if first is None else _first_rates(first)
            if here and there and here != there:
                why = f"its first step has the learning rates {here}, the one of rank 0 has {there}"
                yield (RATE, generation, slot, why)
                continue
            # the rate that it had when as many nodes took it before
            rates = [
                (line.generation, line.lr)
                for other in history.workers.values()
                for line in other.steps
                if line.step == step.step and line.world_size == step.world_size and line.generation < step.generation
            ]
            before = max(rates)[1] if rates and all(rate is not None for _, rate in rates) else None
            if not (before is None or step.lr is None or isclose(before, step.lr, rel_tol=_SAME_RATE)):
                yield (RATE, generation, slot, f"step {step.step} had the learning rate {before} and now has {step.lr}")


def _first_rates(worker: Worker) -> list[float]:
    """Learning rates with which a worker took its first step; the rates after it if no optimizer was observed.

    A schedule sets them after each step: one that was wrong in the first step is right when the step is over.
    """
    line = worker.held.get("step")
    seen = [rate for rates in line.rates.values() for rate in rates] if line is not None else []
    return seen or [step.lr for step in worker.steps[:1] if step.lr is not None]


def _of_replicas(history: History) -> Iterator[Mismatch]:
    """Ranks whose parameters differ from rank 0's, which are saved, at their beginning or at a checkpoint."""
    together: dict[tuple[int, HeldAt, int], dict[int, Event]] = {}
    for line in history.of("held"):
        if line.parameters:
            together.setdefault((line.generation, line.at, line.step), {})[line.rank] = line
    reported: set[tuple[int, int]] = set()
    for (generation, at, step), lines in together.items():
        for rank, line in lines.items():
            if 0 not in lines or lines[0].parameters == line.parameters or (generation, line.slot) in reported:
                continue
            reported.add((generation, line.slot))
            when = f"at the checkpoint of step {step}" if at == "save" else "before its first step"
            differs = f"the parameters of rank {rank} differ from those of rank 0, {when}"
            yield (REPLICAS, generation, line.slot, differs)


_CHECKS: tuple[Callable[[History], Iterator[Mismatch]], ...] = (
    _of_loads, _of_fields, _of_options, _of_rates, _of_replicas, _of_updates, _of_movement, _of_samples,
)  # fmt: skip


def _saves(history: History) -> dict[tuple[int, int], dict[int, Event]]:
    found: dict[tuple[int, int], dict[int, Event]] = {}
    for line in history.of("held"):
        if line.at == "save":
            found.setdefault((line.generation, line.step), {})[line.rank] = line
    return found


def shared_batches(history: History) -> list[Mismatch]:
    """Workers whose models were given the same inputs as those of a lower slot, in each observed step.

    Inputs that are the same in every step, as synthetic data may be, show nothing.
    """
    found: list[Mismatch] = []
    fed: dict[int, dict[int, list[str]]] = {}
    for line in sorted(history.of("fed"), key=lambda line: line.step):
        fed.setdefault(line.generation, {}).setdefault(line.slot, []).append(line.digest)
    for generation, slots in fed.items():
        whole = {slot: inputs for slot, inputs in slots.items() if len(inputs) > 1 and len(set(inputs)) == len(inputs)}
        known: dict[tuple[str, ...], int] = {}
        for slot, inputs in sorted(whole.items()):
            if (other := known.setdefault(tuple(inputs), slot)) != slot:
                why = f"its model received the same batches as that of slot {other}"
                found.append((SHARED, generation, slot, why))
    return found


def cut_batches(history: History) -> list[Mismatch]:
    """Workers whose models were given half of their batches or less, in each observed step.

    They are reported only if every earlier generation gave a row for each sample: a model may be called several times
    in a step, or have its samples in another dimension than the first.
    """
    fed: dict[int, dict[int, list[tuple[int, Mapping[str, int]]]]] = {}
    for line in history.of("fed"):
        worker = history.workers.get((line.generation, line.slot))
        samples = len(worker.samples(line.step)) if worker is not None else 0
        fed.setdefault(line.generation, {}).setdefault(line.slot, []).append((samples, line.rows))
    found: list[Mismatch] = []
    before: list[tuple[int, Mapping[str, int]]] = []
    for generation, slots in sorted(fed.items()):
        names = {name for _, rows in before for name in rows}
        whole = {name for name in names if all(rows.get(name) == samples for samples, rows in before)}
        for slot, steps in sorted(slots.items()):
            for name in sorted(whole):
                given = [(samples, rows.get(name, 0)) for samples, rows in steps]
                if len(given) > 1 and all(samples > 3 and 0 < 2 * rows <= samples + 1 for samples, rows in given):
                    samples, rows = given[0]
                    why = f"{name} received {rows} rows for a batch of {samples}; before it was one per sample"
                    found.append((CUT, generation, slot, why))
        before += [step for steps in slots.values() for step in steps]
    return found


def count(found: Sequence[Mismatch], metric: str) -> tuple[int, str]:
    """Number of workers with a mismatch in a metric, and the first of them in words."""
    those = [(generation, slot, why) for name, generation, slot, why in found if name == metric]
    words = [f"slot {slot} in generation {generation}: {why}" for generation, slot, why in those]
    return len({each[:2] for each in those}), words[0] if words else ""
