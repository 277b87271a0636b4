"""What a forked rank sheds and renews, to be as a freshly started one."""

from __future__ import annotations

import importlib
import itertools
import logging
import multiprocessing
import multiprocessing.process
import os
import random
import sys
import threading
import time
from concurrent import futures

from ddp_lab.launch import agent, processes

_MAIN = multiprocessing.process._current_process  # of the server, which has loaded this

GENERATORS: list[random.Random] = []
"""All that a server has loaded with its libraries: it finds them once, for all its forks."""


def begin() -> None:
    """Call first in a process that was forked from an agent of the fork server, and that becomes a rank."""
    processes.close_descriptors()  # the agent's: its listening sockets must not live on in ranks
    agent.restore()
    importlib.invalidate_caches()
    processes.set_name(os.path.basename(sys.executable))
    _open_stdin()
    _be_main_process()
    _seed()
    _count_anew()
    set_threads(int(os.environ["OMP_NUM_THREADS"]))


def _open_stdin() -> None:
    """As Python opens it at its start: multiprocessing has put another in its place."""
    sys.stdin = sys.__stdin__ = open(0, encoding=sys.stdout.encoding, closefd=False)
    sys.stdin.buffer.raw.name = "<stdin>"


def _be_main_process() -> None:
    """To multiprocessing this is no child: torchrun forks its ranks by multiprocessing's own means."""
    module = multiprocessing.process
    module._current_process = _MAIN
    _MAIN.authkey = os.urandom(32)
    module._parent_process, module._children = None, set()
    module._process_counter = itertools.count(1)
    multiprocessing.set_start_method(None, force=True)


def _seed() -> None:
    """New random states: all forks would draw the same numbers, where fresh processes draw their own."""
    import torch

    for generator in GENERATORS:
        generator.seed()
    torch.default_generator.seed()  # not torch.seed(), which would reach out for devices
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _count_anew() -> None:
    """Names and times that count from the start of a process."""
    threading._counter = itertools.count(1).__next__
    futures.ThreadPoolExecutor._counter = itertools.count().__next__
    now = time.time_ns()
    logging._startTime = now if isinstance(logging._startTime, int) else now / 1e9


def set_threads(count: int) -> None:
    """As a library does that finds OMP_NUM_THREADS=count when it is loaded; the server has loaded them with 1."""
    if count == 1:
        return
    import threadpoolctl
    import torch

    torch.set_num_threads(count)
    threadpoolctl.threadpool_limits(count)
