"""Starting warm: the kernel's side of the fork server. One server per kernel, started when it is first wanted."""

from __future__ import annotations

import atexit
import contextlib
import json
import multiprocessing
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from ddp_lab.launch import environment, processes

IDLE = 15 * 60
"""Seconds without a run after which a server ends by itself. The next run starts another."""

PATIENCE = 120
"""Seconds that a server gets to load torch."""

_ANSWER = 5  # seconds that a server gets to fork
_SERVER_MOMENT = 0.5  # ... and to tell that an agent has ended

# Variables that Python, torch and the libraries below them read when they start or are loaded, too early for a fork: by
# their names, as native code reads too. What Python code has read is noted by the server.
_EARLY = re.compile(
    r"(PYTHON|TORCH|PYTORCH_|ATEN_|TRITON_|OMP_|GOMP_|KMP_|MKL_|MKLDNN_|DNNL_|ONEDNN_|OPENBLAS_|GOTO_|BLIS_|NUMEXPR_"
    r"|NPY_|NVIDIA_|NVRTC_|CUBLAS|GFORTRAN_|OPENSSL_|LD_|MALLOC_|GLIBC_|LC_).*|LANG|TZ|.*_NUM_THREADS"
)
# ... but for those that are read later: threads are set in each rank; the recorder and the groups look when made.
_LATE = re.compile(r"OMP_NUM_THREADS|TORCH_FR_.*|TORCH_NCCL_.*")


class Server:
    """A server that loads torch, or has loaded it."""

    def __init__(self):
        self.owner = os.getpid()
        self.error = ""
        self._loaded: dict[str, list] | None = None  # once it is ready: see server.loaded()
        self._read: set[str] = set()  # and the variables that it has read by then
        self._listening = threading.Lock()
        self._env = environment.clean()
        self._cwd = os.getcwd()
        self._inherited = _inherited()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # One thread, in a session of its own, so that an interrupt from a terminal reaches the kernel alone.
        settings = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        lasting = ["lasting"] if threading.current_thread() is threading.main_thread() else []
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-u", str(Path(__file__).with_name("server.py")), str(theirs.fileno())]
                + [str(IDLE), str(self.owner), *lasting],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=self._env | settings,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def left(self) -> bool:
        """Whether it has ended by itself, after its idle time."""
        return self._process.poll() == 0

    def ready(self) -> bool:
        """Wait until it has loaded torch; False, with the reason in `.error`, if it cannot. An interrupt may end the
        wait; the next goes on with it.
        """
        with self._listening:
            if self._loaded is None and not self.error:
                answer = self._first_answer()
                self._loaded, self.error = answer.get("loaded"), answer.get("error", "")
                self._read = set(answer.get("read", ()))
        if not self.error and self._process.poll() is not None:
            self.error = f"it ended with exit code {self._process.poll()}"
        return not self.error

    def _first_answer(self) -> dict:
        self._channel.settimeout(PATIENCE)
        try:
            answer = self._channel.recv(1 << 20, socket.MSG_PEEK)  # it stays there for who comes after an interrupt
        except TimeoutError:
            return {"error": f"it has not loaded torch in {PATIENCE} s"}
        if not answer:
            return {"error": f"it ended with exit code {self._process.wait()}"}
        return json.loads(answer)

    def changed(self) -> str:
        """The name of a module that is no longer as the server has loaded it; "" if there is none."""
        for name, (path, when) in self._loaded.items():
            if when and _changed_at(path) != when:
                return name
        return ""

    def outdated(self) -> str:
        """The name of what the server's processes inherit from the kernel, and the kernel has changed; or ""."""
        now = _inherited()
        return next((name for name in now if now[name] != self._inherited[name]), "")

    def read_early(self, env: dict[str, str]) -> str:
        """The first variable in which `env` differs from what the server has started with, and which it read then."""
        if not re.fullmatch(r"[1-9]\d*", env["OMP_NUM_THREADS"]):
            return "OMP_NUM_THREADS"
        folders = env.get("PYTHONPATH", "/").split(os.pathsep)
        if os.getcwd() != self._cwd and not all(map(os.path.isabs, folders)):
            return "PYTHONPATH"
        names = sorted(name for name in {*env, *self._env} if env.get(name) != self._env.get(name))
        early = (n for n in names if (n in self._read or _EARLY.fullmatch(n)) and not _LATE.fullmatch(n))
        return next(early, "")

    def hides(self, folder: Path) -> str:
        """The first file in a script's folder that would take the place of a loaded module, were it not loaded."""
        with contextlib.suppress(OSError):
            for entry in sorted(os.listdir(folder)):
                stem, _, kind = entry.partition(".")
                file = folder / entry if kind == "py" else folder / entry / "__init__.py"
                if stem in self._loaded and stem != "__main__" and self._loaded[stem][0] != str(file) and file.exists():
                    return entry
        return ""

    def fork(self, folder: Path, env: dict[str, str], log: int) -> Agent:
        """Fork an agent for the run of `folder`, with its output to the descriptor `log`. Raises OSError if the server
        has gone.
        """
        umask = os.umask(0o077)
        os.umask(umask)
        work = {"folder": str(folder), "env": env, "cwd": os.getcwd(), "umask": umask}
        request = os.memfd_create("request")  # the environment may hold secrets: it is written into no file
        status, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        lifeline_read, lifeline = os.pipe()
        try:
            os.write(request, json.dumps(work).encode())
            os.lseek(request, 0, os.SEEK_SET)
            socket.send_fds(self._channel, [b"fork"], [request, lifeline_read, log, theirs.fileno()])
            theirs.close()
            return Agent(status, lifeline)
        except OSError as error:
            status.close(), os.close(lifeline)
            what = "does not answer" if isinstance(error, TimeoutError) else "has gone"
            raise OSError(f"the server for warm starts {what}") from None
        finally:
            theirs.close(), os.close(lifeline_read), os.close(request)

    def close(self) -> None:
        """Have it end once its runs have ended, and wait a moment for that."""
        with contextlib.suppress(OSError):  # the learner has closed all descriptors
            self._channel.close()
        if self.owner == os.getpid():
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(2)


class Agent:
    """An agent that the server has forked: as much of subprocess.Popen as a job needs."""

    def __init__(self, status: socket.socket, lifeline: int):
        """Waits for the server to say which process it is; OSError if it does not."""
        self._status = status
        self._code: int | None = None
        status.settimeout(_ANSWER)
        self._who: processes.Identity = tuple(self._hear()["agent"])
        self.pid = self._who[0]
        self.stdin = open(lifeline, "wb", buffering=0)

    def poll(self) -> int | None:
        """Its exit code; None while it runs. If the server was killed, and the agent with it: -9."""
        return self.wait(0)

    def wait(self, timeout: float) -> int | None:
        """As poll(), once it has ended, or after the timeout (seconds)."""
        if self._code is None:
            self._code = self._told(timeout)
            if self._code is None and (ended := processes.code_of_zombie(self.pid)) is not None:
                # The server is about to wait for it and tell, unless it is stopped.
                told = self._told(_SERVER_MOMENT)
                self._code = ended if told is None else told
            if self._code is not None:
                self._status.close()
        return self._code

    def _told(self, timeout: float) -> int | None:
        """The exit code as the server tells it; None if it does not within the timeout."""
        self._status.settimeout(timeout)
        try:
            return self._hear()["code"]
        except (BlockingIOError, TimeoutError):
            return None
        except OSError:  # the server is gone, and with it who could tell
            return None if processes.alive(self._who) else -signal.SIGKILL

    def kill(self) -> None:
        """End it by SIGKILL; it is gone afterwards, also where the server that should tell so is stopped."""
        processes.send(self._who, signal.SIGKILL)
        if self.wait(0.5) is None and not processes.alive(self._who):
            self._code = -signal.SIGKILL

    def _hear(self) -> dict:
        heard = self._status.recv(4096)  # what is sent together arrives together
        if not heard:
            raise ConnectionResetError
        return json.loads(heard)


_server: Server | None = None
_lock = threading.Lock()


def begin() -> None:
    """Start the server of this process in the background, if there is none and it could serve."""
    global _server
    if sys.platform != "linux":
        return
    with _lock:
        if _server is not None and (_server.owner != os.getpid() or _server.left):
            _forget()
        if _server is None:
            _server = Server()
            atexit.register(_server.close)


def drop() -> None:
    """Let the server go, with the runs that it has forked still going on. The next run starts another."""
    with _lock:
        if _server is not None:
            _forget()


def _forget() -> None:
    global _server
    atexit.unregister(_server.close)
    _server.close()
    _server = None


def server_for(env: dict[str, str], folder: Path) -> tuple[Server | None, str]:
    """The server that can serve a run with this environment and a script from this folder; or None and why not."""
    if sys.platform != "linux":
        return None, f"on {sys.platform} a process with torch loaded cannot be forked safely"
    begin()
    server = _server
    if not server.ready():
        drop()
        return None, f"the server for warm starts is not there: {server.error}"
    if name := server.changed():
        drop()
        return None, f"{name} has changed since the server for warm starts has loaded it"
    if name := server.outdated():
        drop()
        return None, f"the {name} of this kernel changed after the server for warm starts had begun"
    if name := server.read_early(env):
        return None, f"{name} is read while Python and torch are being loaded"
    if name := server.hides(folder):
        return None, f"{name} beside the script takes the place of a module that is loaded in a warm start"
    if error := _no_semaphores():
        return None, f"torchrun's fork mode needs semaphores, and none can be made: {error}"
    return server, ""


def _inherited() -> dict[str, object]:
    """What processes inherit from this one, but for what each run is given anew."""
    import resource  # not on Windows, where this file is loaded too

    limits = [getattr(resource, name) for name in dir(resource) if name.startswith("RLIMIT_")]
    return {
        "user": (os.getresuid(), os.getresgid(), os.getgroups()),
        "cores": os.sched_getaffinity(0),
        "priority": (os.getpriority(os.PRIO_PROCESS, 0), os.sched_getscheduler(0)),
        "resource limits": [resource.getrlimit(limit) for limit in limits],
        "signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, []),
    }


def _no_semaphores() -> str:
    """Why POSIX semaphores cannot be made: their file system may be full or may not be there; "" if they can."""
    try:
        multiprocessing.get_context("fork").Lock()
    except OSError as error:
        return error.strerror
    return ""


def _changed_at(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return 0
