"""Runs that a machine cannot do: skipped by name, in a line that the reader sees, and counted as skipped."""

from numbers import Integral

from ddp_lab import gpus as devices
from ddp_lab.errors import InputError


def can_run(*names, gpus):
    """Whether this machine has `gpus` GPUs for some runs: `if lab.can_run("faults/all_on_gpu0", gpus=2):`.

    Where it has not, prints `skipped: ...` for each of the names, one for each run that will not be started, so that
    nothing passes in silence. InputError without a name, or for a number of GPUs below 1.
    """
    if not names or not all(isinstance(name, str) and name for name in names):
        raise InputError('can_run() names the runs that it is asked for: can_run("faults/all_on_gpu0", gpus=2)')
    if isinstance(gpus, bool) or not isinstance(gpus, Integral) or gpus < 1:
        raise InputError(f"gpus={gpus!r}: give the number of GPUs that the runs need, 1 or more")
    here = devices.count()
    if here >= gpus:
        return True

    from ddp_lab.launch import ledger

    there = f"{here or 'none'} {'is' if here < 2 else 'are'} visible here"
    why = f"needs {gpus} {'GPU' if gpus == 1 else 'GPUs'}, and {there}"
    for name in names:
        print(f"skipped: {name} {why}", flush=True)
        ledger.write("skip", script=name, why=why)
    return False
