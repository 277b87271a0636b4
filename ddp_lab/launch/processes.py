"""Processes by pid and start time: whether they live, and how they and all they started are ended."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

Identity = tuple[int, float]
"""A process: its pid, and when it started (seconds since the epoch), so that a reused pid is no match."""

_CLEANERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
_GRACE = 0.5  # seconds that these get: they go when the last process that shared the memory has gone

_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 1, 15, 36


def identity(pid: int | None = None) -> Identity:
    """The identity of a living process (default: this one)."""
    import psutil

    process = psutil.Process(pid)
    return process.pid, process.create_time()


def alive(who: Identity) -> bool:
    """True while this very process runs; a zombie has ended."""
    import psutil

    try:
        process = psutil.Process(who[0])
        # The start is derived from the boot time, which a clock correction may move a little.
        return abs(process.create_time() - who[1]) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def send(who: Identity, number: int) -> None:
    """Send a signal to this very process, or to nobody."""
    if alive(who):
        _kill(who[0], number)


def handles(who: Identity, number: int) -> bool:
    """Whether this very process has a handler for a signal, so that the signal does not end it (Linux; else True)."""
    if not alive(who):
        return False
    try:
        with open(f"/proc/{who[0]}/status") as status:
            caught = next(int(line.split()[1], 16) for line in status if line.startswith("SigCgt:"))
    except (OSError, StopIteration):
        return True
    return bool(caught >> (number - 1) & 1)


def code_of_zombie(pid: int) -> int | None:
    """The exit code of a process that has ended and that its parent has not waited for (Linux); else None."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()  # the name before may hold anything
    except OSError:
        return None
    return os.waitstatus_to_exitcode(int(fields[-1])) if fields[0] == b"Z" else None


def session_members(leader: Identity) -> list[int]:
    """Pids of the session that `leader` opened with setsid(), the leader included, zombies left out."""
    import psutil

    try:
        if abs(psutil.Process(leader[0]).create_time() - leader[1]) >= 1.0:
            return []  # the pid belongs to somebody else now, so our session is empty
    except psutil.NoSuchProcess:
        pass  # a session outlives its leader, and its number is not reused while it has members
    return [pid for pid in psutil.pids() if _session(pid) == leader[0] and not _is_zombie(pid)]


def end_session(leader: Identity) -> None:
    """SIGKILL everything in the session of `leader`, until nothing new appears in it."""
    grace = time.monotonic() + _GRACE
    while members := session_members(leader):  # a process that forks while it is being killed needs a second round
        for pid in members:
            if time.monotonic() > grace or not _cleans_up(pid):
                _kill(pid, signal.SIGKILL)
        if time.monotonic() > grace + 1:
            return  # the system holds them, in the midst of I/O
        time.sleep(0.005)


def adopt_orphans() -> None:
    """Make this process the parent of all orphans among its descendants (Linux)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, number: int = signal.SIGKILL) -> None:
    """Have the system signal this process when its parent ends (Linux); at once if `parent` is gone already.

    With 0 for the signal the parent's end does nothing any more. To Linux the parent is the thread that forked.
    """
    _prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os.kill(os.getpid(), number)


def close_descriptors() -> None:
    """Close all descriptors but 0, 1 and 2 (Linux). os.closerange() may try a thousand million of them in turn."""
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        if descriptor > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(descriptor)


def set_name(name: str) -> None:
    """Set the name of this process as `ps` shows it (Linux; 15 bytes)."""
    import ctypes

    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def end_descendants() -> None:
    """SIGKILL and reap every descendant of this process. With adopt_orphans() none can hide."""
    import psutil

    me = psutil.Process()
    grace = time.monotonic() + _GRACE
    while time.monotonic() < grace + 1:
        children = me.children(recursive=True)
        for child in children:
            if time.monotonic() > grace or not _cleans_up(child.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if not children:
                return
        time.sleep(0.002)


def _cleans_up(pid: int) -> bool:
    """Whether it is a helper of Python or torch that ends by itself, after it has removed shared memory."""
    import psutil

    try:
        return any(name in " ".join(psutil.Process(pid).cmdline()) for name in _CLEANERS)
    except psutil.Error:
        return False


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except OSError:
        return None


def _is_zombie(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def _prctl(option: int, value: object) -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)
