"""A real Jupyter kernel with a mark in its environment, which everything that it starts inherits and is found by."""

import json
import os
import secrets
import signal
import threading
import time
from collections import Counter
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from jupyter_client import KernelManager
from waiting import wait_for

from ddp_lab.launch import processes

MARK = "DDP_LAB_TEST_MARK"
LIMIT = 3.0
"""Seconds after which no process of a run may be left."""

READY = 60.0  # seconds for a kernel and a cold run to come up on a loaded machine


def marked(mark):
    """The living processes with this mark, {pid: psutil.Process}."""
    found = {}
    for pid in psutil.pids():
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found[pid] = process
    return found


def runs_file(process, name):
    """Whether a process was started to run this file of ours, or was forked from one that was."""
    return any(word.endswith(f"launch/{name}") for word in command_line(process))


def is_server(process):
    """Whether it is a fork server, and none of its forks."""
    try:
        parent = process.parent()
    except psutil.Error:
        return False
    return runs_file(process, "server.py") and not (parent and runs_file(parent, "server.py"))


def roles(of):
    """What the marked processes of a run are, from who started whom: {"agent": [...], "guard": [...], ...}."""
    found = {"server": [], "agent": [], "host": [], "guard": [], "rank": [], "worker": [], "other": []}
    below = {"server": "agent", "agent": "guard", "host": "guard", "guard": "rank"}
    below |= {"rank": "worker", "worker": "worker"}
    role = {}

    def tell(process):
        if process.pid not in role:
            parent = of.get(process.ppid())
            if parent is not None:
                role[process.pid] = below.get(tell(parent), "other")
                if tell(parent) == "agent" and host_name(process) != host_name(parent):
                    role[process.pid] = "host"
            elif is_server(process):
                role[process.pid] = "server"
            else:  # a fork of the server, or started as an agent
                ours = runs_file(process, "server.py") or runs_file(process, "agent.py")
                role[process.pid] = "agent" if ours else "other"
        return role[process.pid]

    for process in of.values():
        with suppress(psutil.Error):
            found[tell(process)].append(process)
    return found


def host_name(process):
    """What identifies the host name that a process has: another one on each emulated host."""
    with suppress(OSError):
        return os.readlink(f"/proc/{process.pid}/ns/uts")


def command_line(process):
    """The words of its command line; none if it has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def newest_run(home):
    """The folder of the newest run; FileNotFoundError if there is none."""
    if runs := list(Path(home).glob("*/[0-9]*")):
        return max(runs)
    raise FileNotFoundError(home)


def stands_in(home, rank, function):
    """Whether a rank of the newest run is in a function of this name, by the stacks that it dumps when asked."""
    with suppress(OSError, ValueError):
        place = newest_run(home) / f"rank{rank}"
        processes.send(tuple(json.loads((place / "rank.json").read_text())["rank"]), signal.SIGUSR1)
        return f" in {function}\n" in (place / "stacks.txt").read_text()
    return False


def end(identities):
    """SIGKILL these very processes, and wait until they are gone."""
    for who in identities:
        processes.send(who, signal.SIGKILL)
    wait_for(lambda: not any(map(processes.alive, identities)), 10, "killed processes are gone")


class Kernel:
    """A kernel with a folder for its runs. `env`: settings of its environment."""

    def __init__(self, home, **env):
        self.home, self.mark = Path(home), secrets.token_hex(8)
        env = {**os.environ, "DDP_LAB_HOME": str(home), MARK: self.mark, **env}
        env.pop("DDP_LAB_LEDGER", None)  # that one counts the runs of notebooks
        # Sockets with a file: a port that is free when it is chosen may be taken when the kernel binds it.
        file = str(self.home / "k.json")
        self._manager = KernelManager(kernel_name="python3", transport="ipc", connection_file=file)
        self._manager.start_kernel(env=env, cwd=str(home), stderr=open(self.home / "kernel.log", "wb"))
        self.client = self._manager.client()
        self._connect()

    @property
    def pid(self):
        return self._manager.provisioner.pid

    def _connect(self):
        self.client.start_channels()
        self.client.wait_for_ready(timeout=READY)

    def send(self, code):
        """Start a cell; finish() waits for its end."""
        return self.client.execute(code)

    def finish(self, cell, seconds=READY):
        """Wait for the end of a cell: (name of its error or None, its error as shown, all it has printed)."""
        reply = self.client.get_shell_msg(timeout=seconds)
        while reply["parent_header"].get("msg_id") != cell:
            reply = self.client.get_shell_msg(timeout=seconds)
        printed = []
        while True:
            message = self.client.get_iopub_msg(timeout=seconds)
            if message["parent_header"].get("msg_id") == cell:
                if message["msg_type"] == "stream":
                    printed.append(message["content"]["text"])
                if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                    break
        content = reply["content"]
        return content.get("ename"), "\n".join(content.get("traceback", [])), "".join(printed)

    def run(self, code, seconds=READY):
        """Run a cell that must end well; returns what it has printed."""
        name, shown, printed = self.finish(self.send(code), seconds)
        assert name is None, f"{shown}\n{printed}"
        return printed

    def children(self):
        """The living processes of its runs, {pid: psutil.Process}: without the kernel, and without the fork server as
        long as it has its kernel.
        """
        server = self.server  # asked before the others: one that ends in between has no command line any more
        words = {pid: (p, command_line(p)) for pid, p in marked(self.mark).items() if pid != server}
        return {pid: p for pid, (p, line) in words.items() if line and "ipykernel_launcher" not in line}

    @property
    def server(self):
        """The pid of the fork server of the kernel that lives now; None if there is none."""
        if self.pid is None:
            return None
        with suppress(psutil.Error):
            return next((p.pid for p in psutil.Process(self.pid).children() if is_server(p)), None)

    def roles(self):
        return roles(self.children())

    def counts(self):
        """How many processes of each kind live: Counter(agent=1, guard=2, rank=2)."""
        return Counter({role: len(of) for role, of in self.roles().items() if of})

    def folder(self):
        return newest_run(self.home)

    def stands_in(self, rank, function):
        return stands_in(self.home, rank, function)

    def interrupt(self):
        self._manager.interrupt_kernel()

    def shutdown(self):
        """As JupyterLab does it: an interrupt, a polite request, and signals for one that does not hear."""
        self._manager.shutdown_kernel()

    def restart(self):
        """At once: an interrupt and, while it is being met, SIGKILL to the kernel's process group."""
        self._manager.restart_kernel(now=True)

    def kill(self):
        os.kill(self.pid, signal.SIGKILL)

    def close(self):
        """End the kernel; then whatever still has its mark."""
        self.client.stop_channels()
        with suppress(Exception):
            self._manager.shutdown_kernel(now=True)
        identities = []
        for process in marked(self.mark).values():
            with suppress(psutil.Error):
                identities.append((process.pid, process.create_time()))
        end(identities)


@contextmanager
def kernel(home, **env):
    """A Kernel that is closed in the end."""
    it = Kernel(home, **env)
    try:
        yield it
    finally:
        it.close()


class Emptying:
    """Watches, in a thread, when `children()` becomes empty after `begin()`: seconds in `.seconds`, None if not yet."""

    def __init__(self, children, limit=LIMIT):
        self._children, self._limit = children, limit
        self.seconds, self.left = None, []
        self._thread = threading.Thread(target=self._watch)

    def begin(self):
        self._began = time.monotonic()
        self._thread.start()

    def _watch(self):
        while True:
            asked = time.monotonic() - self._began
            left = self._children()
            if not left:
                self.seconds = time.monotonic() - self._began
                return
            if asked > self._limit:
                self.left = [f"{role}: {p}" for role, of in roles(left).items() for p in of]
                return
            time.sleep(0.02)

    def end(self):
        """Wait for the result; returns the processes that were left at the limit."""
        self._thread.join()
        return self.left
