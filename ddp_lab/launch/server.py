"""The fork server: a process with torch loaded and nothing else done, from which warm runs fork their agents.

`python -u server.py CHANNEL IDLE KERNEL [lasting]`: CHANNEL is the descriptor of its end of a socket pair. It says
there once whether it is ready; then each message of the kernel asks for one agent. It ends with the kernel (a pid), and
after IDLE seconds without a run. `lasting`: the thread of the kernel that has started it lives as long as the kernel.

It has one thread, touches no device and runs no backward pass, so that forking it is safe.
"""

from __future__ import annotations

import sys

if __name__ == "__main__" and not getattr(sys.flags, "safe_path", False):
    sys.path.pop(0)  # the folder of this file: it must hide nobody's modules

import contextlib
import gc
import importlib.util
import json
import os
import random
import select
import signal
import socket
import tempfile
import time
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path

if importlib.util.find_spec("ddp_lab") is None:  # used from a folder, not installed
    sys.path.append(str(Path(__file__).parents[2]))

from ddp_lab.launch import agent, hugepages, processes

_WATCHED = ("ddp_lab.", "torch.distributed.", "torch.nn.", "torch.optim.", "torch.utils.data.")
"""To look at all 2,000 modules would take as long as all else that a run does before its agent starts."""

_KERNEL_CHECK = 0.2  # seconds between two looks whether the kernel still lives


def preload() -> set[str]:
    """Load what a run loads before its first step. Returns the variables that this has read from the environment."""
    with _reads_noted() as read:
        import threadpoolctl  # noqa: F401
        import torch._dynamo  # which the first DDP(...) or optimizer of a process imports, some 900 modules
        import torch.distributed.run
        import torch.utils.data

        from ddp_lab.launch import fresh, rank  # noqa: F401
        from ddp_lab.meters import recorder  # noqa: F401

        with contextlib.suppress(ImportError):  # it is for Linux
            import pyroute2  # noqa: F401

    torch.distributed.run.get_args_parser()  # compiles what argparse compiles
    fresh.GENERATORS = [one for one in gc.get_objects() if issubclass(type(one), random.Random)]
    # At its exit each fork would take torch's operators out of its registry, one after the other, for 30 ms.
    for finalizer in list(weakref.finalize._registry):
        finalizer.atexit = False
    return read


@contextlib.contextmanager
def _reads_noted() -> Iterator[set[str]]:
    """Note the names of the variables that Python code asks os.environ for."""
    kind, names = type(os.environ), set()
    get, contains = kind.__getitem__, kind.__contains__
    kind.__getitem__ = lambda self, name: names.add(name) or get(self, name)
    kind.__contains__ = lambda self, name: names.add(name) or contains(self, name)
    try:
        yield names
    finally:
        kind.__getitem__, kind.__contains__ = get, contains


def loaded() -> dict[str, list]:
    """The packages that are loaded, the modules that a reader may want to change, and the folders of installed
    packages, which change with each installation: {name: [file or folder or None, its last change in ns]}.
    """
    folders = [path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")]
    found = {path: [path, os.stat(path).st_mtime_ns] for path in folders if os.path.isdir(path)}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if "." not in name or name.startswith(_WATCHED):
            found[name] = [path, os.stat(path).st_mtime_ns if path and os.path.isfile(path) else 0]
    return found


class Server:
    """Forks an agent for each request, and tells how it ended."""

    def __init__(self, channel: socket.socket, idle: float, kernel: int):
        self._channel, self._idle, self._kernel = channel, idle, kernel
        self._wake, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        signal.set_wakeup_fd(wake_write)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._agents: dict[int, socket.socket] = {}  # pid: where its exit code is told

    def serve(self) -> None:
        """Until the kernel is gone or has closed its end, or nothing has run for the idle time."""
        tidying, untidy = hugepages.collapse(), True  # a second's work, done while there is nothing else to do
        listening, active = True, time.monotonic()
        while os.getppid() == self._kernel and (listening or self._agents):
            free = untidy and not self._agents
            watched = [self._wake, self._channel] if listening else [self._wake]
            ready = select.select(watched, [], [], 0 if free else _KERNEL_CHECK)[0]
            if free and not ready:
                untidy = next(tidying, False)
            if self._wake in ready:
                os.read(self._wake, 512)
            self._reap()
            if self._channel in ready:
                descriptors = []
                with contextlib.suppress(ConnectionResetError):  # closed with our first answer still in it
                    _, descriptors, *_ = socket.recv_fds(self._channel, 16, 4)
                if descriptors:
                    self._fork(*descriptors)
                else:
                    listening = False
            if self._agents:
                active = time.monotonic()
            elif time.monotonic() - active > self._idle:
                self._channel.shutdown(socket.SHUT_RD)  # the kernel cannot send any more; what it has sent is served

    def _fork(self, request: int, lifeline: int, log: int, status: int) -> None:
        with open(request, "rb") as file:
            work = json.load(file)
        me = os.getpid()
        try:
            pid = os.fork()
        except OSError:  # no room for another process: the end of `status` says so
            os.close(lifeline), os.close(log), os.close(status)
            return
        if pid == 0:
            code = 1
            try:
                code = _be_agent(work, lifeline, log, me)
            except BaseException:
                os.write(2, traceback.format_exc().encode())
            finally:
                os._exit(code & 0xFF)
        os.close(lifeline), os.close(log)
        self._agents[pid] = socket.socket(fileno=status)
        self._tell(pid, {"agent": processes.identity(pid)})

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            if pid in self._agents:  # else a guard whose agent was killed, which has come to us
                self._tell(pid, {"code": os.waitstatus_to_exitcode(status)})
                self._agents.pop(pid).close()

    def _tell(self, pid: int, what: dict) -> None:
        try:
            self._agents[pid].send(json.dumps(what).encode())
        except OSError:
            pass  # the kernel does not listen any more


def _be_agent(work: dict, lifeline: int, log: int, server: int) -> int:
    """What the kernel's own start of `agent.py` gives an agent: session, folder, environment, descriptors."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(lifeline, 0), os.dup2(log, 1), os.dup2(log, 2)
    processes.close_descriptors()
    os.umask(work["umask"])
    os.environ.clear()
    os.environ.update(work["env"])
    os.chdir(work["cwd"])
    tempfile.tempdir = None  # torch has asked for it: a folder may have gone since
    return agent.main(Path(work["folder"]), server, forked=True)


def main(channel: int, idle: float, kernel: int, lasting: bool) -> None:
    it = socket.socket(fileno=channel)
    try:
        # Loading holds the interpreter's lock, from a slow disk for seconds: it cannot look after its kernel then, nor
        # when it is stopped. To Linux a parent is a thread, so that this is only for one that lasts.
        processes.die_with_parent(kernel, signal.SIGKILL if lasting else 0)
        read = preload()
        answer = {"loaded": loaded(), "read": sorted(filter(lambda name: isinstance(name, str), read))}
    except Exception as error:  # a torch that is broken or missing
        answer = {"error": f"{type(error).__name__}: {error}"[:1000]}
    processes.adopt_orphans()
    gc.collect()
    gc.freeze()  # a collection in a fork would write to, and so copy, all that is shared
    it.send(json.dumps(answer).encode())
    if "error" not in answer:
        Server(it, idle, kernel).serve()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), "lasting" in sys.argv[4:])
    os._exit(0)
