"""The trace of a rank: the whole script under torch's own profiler, written into the rank's folder at its end."""

from __future__ import annotations

import atexit
import functools
import json
import os
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

from ddp_lab import worker

FILE = "trace.json"
"""In the folder of a traced rank: what torch's profiler exports, Chrome's trace format."""

MARK = "ddp_lab: "
"""Before the names of the ranges that are ours: `backward`, `wait`, `clock`, `clock NANOSECONDS`, `step QUOTED`."""


def trace_into(folder: str | os.PathLike) -> None:
    """From now on record what this thread does, and what it starts: torch's operators, backward passes and collectives;
    on a machine with GPUs also what runs on them. At the exit of this process, however the script has ended, all goes
    into the folder's FILE. A process that is killed, or leaves by os._exit, writes none.

    Ranges of our own stand around backward passes and around waits for collectives, which torch does not mark; and at
    each worker.log(step=...). They change no result.

    Every operator is recorded, in memory until the end: a step of a small model takes some 0.1 MB.

    Not recorded: other threads that the script starts, forked children, DataLoader workers. There is one profiler in
    a process: a script that makes one of its own gets RuntimeError. With GPUs CUDA is initialised here, so that the
    script comes too late to set CUDA_VISIBLE_DEVICES.
    """
    import torch
    from torch.autograd import profiler

    me = os.getpid()
    # Its lines on stderr would be taken for the script's. It reads this once, when it is first started.
    quiet = "KINETO_LOG_LEVEL" not in os.environ and os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    try:
        # Not torch.profiler.profile, whose start imports torch's compiler, for 1.5 s in a cold rank.
        device = "cuda" if torch.cuda.device_count() else None
        recording = profiler.profile(use_device=device, record_shapes=True, experimental_config=_lean())
        recording.__enter__()
    finally:
        if quiet:
            del os.environ["KINETO_LOG_LEVEL"]
    _refuse_others(profiler.profile, me)
    _mark()
    _check_clock()

    def finish() -> None:
        if os.getpid() != me:  # a fork that ends as Python does
            return
        _check_clock()
        recording.__exit__(None, None, None)
        aside = Path(folder, FILE + ".part")
        recording.export_chrome_trace(str(aside))
        os.replace(aside, Path(folder, FILE))

    atexit.register(finish)  # called last, as it is the first; and with an exception, too


def _lean():
    """The profiler's setting not to build Python objects of all events when it ends, which the file does not need: a
    private name of torch's, used here alone. A torch without it takes longer to end.
    """
    try:
        from torch.profiler import _ExperimentalConfig

        return _ExperimentalConfig(trace_only=True)
    except (ImportError, TypeError):
        return None


def _refuse_others(profile: type, rank: int) -> None:
    """A second profiler would take over from ours without a word, and end with ours in its hands."""
    make = profile.__init__

    @functools.wraps(make)
    def refuse(self, *args, **options):
        if os.getpid() == rank:
            raise RuntimeError(
                "trace=True: there is one profiler in a process, and this run's is at work. "
                "Run a script that profiles itself without trace=True."
            )
        make(self, *args, **options)

    profile.__init__ = refuse


def quoted(step: object) -> str:
    """A step as JSON, for the name of a range: torch's profiler writes ' for ", and / for a backslash."""
    text = json.dumps(step, default=worker._plain)
    return "".join(f"%{ord(each):02X}" if each in '"\\%' else each for each in text)


def unquoted(text: str) -> object:
    """The step of quoted()."""
    return json.loads(urllib.parse.unquote(text))


def _mark() -> None:
    """Put ranges around what torch's profiler does not show: which nodes belong to one backward pass, where a thread
    waits for a collective instead of computing, and where a step ends.
    """
    import torch

    torch.autograd.backward = _ranged("backward", torch.autograd.backward)
    torch.autograd.grad = _ranged("backward", torch.autograd.grad)
    for kind in (torch.distributed.Work, torch.futures.Future.__base__):
        kind.wait = _ranged("wait", kind.wait)
    log = worker.log

    @functools.wraps(log)
    def log_and_mark(**values):
        log(**values)
        if values.get("step") is not None:
            _range(f"step {quoted(values['step'])}")
            _check_clock()

    worker.log = log_and_mark


def _ranged(name: str, function: Callable) -> Callable:
    from torch.autograd.profiler import record_function

    @functools.wraps(function)
    def ranged(*args, **options):
        with record_function(MARK + name):
            return function(*args, **options)

    return ranged


def _range(name: str) -> None:
    from torch.autograd.profiler import record_function

    with record_function(MARK + name):
        pass


def _check_clock() -> None:
    """Read the system's clock between two ranges: the profiler's time of the first's end lies before, that of the
    second's begin behind, as far as the two clocks agree.
    """
    _range("clock")
    _range(f"clock {time.time_ns()}")
