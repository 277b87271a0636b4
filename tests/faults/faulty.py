"""What the tests of faults share: a fault run, its cure run, and what their ranks have logged."""


import ddp_lab as lab
from ddp_lab import catalog

STALL = 6  # seconds; the groups of these scripts wait for two minutes


def faulty(name, nproc=2, **options):
    return lab.torchrun(f"faults/{name}", nproc=nproc, show="none", **options)


def cured(name, **options):
    run = faulty(f"{name}_cured", **options)
    assert run.ok and all(rank.exitcode == 0 for rank in run.ranks)
    return run


def line_of(name, code):
    """The number of the one line of a lab that has this code."""
    lines = catalog.source(name).text.splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if code in line]
    return number


def of_ranks(run, name):
    """For each step, what the ranks have logged as `name`, in the order of the ranks."""
    rows = [[record[name] for record in rank.records if name in record] for rank in run.ranks]
    return list(zip(*rows, strict=True))


def equal(values):
    """Whether the ranks have the same number, to the last bit."""
    return len(set(values)) == 1


def apart(values):
    """Whether the ranks have different numbers, by more than rounding."""
    return max(values) - min(values) > 1e-3


def stood(hang):
    """{rank: (line, collective)} of a HangError."""
    return {spot["rank"]: (spot["line"], spot["collective"]) for spot in hang.where}
