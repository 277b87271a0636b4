"""Checks of notebook 08, its second half: more ranks."""

import math
from numbers import Real

from ddp_lab.checks.answers import is_run, kind_of
from ddp_lab.checks.verdict import NotYet, exercise

NEAR = 1e-3  # relative
NEAR_SECONDS = 1e-6


def _function(answer, doc):
    """A hint unless the answer is a function that the learner has written."""
    if is_run(answer) or isinstance(answer, type) or not callable(answer):
        raise NotYet(f"the answer is {kind_of(answer)}, not a function. {doc}")


def _call(name, case):
    return f"{name}({', '.join('math.inf' if value == math.inf else repr(value) for value in case)})"


def _number(function, name, case):
    """What the function gives, a float; a hint where it gives none."""
    try:
        value = function(*case)
    except Exception as error:
        told = f"your function, called as {_call(name, case)}, raises {type(error).__name__}: {error}."
        raise NotYet(" ".join(told.split())) from None
    if isinstance(value, bool) or not isinstance(value, Real):
        raise NotYet(f"{_call(name, case)} gives {kind_of(value)}. Let your function return a number.")
    return float(value)


def _same(one, other):
    return len(one) == len(other) and all(math.isclose(a, b, rel_tol=NEAR) for a, b in zip(one, other, strict=True))


SPEED_UPS = [((0.05, 16), 16 / 1.75), ((0.1, 8), 8 / 1.7), ((0.2, 10), 10 / 2.8)]  # of 08.4
_SPEEDS = {
    lambda s, p: s + (1 - s) / p: "that is the time, as a share of one rank's. A speed-up is what it is shorter by.",
    lambda s, p: 1 / (s + (1 - s) / p) / p: "that is the efficiency: the speed-up, divided by the ranks.",
    lambda s, p: s + (1 - s) * p: "that is for work that grows with the ranks (Gustafson's law). Here it stays.",
    lambda s, p: 1 / (1 - s + s / p): "turned round: `serial` is what is not shared out.",
    lambda s, p: 1 / s: "that is the limit, whatever the ranks are.",
    lambda s, p: p: "that is the ideal, where everything is shared out.",
    lambda s, p: (1 - s) * p: "what is not shared out takes its time, too: add up the two times first.",
    lambda s, p: min(p, 1 / s): "that is a bound: below the ranks and below 1 / serial it is, but how much in between?",
    lambda s, p: p / (1 - s): "that is the shared part alone. What is not shared out takes its time, too: add it.",
    lambda s, p: 1 / (s + 1 / p): "one rank would take longer than 1: of the work, 1 - serial is shared out.",
    lambda s, p: 1 / s + (1 - s) / p: "it divides by serial alone: 1 / (the whole time), with parentheses.",
    lambda s, p: 1 / (s + 1 - s / p): "(1 - serial) / ranks, with parentheses: all of the shared part is divided.",
    lambda s, p: 1 / (p + (1 - p) / s): "the arguments are in another order: first serial, then ranks.",
}


@exercise("08.4")
def _amdahl(answer):
    """The answer is your function: `lab.check("08.4", speed_up)`."""
    _function(answer, _amdahl.__doc__)
    given = [_number(answer, "speed_up", case) for case, _ in SPEED_UPS]
    if not _same(given, [right for _, right in SPEED_UPS]):
        for wrong, hint in _SPEEDS.items():
            if _same(given, [wrong(*case) for case, _ in SPEED_UPS]):
                raise NotYet(hint)
        if len(set(given)) == 1:
            raise NotYet(f"it gives {given[0]:g} whatever it is given. Use its arguments.")
        (case, right), first = SPEED_UPS[0], given[0]
        raise NotYet(
            f"{_call('speed_up', case)} gives {first:.4g}, and it is {right:.4g}: one rank takes 1, of which {case[0]} "
            f"stays as it is and {1 - case[0]:g} is shared out."
        )
    for case, right, why in [
        ((0.05, math.inf), 20, "of the shared part nothing is left then, and 1 / serial is the limit"),
        ((0, 8), 8, "where all is shared out, 8 ranks take an eighth"),
        ((1, 64), 1, "where nothing is shared out, nothing is gained"),
    ]:
        if not _same([value := _number(answer, "speed_up", case)], [right]):
            raise NotYet(f"{_call('speed_up', case)} gives {value:.4g}, and it is {right}: {why}.")
    return "16 ranks are 9.14 times as fast where a twentieth is not shared out, and no number of ranks is 20 times."


MOST = 1024  # ranks, of 08.5
STRONG = [  # (compute, alpha, beta, size)
    (0.1, 50e-6, 1e-9, 10e6),
    (0.2, 10e-6, 0.8e-9, 100e6),
    (0.05, 200e-6, 0.1e-9, 20e6),
    (40.0, 1e-6, 1e-9, 10e6),  # more than MOST would be faster still
]
NOT_WORTH_IT = (0.01, 50e-6, 10e-9, 10e6)  # its bytes take longer than its work


def _fastest_of(seconds):
    """A function like the answer, for the time of a step on p ranks: seconds(compute, alpha, beta, size, p)."""
    return lambda *case: min(range(1, MOST + 1), key=lambda p: seconds(*case, p))


def _seconds(c, a, b, n, p):
    return c / p + 2 * (p - 1) * a + 2 * (p - 1) / p * b * n


_RIGHT = _fastest_of(_seconds)
_STEPS = {
    _fastest_of(lambda c, a, b, n, p: c + 2 * (p - 1) * a + 2 * (p - 1) / p * b * n): (
        "in it more ranks never help. The work is shared out, compute / ranks; and beta is seconds of one byte."
    ),
    _fastest_of(lambda c, a, b, n, p: c / p + 2 * (p - 1) / p * b * n): (
        "in it more rounds cost nothing. Each costs alpha, and a ring has 2 (ranks - 1) of them."
    ),
    _fastest_of(lambda c, a, b, n, p: c / p + (p - 1) * a + 2 * (p - 1) / p * b * n): (
        "a ring goes round twice: 2 (ranks - 1) rounds."
    ),
    _fastest_of(lambda c, a, b, n, p: c / p + (p - 1) * a + (p - 1) / p * b * n): (
        "a ring goes round twice: 2 (ranks - 1) rounds, and 2 (ranks - 1) / ranks of the bytes."
    ),
    _fastest_of(lambda c, a, b, n, p: c / p + 2 * (p - 1) * a): (
        "in it the bytes count for nothing, or for the same on all numbers of ranks: each sends 2 (ranks - 1) / ranks."
    ),
    _fastest_of(lambda c, a, b, n, p: c / p + 2 * (p - 1) * a + 2 * (p - 1) * b * n): (
        "in each round a piece is sent, not the whole: 2 (ranks - 1) / ranks of the bytes in all."
    ),
    _fastest_of(lambda c, a, b, n, p: c / p + 2 * (p - 1) * a + (p - 1) / p * b * n): (
        "a ring goes round twice: 2 (ranks - 1) / ranks of the bytes."
    ),
    lambda *case: min((2**power for power in range(11)), key=lambda p: _seconds(*case, p)): (
        "not powers of two alone: any number of ranks will do."
    ),
}


@exercise("08.5")
def _fastest(answer):
    """The answer is your function: `lab.check("08.5", fastest)`."""
    _function(answer, _fastest.__doc__)
    cases = [*STRONG, NOT_WORTH_IT]
    given = [_number(answer, "fastest", case) for case in cases]
    right = [_RIGHT(*case) for case in cases]
    if given == right:
        return f"{right[0]:g} ranks; with more the rounds take longer than what is shared out."
    if given[:-1] == right[:-1]:
        raise NotYet(
            f"{_call('fastest', NOT_WORTH_IT)} gives {given[-1]:g}, and it is 1: the bytes take longer than the work, "
            "and one rank sends nothing."
        )
    if wrong := next((value for value in given if value % 1), None):
        raise NotYet(f"it gives {wrong:g}, which is no number of ranks. Of 1 to {MOST}, which has the shortest step?")
    if given == [best - 1 for best in right]:
        raise NotYet(f"it gives {given[0]:g}, one too few: a list's index begins with 0, and ranks begin with 1.")
    if outside := [value for value in given if not 1 <= value <= MOST]:
        raise NotYet(f"it gives {outside[0]:g}, and there are 1 to {MOST} ranks to choose from.")
    for wrong, hint in _STEPS.items():
        if given == [wrong(*case) for case in cases]:
            raise NotYet(hint)
    if set(given) == {MOST}:
        raise NotYet(f"in it one rank more is always better: it gives {MOST} for all. What grows with the ranks?")
    if len(set(given)) == 1:
        raise NotYet(f"it gives {given[0]:g} whatever it is given. Use its arguments.")
    if given == [min(best, max(given)) for best in right]:
        raise NotYet(
            f"it gives no more than {max(given):g}. There are 1 to {MOST} ranks to choose from, both included."
        )
    case, mine, best = next(three for three in zip(cases, given, right, strict=True) if three[1] != three[2])
    if all(abs(mine - best) <= 1 for mine, best in zip(given, right, strict=True)):
        raise NotYet(
            f"{_call('fastest', case)} gives {mine:g}, and it is {best}: the two are near each other. Take the one "
            "with the shorter step."
        )
    raise NotYet(f"{_call('fastest', case)} gives {mine:g}, and it is {best}: work that is shared out, and a ring.")


def _step(ranks, least=0.04):
    """Rows (rank, part, seconds) of one step, whose backward passes end together.

    ranks: before and forward of each; least: the backward of the late one, which does not wait.
    """
    last = max(before + forward for before, forward in ranks)
    rows = []
    for rank, (before, forward) in enumerate(ranks):
        backward = round(least + last - before - forward, 3)
        rows += [(rank, "before", before), (rank, "forward", forward), (rank, "backward", backward)]
    return rows


# Of 08.6: (rows of a step, who is late, by how much). All but the first are in eighths, whose sums are exact.
SHUFFLED = [1, 3, 0, 2]
LATE = [
    (_step([(0.0, 0.02), (0.0, 0.02), (0.0, 0.07), (0.0, 0.03)]), 2, 0.04),
    (_step([(0.0, 0.5), (0.75, 0.25)], 0.25), 1, 0.5),  # its loader is slow
    (
        sorted(
            _step([(0.25, 0.125), (0.125, 0.375), (0.125, 0.125), (0.0, 0.75)], 0.125),
            key=lambda row: (row[1], SHUFFLED.index(row[0])),
        ),
        3,
        0.25,
    ),
]


def _by_rank(rows, *parts):
    """{rank: seconds} of these parts, of all if none is named."""
    found = {}
    for rank, part, seconds in rows:
        found[rank] = found.get(rank, 0) + seconds * (not parts or part in parts)
    return found


@exercise("08.6")
def _late(answer):
    """The answer is your function: `lab.check("08.6", late)`."""
    _function(answer, _late.__doc__)
    given = [_pair(answer, rows) for rows, _, _ in LATE]
    backward = [_by_rank(rows, "backward") for rows, _, _ in LATE]
    who = [rank for rank, _ in given]
    if who != [rank for _, rank, _ in LATE]:
        if who == [max(times, key=times.get) for times in backward]:
            raise NotYet("the longest backward has the rank that waits most: it was there first. Who waits least?")
        if who[1:] == [rows[0][0] for rows, _, _ in LATE[1:]]:  # of equals max() and min() take the first
            raise NotYet("whole steps are equally long on all ranks: the wait fills them up. Compare a part of them.")
        if len(set(who)) == 1:
            raise NotYet(f"rank {who[0]} is said to be late in every table. Look at the seconds.")
        if who[0] != LATE[0][1]:
            raise NotYet(f"in the starter's table it says rank {who[0]}. Which rank waits least in its backward?")
        if who[1] != LATE[1][1]:
            raise NotYet("a rank may be late before its forward pass, too: its loader may be slow.")
        raise NotYet("it is wrong where the rows come in another order. The rank is in the row, not in its place.")
    lost = [seconds for _, seconds in given]
    if all(abs(mine - right) < NEAR_SECONDS for mine, (_, _, right) in zip(lost, LATE, strict=True)):
        return "rank 2 is late by 0.04 s, and so is each step: for the others that time is in their backward."
    for wrong, hint in _LOST.items():
        if all(abs(mine - wrong(rows)) < NEAR_SECONDS for mine, (rows, _, _) in zip(lost, LATE, strict=True)):
            raise NotYet(hint)
    mine, (rows, _, right) = next(two for two in zip(lost, LATE, strict=True) if abs(two[0] - two[1][2]) > NEAR_SECONDS)
    where = "in the starter's table" if rows is LATE[0][0] else f"where the backward passes are {_backward(rows)}"
    raise NotYet(
        f"the rank is right. But {where} it is late by {mine:g} s, you say, and it is {right:g}: "
        "how long does the rank wait that waits least, but for it?"
    )


def _backward(rows):
    """As in: 0.75 and 0.25 s, of ranks 0 and 1."""
    times = dict(sorted(_by_rank(rows, "backward").items()))
    return (
        " and ".join(f"{seconds:g}" for seconds in times.values())
        + " s, of ranks "
        + " and ".join(map(str, times))
        + ","
    )


def _waits(rows):
    backward = _by_rank(rows, "backward")
    return [seconds - min(backward.values()) for seconds in backward.values()]


def _gap(times):
    first, second = sorted(times.values())[:-3:-1]
    return first - second


_LOST = {
    lambda rows: max(_waits(rows)): (
        "so long waits the first. But if the late one came sooner, the next slowest would be waited for."
    ),
    lambda rows: sum(_waits(rows)): "that is what all ranks wait, added up. By how much is a step too long?",
    lambda rows: max(_by_rank(rows).values()): "that is the whole step. Most of it is there without the late one.",
    lambda rows: max(_by_rank(rows, "before", "forward").values()): (
        "so long the late rank is at work. By how much is that longer than on the next slowest?"
    ),
    lambda rows: min(_by_rank(rows, "backward").values()): "that is the backward of the late rank itself.",
    lambda rows: _gap(_by_rank(rows, "forward")): "a rank may be late before its forward pass, too: add `before`.",
    lambda rows: sum(_waits(rows)) / (len(_waits(rows)) - 1): "that is a mean of the waits. Who waits least of them?",
    lambda rows: sum(_waits(rows)) / len(_waits(rows)): "that is a mean of the waits. Who waits least of them?",
    lambda rows: -sorted(_waits(rows))[1]: "turned round: by how much shorter is more than 0.",
}


def _pair(function, rows):
    """(rank, seconds), as the function gives them; a hint where it gives something else."""
    try:
        value = function(list(rows))
    except Exception as error:
        raise NotYet(f"your function, called as late(rows), raises {type(error).__name__}: {error}.") from None
    try:
        rank, seconds = value
    except (TypeError, ValueError):
        raise NotYet(f"late(rows) gives {kind_of(value)}. Let your function return (rank, seconds).") from None
    for number, what in ((rank, "rank"), (seconds, "seconds")):
        if isinstance(number, bool) or not isinstance(number, Real):
            raise NotYet(f"late(rows) gives {kind_of(number)} as its {what}. Let your function return (rank, seconds).")
    if not float(rank).is_integer():  # but 2.0 may come from an array of both
        raise NotYet(f"late(rows) gives {rank:g} as its rank. First the rank, then the seconds.")
    return int(rank), float(seconds)
