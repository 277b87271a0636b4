"""The agent: the process between the kernel and a run. `python agent.py FOLDER PARENT` does what FOLDER/agent.json
says: call torch's own torchrun in this process, or start one other command under a guard. The fork server calls
main() in a fork of its own instead.

Its stdin is the lifeline, a pipe from the kernel. End of file means that the kernel wants the run to stop, or is gone.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # the folder of this file: it must hide nobody's modules

import importlib.util
import json
import os
import select
import signal
import socket
import tempfile
import threading
import time
from pathlib import Path

if importlib.util.find_spec("ddp_lab") is None:  # used from a folder, not installed
    sys.path.append(str(Path(__file__).parents[2]))

from ddp_lab.launch import guard, processes

PATIENCE = 1.5
"""Seconds from the end of the lifeline to SIGKILL for everything that is left."""

_PARENT_CHECK = 0.2  # seconds between two looks whether the parent still lives


def main(folder: Path, parent: int, forked: bool = False) -> int:
    """Do the work described in the folder and return the exit code. `parent`: pid of who started this process;
    `forked`: it is a fork, and so will the ranks be.
    """
    work = json.loads((folder / "agent.json").read_text())
    lifeline = take_lifeline()
    processes.adopt_orphans()
    try:
        if work["kind"] == "hosts":
            return run_hosts(work, folder, lifeline, parent, forked)
        if work["kind"] == "torchrun":
            watch(lifeline, parent)
            return run_torchrun(work["options"], work["argv"], parent, forked)
        return run_command(work["argv"], folder / "rank0", lifeline, parent)
    finally:
        for number in guard.STOPPING:  # torchrun's handlers would raise in the midst of this
            signal.signal(number, signal.SIG_IGN)
        processes.end_descendants()


def take_lifeline() -> int:
    """Take the pipe from stdin, and put /dev/null there for everything started from here."""
    lifeline = os.dup(0)  # not inheritable
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    return lifeline


def watch(lifeline: int, parent: int) -> None:
    """From now on end this process and all it started when the lifeline ends, or the parent."""
    threading.Thread(target=_watch, args=(lifeline, parent), name="lifeline", daemon=True).start()


def _watch(lifeline: int, parent: int) -> None:
    # The second look is for a kernel that has forked: its children may hold the pipe open after it has gone.
    while not select.select([lifeline], [], [], _PARENT_CHECK)[0]:
        if os.getppid() != parent:
            break
    os.kill(os.getpid(), signal.SIGTERM)  # torchrun stops its ranks on SIGTERM (SIGINT takes it 30 s in a deadlock)
    time.sleep(PATIENCE)
    processes.end_descendants()
    os._exit(143)


def run_torchrun(options: list[str], argv: list[str], parent: int, forked: bool) -> int:
    """torch's own torchrun, in this process, with its store on a loopback socket. It starts our rank.py, which runs
    the learner's script `argv`; `forked`: by its fork mode.
    """
    if not _load_torch(parent):
        return 1
    _keep_store_on("127.0.0.1", forked)
    return _call_torchrun(options, argv, forked)


def run_hosts(work: dict, folder: Path, lifeline: int, parent: int, forked: bool) -> int:
    """A torchrun for each emulated host, joined by links (see hosts.py); its options stand in `work["options"]`, one
    list for each. The first that fails has the others stopped. Leaves `wire.json`: what has gone over the interfaces.
    """
    from ddp_lab.launch import hosts

    try:
        network = hosts.Network(len(work["options"]), folder, work["rate"], work["delay"])  # before any other thread
    except Exception as error:
        print(f"hosts cannot be emulated here: {error}", file=sys.stderr)
        return 1
    watch(lifeline, parent)
    if not _load_torch(parent):
        return 1
    me = os.getpid()
    others_live, one_lives = os.pipe()  # it ends when all hosts but the first have ended

    def be_host(host: int) -> int:
        os.close(one_lives if host == 0 else others_live)
        processes.adopt_orphans()
        watch(lifeline, me)
        _keep_store_on(hosts.address(0), forked)
        code = _call_torchrun(work["options"][host], work["argv"], forked)
        if host == 0 and code == 0:
            os.read(others_live, 1)  # they need its stores until they have ended
        return code

    running = {}
    try:
        for host in range(len(work["options"])):
            running[network.start(host, lambda host=host: be_host(host))] = host
        os.close(others_live), os.close(one_lives)
        failure = _first_failure(running)
    except OSError as error:
        print(f"hosts cannot be emulated here: {error}", file=sys.stderr)
        return 1
    guard.write_whole(folder / "wire.json", {"wire": network.wire()})
    if failure < 0:  # its torchrun was killed: so is this one, to whom the kernel listens
        processes.end_descendants()
        guard.leave_like(failure)
    return failure


def _first_failure(running: dict[int, int]) -> int:
    """Wait for the hosts {pid: number}; returns the exit code of the first that fails (negative: the signal that has
    killed it), and stops the others then.
    """
    failure, deadline = 0, None
    signal.signal(signal.SIGTERM, lambda *_: None)  # each host is told by its own watch
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG if deadline else 0)
        if not pid:
            if time.monotonic() > deadline:
                break  # main() ends what is left
            time.sleep(0.01)
        elif (host := running.pop(pid, None)) is not None and status and not failure:
            failure = os.waitstatus_to_exitcode(status)
            print(f"host {host}: its torchrun ended with {failure}", file=sys.stderr)
            deadline = time.monotonic() + PATIENCE
            for other in running:
                os.kill(other, signal.SIGTERM)
    return failure


def _load_torch(parent: int) -> bool:
    """Whether torch could be imported."""
    # Loading torch's libraries holds the interpreter's lock, from a slow disk for seconds: the thread that watches the
    # lifeline cannot run then. There are no ranks yet, so the system may end this process with its parent.
    processes.die_with_parent(parent)
    try:
        from torch.distributed import run  # noqa: F401
    except Exception as error:
        print(f"torch cannot be imported: {type(error).__name__}: {error}", file=sys.stderr)
        return False
    processes.die_with_parent(parent, 0)
    return True


def _call_torchrun(options: list[str], argv: list[str], forked: bool) -> int:
    from torch.distributed import run

    _join_without_delay()
    here = Path(__file__)
    start = [str(here.with_name("rank.py"))]
    if forked:
        _touch_no_device()
        # Where torch.multiprocessing has a rank leave its traceback, should it be stopped before it is under its guard.
        _replace(tempfile, "tempdir", os.environ["DDP_LAB_RUN_DIR"])
        start = ["--start-method", "fork", "--run-path", str(here.with_name("forked_rank.py"))]
    os.environ["DDP_LAB_AGENT"] = str(os.getpid())  # for the guards: if it ends before they look, they can tell
    try:
        run.main([*options, *start, *argv])
    except Exception as error:  # ChildFailedError and SignalException: the ranks' own files say more
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def run_command(argv: list[str], folder: Path, lifeline: int, parent: int) -> int:
    """Any other command, its output in files; returns its exit code (negative: the signal)."""
    me = os.getpid()
    guard_pid = os.fork()  # a process of its own, as a rank's guard is: it outlives this one if this one is killed
    if guard_pid == 0:
        os.close(lifeline)
        guard.leave_like(guard.run_guarded(lambda: _become(argv, folder), folder, me)[0])
    signal.signal(signal.SIGTERM, lambda number, _: os.kill(guard_pid, number))
    watch(lifeline, parent)
    return os.waitstatus_to_exitcode(os.waitpid(guard_pid, 0)[1])


def _become(argv: list[str], folder: Path) -> None:
    for name, descriptor in (("stdout.log", 1), ("stderr.log", 2)):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), descriptor)
    os.environ["DDP_LAB_RANK_DIR"] = str(folder)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        print(f"{argv[0]}: {error.strerror}", file=sys.stderr, flush=True)
        os._exit(127)


def _keep_store_on(address: str, forked: bool) -> None:
    """Hand torchrun's stores a socket that listens on this address only.

    By itself a TCPStore listens on every address, whatever --local-addr says, and torchrun's rendezvous unpickles
    what it finds in it: whoever could connect could run code as the learner.

    `forked`: without libuv, which would make a pipe in each rank, and close it in each fork of the rank by the numbers
    that it had, whatever these stand for by then: a DataLoader's queue, for one.
    """
    import torch.distributed as dist
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend, static_tcp_rendezvous

    class BoundStore(dist.TCPStore):
        def __init__(self, host_name, port, world_size=None, is_master=False, *args, **options):
            if is_master and options.get("master_listen_fd") is None:
                listener = socket.socket()
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port or 0))
                listener.listen(128)
                port = listener.getsockname()[1]
                options["master_listen_fd"] = listener.detach()
            if is_master and forked:
                options["use_libuv"] = False
            super().__init__(host_name, port, world_size, is_master, *args, **options)
            _stores.append(self)

    for module in (dist, c10d_rendezvous_backend, static_tcp_rendezvous):
        _replace(module, "TCPStore", BoundStore)


_stores: list[object] = []
"""Torchrun lets go of its stores when its own ranks have ended, and those of other hosts may still need them."""


def _join_without_delay() -> None:
    """Leave out what takes torchrun's rendezvous its time: a random wait of up to 0.3 s that keeps many nodes from
    joining at once (there is one here), and the whole stack, read with its sources for the name of a function.
    """
    from torch.distributed.elastic.rendezvous import dynamic_rendezvous

    delay = dynamic_rendezvous._delay
    _replace(dynamic_rendezvous, "_delay", lambda seconds: None if isinstance(seconds, tuple) else delay(seconds))
    name = lambda depth=2: sys._getframe(depth).f_code.co_name  # noqa: E731
    _replace(dynamic_rendezvous, "get_method_name", name)


def _touch_no_device() -> None:
    """Keep torchrun from asking for GPUs in this process: CUDA, once begun, works in no fork of it. torchrun asks to
    bind ranks to the cores next to their GPUs, which warm ranks go without.
    """
    import torch

    _replace(torch.accelerator, "is_available", lambda: False)


_replaced: list[tuple[object, str, object]] = []


def _replace(module: object, name: str, value: object) -> None:
    _replaced.append((module, name, getattr(module, name)))
    setattr(module, name, value)


def restore() -> None:
    """Put back what was replaced: for a forked rank, whose torch is to be as installed."""
    while _replaced:
        setattr(*_replaced.pop())


if __name__ == "__main__":
    code = main(Path(sys.argv[1]), int(sys.argv[2]))
    sys.stdout.flush(), sys.stderr.flush()
    os._exit(code & 0xFF)  # no teardown: torch 2.14 aborts some healthy processes in it (see rank.leave)
