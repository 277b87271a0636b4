"""Checks of notebook 08, its second half: right functions in several forms, and wrong ones, each with its own hint."""

import math

import pytest
from answering import NOTEBOOKS, hint, made_up_run

import ddp_lab as lab

NOTEBOOK = NOTEBOOKS / "08_overlap_and_scaling.ipynb"


def in_notebook(name, solution):
    """The function of an exercise, from the starter's cell or the solution's."""
    import nbformat

    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    own = [cell for cell in cells if cell.cell_type == "code" and f'lab.check("{name}", ' in cell.source]
    (cell,) = [cell for cell in own if ("solution" in cell.metadata.get("tags", [])) == solution]
    space = {"math": math, "lab": lab}
    exec(cell.source, space)
    return space["solution" if solution else cell.source.split("def ")[1].split("(")[0]]


@pytest.mark.parametrize("name", ["08.4", "08.5", "08.6"])
def test_a_starter_is_told_what_is_missing_and_the_solution_is_done(name):
    assert "gives nothing. Let your function return" in hint(name, in_notebook(name, solution=False))
    assert lab.check(name, in_notebook(name, solution=True)).done


@pytest.mark.parametrize("name", ["08.4", "08.5", "08.6"])
def test_what_is_no_function_is_said(name):
    for answer in (None, 9.14, 28, (2, 0.04), float, made_up_run([[]])):
        assert "not a function. The answer is your function" in hint(name, answer)


WRONG_SPEEDS = {  # mistake: (the function, the hint)
    "the time": (lambda s, p: s + (1 - s) / p, "that is the time"),
    "the efficiency": (lambda s, p: 1 / (s + (1 - s) / p) / p, "that is the efficiency"),
    "Gustafson's": (lambda s, p: s + (1 - s) * p, "Gustafson's law"),
    "turned round": (lambda s, p: 1 / (1 - s + s / p), "turned round"),
    "the limit": (lambda s, p: 1 / s, "that is the limit"),
    "the ideal": (lambda s, p: p, "that is the ideal"),
    "the rest alone": (lambda s, p: (1 - s) * p, "add up the two times first"),
    "all shared out": (lambda s, p: 1 / (s + 1 / p), "one rank would take longer than 1"),
    "hard-coded": (lambda s, p: 9.142857, "it gives 9.14286 whatever it is given"),
    "the lower bound": (lambda s, p: min(p, 1 / s), "that is a bound"),
    "the shared part alone": (lambda s, p: 1 / ((1 - s) / p), "that is the shared part alone"),
    "no parentheses": (lambda s, p: 1 / s + (1 - s) / p, "it divides by serial alone"),
    "none inside": (lambda s, p: 1 / (s + 1 - s / p), "all of the shared part is divided"),
    "swapped": (lambda p, s: 1 / (s + (1 - s) / p), "the arguments are in another order"),
    "something else": (lambda s, p: p - s, "gives 15.95, and it is 9.143"),
    "not without end": (lambda s, p: p / (s * p + 1 - s), "speed_up(0.05, math.inf) gives nan, and it is 20"),
    "not all shared out": (lambda s, p: 1 / (max(s, 0.01) + (1 - s) / p), "speed_up(0, 8) gives 7.407, and it is 8"),
    "something gained": (
        lambda s, p: 1 / (s + (1 - s) / p) if s < 1 else 2.0,
        "speed_up(1, 64) gives 2, and it is 1",
    ),
    "by zero": (lambda s, p: 1 / s / (1 + (1 - s) / s / p), "speed_up(0, 8), raises ZeroDivisionError"),
    "a text": (lambda s, p: "9.14", "gives a str. Let your function return a number"),
    "one argument": (lambda s: s, "raises TypeError"),
}


@pytest.mark.parametrize("mistake", WRONG_SPEEDS)
def test_each_wrong_speed_up_has_its_own_hint(mistake):
    function, expected = WRONG_SPEEDS[mistake]
    assert expected in hint("08.4", function)


def by_cases(serial, ranks):
    if math.isinf(ranks):
        return 1 / serial
    return ranks / (1 + serial * (ranks - 1))


def test_a_right_speed_up_is_done_in_another_form():
    assert lab.check("08.4", by_cases).done
    assert lab.check("08.4", lambda s, p: round(1 / (s + (1 - s) / p), 2)).done  # as the task writes it


def best(seconds, most=1024):
    """The answer that takes this for the time of a step: seconds(compute, alpha, beta, size, ranks)."""
    return lambda *case: min(range(1, most + 1), key=lambda ranks: seconds(*case, ranks))


def right(c, a, b, n, p):
    return c / p + 2 * (p - 1) * a + 2 * (p - 1) / p * n * b


WRONG_STEPS = {  # mistake: (the function, the hint)
    "weak": (best(lambda c, a, b, n, p: right(c, a, b, n, p) + c - c / p), "in it more ranks never help"),
    "no alpha": (best(lambda c, a, b, n, p: c / p + 2 * (p - 1) / p * n * b), "in it more rounds cost nothing"),
    "one round": (best(lambda c, a, b, n, p: right(c, a, b, n, p) - (p - 1) * a), "goes round twice: 2 (ranks - 1) r"),
    "once round": (best(lambda c, a, b, n, p: c / p + (p - 1) * a + (p - 1) / p * n * b), "and 2 (ranks - 1) / ranks"),
    "no bytes": (best(lambda c, a, b, n, p: c / p + 2 * (p - 1) * a), "in it the bytes count for nothing"),
    "the same bytes": (
        best(lambda c, a, b, n, p: c / p + 2 * (p - 1) * a + n * b),
        "or for the same on all numbers of ranks",
    ),
    "no beta": (best(lambda c, a, b, n, p: c / p + 2 * (p - 1) * (a + n / p)), "in it more ranks never help"),
    "one alpha": (best(lambda c, a, b, n, p: c / p + a + n * b), "in it one rank more is always better"),
    "powers of two": (
        lambda *case: min((2**power for power in range(11)), key=lambda p: right(*case, p)),
        "not powers of two alone",
    ),
    "an index": (lambda *case: best(right)(*case) - 1, "it gives 27, one too few"),
    "whole messages": (best(lambda c, a, b, n, p: c / p + 2 * (p - 1) * (a + n * b)), "a piece is sent"),
    "half the bytes": (best(lambda c, a, b, n, p: right(c, a, b, n, p) - (p - 1) / p * n * b), "of the bytes"),
    "cut off": (
        lambda c, a, b, n: min(1024, int(math.sqrt(max(1, (c - 2 * b * n) / (2 * a))))),
        "gives 44, and it is 45: the two are near each other",
    ),
    "cut off above": (
        lambda c, a, b, n: min(1024, math.ceil(math.sqrt(max(1, (c - 2 * b * n) / (2 * a))))),
        "gives 29, and it is 28: the two are near each other",
    ),
    "without end": (
        lambda c, a, b, n: max(1, round(math.sqrt(max(1, (c - 2 * b * n) / (2 * a))))),
        "it gives 4471, and there are 1 to 1024 ranks",
    ),
    "always some": (
        lambda c, a, b, n: max(2, best(right)(c, a, b, n)),
        "gives 2, and it is 1: the bytes take longer than the work",
    ),
    "the time": (lambda c, a, b, n: right(c, a, b, n, 28), "which is no number of ranks"),
    "too few to choose from": (best(right, most=20), "it gives no more than 20"),
    "one too few to choose from": (best(right, most=1023), "it gives no more than 1023"),
    "one by heart": (
        lambda c, a, b, n: 28 if c > b * n else 1,
        "fastest(0.2, 1e-05, 8e-10, 100000000.0) gives 28, and it is 45",
    ),
    "none": (lambda c, a, b, n: 0, "it gives 0, and there are 1 to 1024 ranks"),
    "hard-coded": (lambda c, a, b, n: 28, "it gives 28 whatever it is given"),
    "a root": (lambda c, a, b, n: round(math.sqrt((c - 2 * b * n) / (2 * a))), "raises ValueError"),
    "nothing": (lambda c, a, b, n: None, "gives nothing. Let your function return a number"),
}


@pytest.mark.parametrize("mistake", WRONG_STEPS)
def test_each_wrong_number_of_ranks_has_its_own_hint(mistake):
    function, expected = WRONG_STEPS[mistake]
    assert expected in hint("08.5", function)


def by_a_root(compute, alpha, beta, size):
    """Where the derivative by the ranks is 0."""
    return min(1024, round(math.sqrt(max(1, (compute - 2 * beta * size) / (2 * alpha)))))


def test_a_right_number_of_ranks_is_done_in_several_forms():
    assert lab.check("08.5", best(right)).done
    assert lab.check("08.5", by_a_root).done


def parts(rows, *names):
    found = {}
    for rank, part, seconds in rows:
        found[rank] = found.get(rank, 0) + (seconds if part in names else 0)
    return found


def work(rows):
    return parts(rows, "before", "forward")


def whole(rows):
    return parts(rows, "before", "forward", "backward")


def backward(rows):
    return parts(rows, "backward")


def slowest(times):
    return max(times, key=times.get)


def gap(times):
    first, second = sorted(times.values())[:-3:-1]
    return first - second


WRONG_LATE = {  # mistake: (the function, the hint)
    "the one that waits": (lambda rows: (slowest(backward(rows)), 0.04), "has the rank that waits most"),
    "hard-coded": (lambda rows: (2, 0.04), "rank 2 is said to be late in every table"),
    "no loading": (lambda rows: (slowest(parts(rows, "forward")), 0.04), "its loader may be slow"),
    "not the late one": (lambda rows: (1 if len(rows) < 9 else 3, 0.04), "in the starter's table it says rank 3"),
    "the longest step": (lambda rows: (slowest(whole(rows)), 0.04), "whole steps are equally long on all ranks"),
    "the shortest step": (lambda rows: (min(whole(rows), key=whole(rows).get), 0.04), "whole steps are equally long"),
    "places for ranks": (
        lambda rows: (lambda b: (b.index(min(b)), gap(work(rows))))([s for _, part, s in rows if part == "backward"]),
        "it is wrong where the rows come in another order",
    ),
    "the longest wait": (
        lambda rows: (slowest(work(rows)), max(backward(rows).values()) - min(backward(rows).values())),
        "the next slowest would be waited for",
    ),
    "all waits": (
        lambda rows: (slowest(work(rows)), sum(t - min(backward(rows).values()) for t in backward(rows).values())),
        "what all ranks wait, added up",
    ),
    "the whole step": (
        lambda rows: (slowest(work(rows)), sum(s for rank, _, s in rows if rank == 0)),
        "that is the whole step",
    ),
    "no loading in the gap": (lambda rows: (slowest(work(rows)), gap(parts(rows, "forward"))), "add `before`"),
    "a mean": (
        lambda rows: (
            slowest(work(rows)),
            sum(backward(rows).values()) / (len(rows) / 3) - min(backward(rows).values()),
        ),
        "that is a mean of the waits",
    ),
    "turned round": (lambda rows: (slowest(work(rows)), -gap(work(rows))), "turned round"),
    "by heart": (
        lambda rows: (slowest(work(rows)), 0.04),
        "where the backward passes are 0.75 and 0.25 s, of ranks 0 and 1, it is late by 0.04 s, you say, and it is 0.5",
    ),
    "both swapped": (lambda rows: (gap(work(rows)), slowest(work(rows))), "gives 0.04 as its rank. First the rank"),
    "no number": (lambda rows: (math.nan, 0.04), "gives nan as its rank"),
    "all its work": (lambda rows: (slowest(work(rows)), max(work(rows).values())), "so long the late rank is at work"),
    "its backward": (
        lambda rows: (slowest(work(rows)), min(backward(rows).values())),
        "the backward of the late rank itself",
    ),
    "something else": (lambda rows: (slowest(work(rows)), 1.0), "it is late by 1 s, you say, and it is 0.04"),
    "the rank alone": (lambda rows: slowest(work(rows)), "gives an int. Let your function return (rank, seconds)"),
    "a text": (lambda rows: ("rank 2", 0.04), "gives a str as its rank"),
    "an error": (lambda rows: rows["rank"], "called as late(rows), raises TypeError"),
}


@pytest.mark.parametrize("mistake", WRONG_LATE)
def test_each_wrong_account_of_a_late_rank_has_its_own_hint(mistake):
    function, expected = WRONG_LATE[mistake]
    assert expected in hint("08.6", function)


def by_waits(rows):
    waits = sorted((seconds, rank) for rank, seconds in backward(rows).items())
    return waits[0][1], waits[1][0] - waits[0][0]


def test_a_right_account_of_a_late_rank_is_done_in_several_forms():
    assert lab.check("08.6", lambda rows: (slowest(work(rows)), gap(work(rows)))).done
    assert lab.check("08.6", by_waits).done
    assert lab.check("08.6", lambda rows: [float(slowest(work(rows))), round(gap(work(rows)), 2)]).done  # of an array
