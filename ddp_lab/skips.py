"""Runs that a machine cannot do: skipped by name, in a line that the reader sees, and counted as skipped."""

from numbers import Integral

from ddp_lab import gpus as devices
from ddp_lab.errors import InputError


def can_run(*names, gpus=None, nodes=None):
    """Whether this machine can do some runs: `if lab.can_run("faults/all_on_gpu0", gpus=2):`.

    `gpus`: how many GPUs they need. `nodes`: on how many emulated hosts they are (see lab.torchrun).

    Where it cannot, prints `skipped: ...` for each of the names, one for each run that will not be started, so that
    nothing passes in silence. InputError without a name, without a need, or for a number below 1.
    """
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InputError('can_run() names the runs that it is asked for: can_run("faults/all_on_gpu0", gpus=2)')
    for need, number in {"gpus": gpus, "nodes": nodes}.items():
        if number is not None and (isinstance(number, bool) or not isinstance(number, Integral) or number < 1):
            raise InputError(f"{need}={number!r}: give the number of {_WORDS[need]} that the runs need, 1 or more")
    if gpus is None and nodes is None:
        raise InputError("can_run() is told what the runs need: gpus=2, or nodes=2 for emulated hosts")
    why = (gpus and _gpus_lack(gpus)) or (nodes and nodes > 1 and hosts_lack())
    for name in names if why else ():
        skip(name, why)
    return not why


_WORDS = {"gpus": "GPUs", "nodes": "emulated hosts"}


def _gpus_lack(gpus):
    here = devices.count()
    if here >= gpus:
        return ""
    there = f"{here or 'none'} {'is' if here < 2 else 'are'} visible here"
    return f"needs {gpus} {'GPU' if gpus == 1 else 'GPUs'}, and {there}"


def hosts_lack():
    """What a run on emulated hosts lacks here, in the words of skip(); "" where it can be had."""
    from ddp_lab.launch import cluster

    why = "needs emulated hosts, and this machine has none (why: `lab.machine(full=True)`)"
    return why if cluster.why_not() else ""


def skip(name, why):
    """Say that a run is skipped, and have it counted."""
    from ddp_lab.launch import ledger

    print(f"skipped: {name} {why}", flush=True)
    ledger.write("skip", script=name, why=why)
