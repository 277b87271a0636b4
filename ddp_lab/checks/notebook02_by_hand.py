"""Checks of the second half of notebook 02: a ring, buckets and SyncBatchNorm by hand."""

import math

from ddp_lab.checks.answers import calls_in, ended_well, first, named, of_ranks, script_of, series
from ddp_lab.checks.verdict import NotYet, exercise
from ddp_lab.errors import InputError

EQUAL = 1e-12  # float64 rounds at some 1e-16, and every mistake moves more


def _counted(run):
    """The collectives of a run, or a hint: only `--count` has them."""
    try:
        return run.collectives
    except InputError:
        raise NotYet("the run's collectives were not counted. Leave --count in the cell's first line.") from None


# ---- 02.4

PLACES, ROUNDS, BYTES = 1200, 6, 14_400


@exercise("02.4")
def _second_phase(run):
    """The answer is the run of your cell on 4 ranks: `lab.check("02.4", answer)`."""
    spots = getattr(getattr(run, "error", None), "where", None) or []
    if spots and all(spot.get("collective") == "send" for spot in spots):
        raise NotYet("the run hung: all ranks stand in send, and nobody receives. exchange() does both at once.")
    ended_well(run, _second_phase.__doc__)
    of_ranks(run, 4)
    chunks = [{r["step"]: r["chunks"] for r in rank.records if "chunks" in r and "step" in r} for rank in run.ranks]
    for rank, own in enumerate(chunks):
        if sorted(own) != list(range(ROUNDS + 1)) or not all(_four_numbers(value) for value in own.values()):
            raise NotYet(
                f"rank {rank} logged its chunks in {len(own)} of 7 places. Leave worker.log(step=..., chunks=[...]) as "
                "it was: at the start, and after each round of either loop."
            )
    ends = [[record for record in rank.records if "least" in record and "most" in record] for rank in run.ranks]
    if not all(ends):
        raise NotYet("a rank did not log least and most. Leave the last worker.log(...) as it was.")
    for step in range(4, ROUNDS + 1):
        _round_is_right(chunks, step)
    if wrong := [rank for rank, own in enumerate(ends) if own[-1]["least"] < 1111]:
        end = ends[wrong[0]][-1]
        raise NotYet(
            f"the first place of each chunk is right, others are not: on rank {wrong[0]} t goes from {end['least']:g} "
            f"to {end['most']:g}. Receive into the whole chunk, a view of t."
        )
    calls = _counted(run)
    others = sorted(set(calls["op"]) - {"send", "recv", "barrier"})
    if others:
        raise NotYet(f"the numbers are right, but by {others[0]}. Here it is to be done by sends, with exchange().")
    sends = calls[calls["op"] == "send"]
    for rank in range(4):
        own = sends[sends["rank"] == rank]
        if set(own["peer"]) - {(rank + 1) % 4}:
            peers = named(sorted(set(own["peer"])))
            raise NotYet(f"the first places are right, but rank {rank} sends to {peers}. Send to the right only.")
        if (sent := own["bytes"].sum()) != BYTES:
            why = "One chunk a round is enough." if sent > BYTES else "They did not come from the left in each round."
            raise NotYet(f"the first places are right, but rank {rank} has sent {sent:,} bytes, not {BYTES:,}. {why}")
    for rank, own in enumerate(ends):
        for number, value in enumerate(own[-1].get("last") or [0]):
            if value != (number + 1) * 1111:
                raise NotYet(
                    f"the first places are right, but chunk {number} of rank {rank} ends in {value:g}, not "
                    f"{(number + 1) * 1111}: it holds another chunk's numbers. Send on what came in the round before."
                )
    return f"4 ranks have the sums in all {PLACES:,} places, and each has sent {BYTES:,} bytes, 1.5 n, to its right."


def _four_numbers(value):
    return isinstance(value, list) and len(value) == 4 and all(isinstance(number, (int, float)) for number in value)


def _round_is_right(chunks, step):
    """A hint unless each rank has one complete chunk more after this round than after the one before."""
    before, after = ([own[number] for own in chunks] for number in (step - 1, step))
    for rank in range(4):
        for number, (old, new) in enumerate(zip(before[rank], after[rank], strict=True)):
            spot = f"after round {step} rank {rank} has {new:g} in chunk {number}"
            twice = any(digit > "1" for digit in f"{new:.0f}")
            if old == 1111 and new != 1111 and not twice:
                begin = "Which chunk has a rank complete after the first loop? (rank + 1) % size; begin with that."
                go_on = "The round before was right: now send on what has just come. Its number is one less."
                raise NotYet(f"{spot}, which was complete before: what came was not. {begin if step == 4 else go_on}")
            if old != new and twice:
                raise NotYet(f"{spot}: some rank is in it more than once. What comes now is complete: it replaces.")
    done = [sum(value == 1111 for value in own) for own in after]
    if min(done) < step - 2:
        rank = done.index(min(done))
        if all(after[rank] == before[rank] for rank in range(4)):
            raise NotYet(
                f"after round {step} each rank has {done[rank]} of 4 chunks complete, as after round {step - 1}: "
                "nothing new. A complete chunk goes to the right (what came last, not the same one again), and what "
                "comes is received into its place: `here = theirs` would be a name alone."
            )
        raise NotYet(
            f"after round {step} rank {rank} has {done[rank]} of 4 chunks complete, not {step - 2}. In each round a "
            "rank sends the chunk that it got complete last, and receives the one whose number is one less."
        )


# ---- 02.5

LIMIT, ALL, FEWEST = 20_000, 50_688, 3


@exercise("02.5")
def _buckets(run):
    """The answer is the run of your cell on 2 ranks: `lab.check("02.5", answer)`."""
    ended_well(run, _buckets.__doc__)
    of_ranks(run, 2)
    gaps = series(run, "gradients_to_ddp", 3)
    calls = _counted(run)
    mine = calls[(calls["op"] == "all_reduce") & (calls["group"] == "default_pg") & (calls["rank"] == 0)]
    for step in range(3):
        sizes = [int(size) for size in mine[mine["step"] == step]["bytes"]]
        _fit_the_limit(sizes, step)
    worst = max(max(own) for own in gaps)
    if not worst <= EQUAL:
        step = first(not max(column) <= EQUAL for column in zip(*gaps, strict=True))
        gap = max(own[step] for own in gaps)
        raise NotYet(
            f"the sizes are right, but in step {step} the gradients are {gap:.2g} from DDP's. Divided by the number "
            "of ranks, copied back into every p.grad, and in the same order on both ranks?"
        )
    return f"{len(sizes)} all-reduces a step, of {', '.join(f'{size:,}' for size in sizes)} bytes, and DDP's gradients."


def _fit_the_limit(sizes, step):
    if not sizes:
        raise NotYet(f"no all-reduce in step {step}: average(...) is to be called for each bucket, in every step.")
    if len(sizes) == 1:
        raise NotYet(
            f"one all-reduce of {sizes[0]:,} bytes. Close the bucket before its `.nbytes` exceed LIMIT, and begin "
            "another."
        )
    if too_large := [size for size in sizes if size > LIMIT]:
        if sizes == sorted(set(sizes)):
            raise NotYet(
                f"in step {step} the buckets have {', '.join(f'{size:,}' for size in sizes)} bytes, one more than the "
                "other. Is the bucket emptied when it has gone?"
            )
        raise NotYet(
            f"in step {step} a bucket has {too_large[0]:,} bytes, more than {LIMIT:,}. Look before you put a gradient "
            "in, not after."
        )
    if sum(sizes) < ALL:
        raise NotYet(
            f"in step {step} {sum(sizes):,} of {ALL:,} bytes were reduced. What lies in the bucket when the loop ends?"
        )
    if sum(sizes) > ALL:
        raise NotYet(f"in step {step} {sum(sizes):,} bytes were reduced, and there are {ALL:,}: some more than once.")
    if len(sizes) > FEWEST:
        each = ", one for each gradient" if len(sizes) == 12 else ""
        raise NotYet(
            f"{len(sizes)} all-reduces in step {step}{each}, where {FEWEST} are enough. Fill a bucket before it goes."
        )


# ---- 02.6

SHARES, MOMENTUM, EPS = (4, 3, 2), 0.1, 1e-5
NAMES = ("x", "g", "w", "b", "y", "grad_x", "grad_w", "grad_b", "running_mean", "running_var")


@exercise("02.6")
def _sync_batchnorm(run):
    """The answer is the run of your cell on 3 ranks: `lab.check("02.6", answer)`."""
    ended_well(run, _sync_batchnorm.__doc__)
    of_ranks(run, 3)
    steps = [_step(run, step) for step in range(2)]
    running = None
    worst = 0.0
    for step, ranks in enumerate(steps):
        running, gap = _as_the_whole_batch(ranks, running, step)
        worst = max(worst, gap)
    _one_collective_each(run)
    return (
        f"as one BatchNorm over all {sum(SHARES)} rows, forward, backward and running statistics (largest difference "
        f"{worst:.0e}), with one collective in each forward and one in each backward."
    )


def _step(run, step):
    """For each rank the arrays that it has logged in this step, or a hint."""
    import numpy

    found = []
    for rank, count in zip(run.ranks, SHARES, strict=True):
        merged = {}
        for record in rank.records:
            if record.get("step") == step:
                merged |= record
        arrays = {}
        for name in NAMES:
            if merged.get(name) is None:
                raise NotYet(f"rank {rank.rank} logged no {name} in step {step}. Leave compare(SyncBatchNorm.apply).")
            shape = (count, 3) if name in ("x", "g", "y", "grad_x") else (3,)
            arrays[name] = numpy.asarray(merged[name], dtype=float)
            if arrays[name].shape != shape:
                raise NotYet(
                    f"in step {step} {name} of rank {rank.rank} has the shape {arrays[name].shape}, not {shape}."
                )
        found.append(arrays)
    return found


def _as_the_whole_batch(ranks, running, step):
    """((running mean, running variance), the largest difference) of a step that equals the whole batch, else a hint."""
    import numpy

    x, g = (numpy.concatenate([own[name] for own in ranks]) for name in ("x", "g"))
    w, b = ranks[0]["w"], ranks[0]["b"]
    n, mean, var = len(x), x.mean(0), x.var(0)
    old_mean, old_var = running if running else (numpy.zeros(3), numpy.ones(3))

    def outputs(means, variances):
        """y of each rank with such statistics of its own."""
        each = zip(ranks, means, variances, strict=True)
        return [w * (own["x"] - m) / numpy.sqrt(v + EPS) + b for own, m, v in each]

    def differ(name, expected):
        return max(float(abs(own[name] - want).max()) for own, want in zip(ranks, expected, strict=True))

    def matches(name, expected):
        return differ(name, expected) <= 1e-9  # NaN is none

    own_means, own_vars = [own["x"].mean(0) for own in ranks], [own["x"].var(0) for own in ranks]
    flat_mean, flat_var = numpy.mean(own_means, axis=0), numpy.mean(own_vars, axis=0)
    flat_squares = numpy.mean([(own["x"] ** 2).mean(0) for own in ranks], axis=0) - flat_mean**2
    shares = numpy.array(SHARES)[:, None]
    within = (shares * numpy.array(own_vars)).sum(0) / n

    right = outputs([mean] * 3, [var] * 3)
    worst = differ("y", right)
    if not worst <= EQUAL:
        said = f"in step {step} the output is {worst:.2g} from that of the whole batch"
        if matches("y", outputs(own_means, own_vars)):
            raise NotYet(f"{said}: each rank still normalises by the mean and variance of its own rows.")
        if any(matches("y", outputs([flat_mean] * 3, [v] * 3)) for v in (flat_var, flat_squares)):
            raise NotYet(
                f"{said}: it has the mean of the ranks' means, as if they had equally many rows. They have "
                f"{', '.join(map(str, SHARES))}: add up sums and counts."
            )
        if any(matches("y", outputs([mean] * 3, [v] * 3)) for v in (flat_var, within)):
            raise NotYet(
                f"{said}: the mean is right; the variance is a mean of the ranks' variances, and lacks what lies "
                "between their means. Add up squares."
            )
        if matches("y", outputs([mean] * 3, [var * n / (n - 1)] * 3)):
            raise NotYet(f"{said}: it is normalised by the unbiased variance, which belongs to running_var alone.")
        if matches("y", outputs([mean] * 3, own_vars)):
            raise NotYet(f"{said}: the mean is that of all rows, the variance that of each rank's own.")
        raise NotYet(f"{said}. From the sums over all ranks, n too: m = Σx / n, v = Σx² / n − m².")

    new_mean, new_var = old_mean + MOMENTUM * (mean - old_mean), old_var + MOMENTUM * (var * n / (n - 1) - old_var)
    _running("running_mean", differ, matches, old_mean, mean, step, {"the mean of each rank's own rows": own_means})
    own_unbiased = [v * count / (count - 1) for v, count in zip(own_vars, SHARES, strict=True)]
    kinds = {
        "the biased variance": [var] * 3,
        "the variance of each rank's own rows": own_unbiased,
        "n for this rank's rows": [var * count / (count - 1) for count in SHARES],
    }
    _running("running_var", differ, matches, old_var, var * n / (n - 1), step, kinds)

    normal = [(own["x"] - mean) / numpy.sqrt(var + EPS) for own in ranks]
    parts_w = [(own["g"] * x_hat).sum(0) for own, x_hat in zip(ranks, normal, strict=True)]
    parts_b = [own["g"].sum(0) for own in ranks]

    def inputs(weights, biases, counts):
        each = zip(ranks, normal, weights, biases, counts, strict=True)
        return [w / numpy.sqrt(var + EPS) * (own["g"] - db / c - x_hat * dw / c) for own, x_hat, dw, db, c in each]

    all_w, all_b = sum(parts_w), sum(parts_b)
    gap = differ("grad_x", inputs([all_w] * 3, [all_b] * 3, [n] * 3))
    if not gap <= EQUAL:
        said = f"the forward is right; in step {step} the gradient of the input is {gap:.2g} off"
        if any(matches("grad_x", inputs(parts_w, parts_b, counts)) for counts in ([n] * 3, SHARES)):
            raise NotYet(f"{said}: it has the sums over this rank's rows. The other rows have a part in m and v, too.")
        if any(matches("grad_x", inputs([all_w] * 3, [all_b] * 3, counts)) for counts in (SHARES, [3 * n] * 3)):
            raise NotYet(f"{said}: either n is not that of all ranks, or the sums are means (AVG).")
        if matches("grad_x", [w / numpy.sqrt(var + EPS) * own["g"] for own in ranks]):
            raise NotYet(f"{said}: it takes m and v for constants. The last two terms are missing.")
        raise NotYet(f"{said}. w / √(v + ε) · (g − Σg / n − x̂ Σ(g x̂) / n), both sums and n over all ranks.")
    worst = max(worst, gap)
    for name, whole in (("weight", all_w), ("bias", all_b)):
        own = [rank[f"grad_{name[0]}"] for rank in ranks]
        gap = float(abs(sum(own) - whole).max())
        if not gap <= EQUAL * 10:
            said = f"the gradient of the input is right; those of the {name} do not add up to the whole batch's"
            if all(abs(each - whole).max() <= 1e-9 for each in own):
                raise NotYet(
                    f"{said}: every rank hands back the sum of all. DDP adds up and divides by N, and would get N "
                    "times too much. Hand back this rank's part; all_reduce works in place, so keep a copy of it."
                )
            raise NotYet(f"{said} (off by {gap:.2g}). Hand back the sum over this rank's rows.")
        worst = max(worst, gap)
    return (new_mean, new_var), worst


def _running(name, differ, matches, old, new, step, wrong):
    """A hint unless this statistic has moved on each rank from old to new by the momentum."""
    gap = differ(name, [old + MOMENTUM * (new - old)] * 3)
    if gap <= EQUAL:
        return
    said = f"the output is right; in step {step} {name} is {gap:.2g} off"
    if matches(name, [old] * 3):
        raise NotYet(f"{said}: it has not moved. Change it in place, by lerp_.")
    for kind, values in wrong.items():
        if matches(name, [old + MOMENTUM * (value - old) for value in values]):
            raise NotYet(f"{said}: it takes {kind}. {_BELONGS[name]}")
    if matches(name, [MOMENTUM * old + (1 - MOMENTUM) * new] * 3):
        raise NotYet(f"{said}: momentum {MOMENTUM} is the share of the new value here, not of the old.")
    if matches(name, [new] * 3):
        raise NotYet(f"{said}: it has taken the new value whole. It moves by momentum times the difference.")
    raise NotYet(f"{said}. {_BELONGS[name]}")


_BELONGS = {
    "running_mean": "Here belongs the mean of all rows.",
    "running_var": "Here belongs the unbiased variance of all rows, v n / (n - 1).",
}


def _one_collective_each(run):
    calls = _counted(run)
    calls = calls[calls["op"] != "barrier"]
    per_step = len(calls[calls["rank"] == 0]) / 2
    if not math.isclose(per_step, 2):
        tree = script_of(run)
        names = {name for name, _, _ in calls_in(tree)} if tree else set()
        if per_step < 2 and "all_reduce" not in names:
            raise NotYet("the numbers are right, but no rank has asked the others for theirs.")
        raise NotYet(
            f"all numbers are right, with {per_step:g} collectives in a step. One in forward and one in backward are "
            "enough: what is to be added up goes into one tensor."
        )
