"""The guard: a small parent that waits for one process and leaves nothing of it behind.

A rank (or a command) runs as the guard's only child, in a session of its own. The guard passes SIGTERM on, kills
the whole session when its patience ends or when its own parent is gone, clears away what the child has left, notes
how the child ended in `exit.json`, and then ends the same way itself, so that torchrun sees what happened.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
import time
import traceback
from collections.abc import Callable
from pathlib import Path

from ddp_lab.launch import processes

PATIENCE = 0.8
"""Seconds from SIGTERM to SIGKILL: below torchrun's --shutdown-timeout of 1 s, after which it kills the guard."""

_KEPT_BACK, _ROOM = "kept_back", 64 << 10  # a file in the rank's folder, and its bytes
_PARENT_CHECK = 0.1  # seconds between two looks whether the guard's own parent still lives
STOPPING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def run_guarded(child_main: Callable[[], None], folder: Path, parent: int) -> tuple[int, bool]:
    """Fork; `child_main` runs in the child and must not return; the parent guards it.

    `parent`: pid of the process that started the guard, as that process gave it. os.getppid() would not do: where the
    parent was killed before it is asked, it names a stranger that lives on, and so would the child.

    Returns in the parent, when the child and all it started are gone, the child's status as `subprocess` gives it
    (-9 for SIGKILL), and whether this process was told to stop. `folder` gets `guard.json` (the identities of both) and
    `exit.json`.
    """
    processes.adopt_orphans()
    keep_back(folder)
    wake, wake_write = os.pipe()
    os.set_blocking(wake_write, False)
    told: list[int] = []  # the signals that asked us to stop
    for number in STOPPING:
        signal.signal(number, lambda n, _: told.append(n))
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)

    def forget_signals() -> None:
        signal.set_wakeup_fd(-1)
        for number in (*STOPPING, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        os.close(wake), os.close(wake_write)

    me = os.getpid()
    # A signal that came to the child before it has forgotten our handlers would go to them, and be lost.
    held = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    child = os.fork()
    if child == 0:
        forget_signals()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, held)
        os.setsid()
        processes.die_with_parent(me)
        try:
            child_main()
        except BaseException:
            traceback.print_exc()
        os._exit(70)  # not reached: child_main ends the process
    signal.pthread_sigmask(signal.SIG_SETMASK, held)

    write_whole(folder / "guard.json", {"guard": processes.identity(), "child": _identity(child)})
    deadline = None
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            break
        if os.getppid() != parent or (deadline and time.monotonic() > deadline):
            _kill(child)
        elif told and deadline is None:
            deadline = time.monotonic() + PATIENCE
            os.kill(child, signal.SIGTERM)
        if select.select([wake], [], [], _PARENT_CHECK)[0]:
            os.read(wake, 512)
    code = os.waitstatus_to_exitcode(status)
    write_whole(folder / "exit.json", {"code": code, "time_ns": time.time_ns(), "stopped": bool(told)})
    with contextlib.suppress(OSError):
        os.unlink(folder / _KEPT_BACK)
    processes.end_descendants()
    forget_signals()
    return code, bool(told)


def leave_like(code: int) -> None:
    """End this process as a child with this status ended: by the same signal, or with the same exit code."""
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has dumped what there is to see
        if -code not in (signal.SIGKILL, signal.SIGSTOP):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _kill(child: int) -> None:
    try:
        processes.end_session((child, processes.identity(child)[1]))
    except Exception:  # it has just ended: waitpid tells
        pass


def _identity(pid: int) -> processes.Identity | None:
    try:
        return processes.identity(pid)
    except Exception:  # it has just ended, and leaves nothing to find
        return None


def write_whole(path: Path, value: dict) -> None:
    """Write aside and rename, so that a reader sees all or nothing. On a full disk it takes what was kept back for it;
    where that is not enough, nothing is written: it must not stop the guard.
    """
    aside = path.with_suffix(".part")
    for _ in range(2):
        try:
            aside.write_text(json.dumps(value))
            os.replace(aside, path)
            return
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(path.with_name(_KEPT_BACK))


def keep_back(folder: Path) -> None:
    """Take room on the disk for what a rank has to say in the end, error.json and exit.json, should it fill up."""
    with contextlib.suppress(OSError):  # it is full by now
        (folder / _KEPT_BACK).write_bytes(os.urandom(_ROOM))  # not zeros, which a file system may leave out
