"""Checks of the second half of notebook 05, Samplers: a stream, weights, the rest of an epoch."""

from collections import Counter

from ddp_lab.checks.answers import ended_well, first, is_run, kind_of, logged, named, of_ranks
from ddp_lab.checks.verdict import NotYet, exercise

WORKERS = (0, 2, 3)  # of 05.4
STREAM, RANKS = 13, 3
DRAWS, EPOCHS, STEPS, SHARE = 12, 3, 3, 6  # of 05.5
WEIGHTLESS = {0, 1, 2}
REST = 15  # of 05.6


@exercise("05.4")
def _stream(run):
    """The answer is the run of your cell on 3 ranks: `lab.check("05.4", answer)`."""
    if "'NoneType' object has no attribute" in str(getattr(run, "error", "")):
        raise NotYet("with 0 workers get_worker_info() is None: the rank itself reads, as its only worker.")
    ended_well(run, _stream.__doc__)
    of_ranks(run, RANKS)
    for workers in WORKERS:
        own = [Counter(s for r in rank.records if r.get("workers") == workers for s in _list(r)) for rank in run.ranks]
        times, processes = sum(own, Counter()), max(workers, 1)
        if not times:
            raise NotYet(f"no samples were logged with {workers} workers. Does the stream hand out none?")
        if strange := set(times) - set(range(STREAM)):
            raise NotYet(f"sample {min(strange)} is none of the {STREAM}.")
        with_workers = f"with {workers} workers"
        if all(counts == dict.fromkeys(range(STREAM), processes) for counts in own):
            who = "each of the 3 ranks" if processes == 1 else f"each of {workers} workers of each of 3 ranks"
            often = times.total() // STREAM
            raise NotYet(f"{with_workers} {who} goes through all of the stream: each sample is read {often} times.")
        if all(counts == dict.fromkeys(range(STREAM), 1) for counts in own):
            raise NotYet(
                f"{with_workers} each rank reads every sample: it is split over the workers, and not over the ranks."
            )
        if processes > 1 and times == dict.fromkeys(range(STREAM), processes):
            raise NotYet(
                f"{with_workers} each sample is read {processes} times, by all workers of one rank: it is split over "
                "the ranks, and not over the workers."
            )
        _exact(times, range(STREAM), f"{with_workers} ")
        _even(run, workers, with_workers)
    return f"each of {STREAM} samples is read once, on 3 ranks with 0, 2 and 3 workers."


@exercise("05.5")
def _weighted(answers):
    """The answer is two runs: `lab.check("05.5", {"target": target, "run": answer})`."""
    target, run = _two(answers, "target", "run", _weighted.__doc__)
    ended_well(target, _weighted.__doc__)
    if len(target.ranks) != 1:
        raise NotYet("`target` is to be the run of one_draw.py, on one process.")
    ended_well(run, _weighted.__doc__)
    of_ranks(run, 2)
    aim = _steps(target)[0]
    own, before = _steps(run), None
    if sorted(aim) != [(epoch, step) for epoch in range(EPOCHS) for step in range(STEPS)]:
        raise NotYet("`target` has not the 3 steps of 3 epochs. Leave one_draw.py as it was, and run it again.")
    for epoch in range(EPOCHS):
        drawn = [[s for (e, _), samples in sorted(rank.items()) if e == epoch for s in samples] for rank in own]
        total = sum(map(len, drawn))
        if total == 2 * DRAWS:
            same = "the same" if drawn[0] == drawn[1] else f"{DRAWS} of its own"
            raise NotYet(f"in epoch {epoch} the ranks read {total} samples, the target {DRAWS}: each draws {same}.")
        if WEIGHTLESS & set(drawn[0] + drawn[1]):
            raise NotYet(
                f"in epoch {epoch} sample {min(WEIGHTLESS & set(drawn[0] + drawn[1]))} is read, whose weight is 0. "
                "Are these samples that were drawn, with replacement, or positions in the list of them?"
            )
        if total != DRAWS:
            raise NotYet(f"in epoch {epoch} the ranks read {total} samples, the target {DRAWS}.")
        if len(drawn[0]) != len(drawn[1]):
            raise NotYet(f"in epoch {epoch} the ranks read {len(drawn[0])} and {len(drawn[1])} samples, not half each.")
        wanted = [s for step in range(STEPS) for s in aim[epoch, step]]
        if drawn == before:
            raise NotYet(f"epoch {epoch} reads what epoch {epoch - 1} did. What does set_epoch change in the draw?")
        if Counter(drawn[0] + drawn[1]) != Counter(wanted):
            raise NotYet(
                f"in epoch {epoch} the ranks read {sorted(drawn[0] + drawn[1])}, the target {sorted(wanted)}. All "
                "ranks are to make the target's draw, whose seed is the epoch, and share it out."
            )
        for step in range(STEPS):
            both = [s for rank in own for s in rank.get((epoch, step), [])]
            if Counter(both) != Counter(aim[epoch, step]):
                raise NotYet(
                    f"the right draw, but in step {step} of epoch {epoch} the ranks read {sorted(both)}, the target "
                    f"{sorted(aim[epoch, step])}. {_why_another_step(both, aim[epoch, step])}"
                )
        before = drawn
    for name, wanted in (("sampler", SHARE), ("loader", STEPS)):
        for rank, length in enumerate(logged(run, "length" if name == "sampler" else "steps")):
            if length is ...:
                raise NotYet(f"rank {rank} logged no len({name}). Leave worker.log(length=..., steps=...) as it was.")
            if length != wanted:
                raise NotYet(f"all samples are right, and len({name}) is {length}, not {wanted}: see __len__.")
    return f"in each of {EPOCHS * STEPS} steps two ranks read what one process reads, half of it each."


def _why_another_step(read: list[int], aim: list[int]) -> str:
    if len(read) != len(aim):
        return f"That is a step of {len(read)} samples in place of {len(aim)}: how many are a rank's?"
    return "Blocks, where each rank should take every second, or another order?"


@exercise("05.6")
def _rest(answers):
    """The answer is two runs: `lab.check("05.6", {"stopped": stopped, "run": answer})`."""
    stopped, run = _two(answers, "stopped", "run", _rest.__doc__)
    ended_well(stopped, _rest.__doc__)
    before = sum((Counter(_list(r)) for rank in stopped.ranks for r in rank.records), Counter())
    if len(stopped.ranks) != 2 or len(before) != 8 or before.total() != 8:
        raise NotYet("`stopped` is to be the run of stopped.py on 2 ranks, which has read 8 samples. Run it as it was.")
    ended_well(run, _rest.__doc__)
    of_ranks(run, RANKS)
    own = [sum((Counter(_list(r)) for r in rank.records), Counter()) for rank in run.ranks]
    after = sum(own, Counter())
    if not after:
        raise NotYet(
            f"no rank logged a sample. Is the rest empty? {REST - len(before)} of the {REST} are left. (Or the loop "
            "was changed: leave it as it was.)"
        )
    again, never = sorted(set(before) & set(after)), sorted(set(range(REST)) - set(before) - set(after))
    left = set(range(REST)) - set(before)
    if len(again) == len(before) and not never:
        raise NotYet("the three ranks begin at the start of the epoch: all 8 samples that were read are read again.")
    if set(after) == set(range(len(left))) != left:
        raise NotYet(
            f"the samples read are 0 to {len(left) - 1}, as many as are left: are these *positions* in the list of the "
            "rest, which nobody has looked up?"
        )
    if again and never:
        raise NotYet(
            f"{_some(again)} read again, and {_some(never)} never read. Is it the order of epoch 1, as the stopped run "
            "had it, of which the beginning is left out?"
        )
    if all(set(counts) == left for counts in own):
        raise NotYet(f"each of the three ranks reads all {len(left)} that are left. Share them out.")
    if again == _list(stopped.ranks[0].records[0])[:1]:
        raise NotYet(
            f"{_some(again)} read again: the first of the order, with which DistributedSampler pads the {REST} to "
            f"{REST + 1} for two ranks. Take the order unpadded."
        )
    if again:
        raise NotYet(f"{_some(again)} read again: to how many ranks does `read` refer?")
    if never:
        raise NotYet(
            f"{_some(never)} never read. Does each rank take every third of the whole rest? (`read` counts samples of "
            "all ranks, a number of batches means more on three ranks than on two, and drop_last drops.)"
        )
    twice = sorted(sample for sample, times in after.items() if times > 1)
    if twice:
        raise NotYet(
            f"{_some(twice)} read twice: DistributedSampler makes the shares equal by repeating. Do without it."
        )
    sizes = [counts.total() for counts in own]
    if max(sizes) - min(sizes) > 1:
        raise NotYet(
            f"each is read once, but the ranks read {', '.join(map(str, sizes))} samples. Share them out evenly."
        )
    return f"{REST} samples, each read once: 8 on two ranks, then {', '.join(map(str, sizes))} on three."


def _even(run, workers, with_workers):
    """A hint unless every worker has its share, one of them at most one sample more than another.

    Each worker makes batches of its own, of up to 5 samples: a right share is one batch, and one record.
    """
    own = [[len(samples) for r in rank.records if r.get("workers") == workers and (samples := _list(r))]
           for rank in run.ranks]
    processes = max(workers, 1)
    low, high = STREAM // (RANKS * processes), -(-STREAM // (RANKS * processes))
    for rank, shares in enumerate(own):
        if not processes * low <= sum(shares) <= processes * high:
            raise NotYet(
                f"{with_workers} rank {rank} reads {sum(shares)} of the {STREAM} samples: each is read once, but the "
                "shares are unequal. Number all workers of all ranks, and let each take every so-many-th."
            )
    for rank, shares in enumerate(own):
        if len(shares) > processes:
            raise NotYet(
                f"{with_workers} rank {rank} logged {len(shares)} batches. The share of a worker is one: leave the "
                "loop and its batch_size=5 as they were."
            )
        if len(shares) < processes:
            raise NotYet(
                f"{with_workers} rank {rank} logged {len(shares)} of {processes} batches, one for each worker that "
                "reads: split the share of the rank over all its workers."
            )
    flat = sorted(sum(own, []))
    if flat[-1] - flat[0] > 1:
        raise NotYet(
            f"{with_workers} each sample is read once, but one worker reads {flat[-1]}, another {flat[0]}. Number all "
            "workers of all ranks, and let each take every so-many-th."
        )


def _list(record):
    """The samples of a record."""
    samples = record.get("samples")
    if not isinstance(samples, list):
        return []
    if strange := [s for s in samples if isinstance(s, bool) or not isinstance(s, int)]:
        raise NotYet(f"{strange[0]!r} was logged as a sample, and is no number of one. Leave worker.log as it was.")
    return samples


def _two(answers, one, other, doc):
    """The two runs of an answer."""
    if is_run(answers) or not isinstance(answers, dict) or not {one, other} <= set(answers):
        raise NotYet(f"the answer is {'one run' if is_run(answers) else kind_of(answers)}. Give both. {doc}")
    return answers[one], answers[other]


def _steps(run):
    """For each rank {(epoch, step): samples}."""
    found = []
    for rank in run.ranks:
        own = {}
        for record in rank.records:
            if samples := _list(record):
                if not {"epoch", "step"} <= set(record):
                    raise NotYet(
                        "a record has no epoch or no step. Leave worker.log(epoch=..., step=..., ...) as it was."
                    )
                own.setdefault((record["epoch"], record["step"]), []).extend(samples)
        found.append(own)
    if (silent := first(not own for own in found)) is not None:
        raise NotYet(
            f"{named([silent])} logged no samples: its sampler hands out nothing, or worker.log(epoch=..., step=..., "
            "samples=...) was changed."
        )
    return found


def _exact(times, wanted, where):
    """A hint unless each sample was read once."""
    never = [sample for sample in wanted if sample not in times]
    twice = sorted(sample for sample, count in times.items() if count > 1)
    if never:
        if twice:
            more = f"{_some(never)} never read, and {_some(twice)} read more than once"
            raise NotYet(f"{where}{more}. Have two workers one number?")
        raise NotYet(f"{where}{_some(never)} never read. Is the remainder of a division left out?")
    if twice:
        raise NotYet(f"{where}{_some(twice)} read more than once. Is a share padded, or have two workers one number?")


def _some(samples):
    """`sample 3 is`, `5 samples, such as 3, are`."""
    return f"sample {samples[0]} is" if len(samples) == 1 else f"{len(samples)} samples, such as {samples[0]}, are"
