"""Makes `.venv`, with the system's Python and nothing else installed. Shared by lab.py and test.py.

Three files inside `.venv` carry its state: `ddp-lab.json`, the stamp of a finished set-up (while it matches,
nothing is run again); `half-made`, there only while packages are written into it (an environment that still
has it was interrupted there and is made again); `setup.log`, what pip said.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import json
import os
import platform
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
CPU_INDEX = "https://download.pytorch.org/whl/cpu"

# GB: what pip downloads, and the most the disk holds meanwhile (the wheels and what is unpacked from them).
# Measured on Linux, x86-64, torch 2.14.1.
DOWNLOAD = {"cpu": 0.4, "cuda": 2.9}
ROOM = {"cpu": 1.5, "cuda": 8.5, "update": 0.3}

# Exit codes: 0 fine, 1 a step failed, 2 bad usage or unfit machine, and the shell's own for Ctrl-C:
INTERRUPTED = 130


class Stop(Exception):
    """Ends the command with one line and an exit code."""

    def __init__(self, line, code):
        super().__init__(line)
        self.code = code


def main(command):
    """Runs command() -> exit code. A foreseen end is one line on stderr and its code, never a traceback."""

    def stop(*_):
        raise KeyboardInterrupt

    for sign in signal.SIGTERM, signal.SIGHUP:
        if signal.getsignal(sign) != signal.SIG_IGN:  # nohup's choice stays
            signal.signal(sign, stop)
    try:
        return command()
    except Stop as end:
        print(end, file=sys.stderr)
        return end.code
    except KeyboardInterrupt:
        print("\ninterrupted; the same command carries on from here", file=sys.stderr)
        return INTERRUPTED


def python():
    """The environment's own Python."""
    return VENV / "bin" / "python"


def environment():
    """The environment variables for everything that runs from `.venv`: its programs and kernel come first."""
    env = {k: v for k, v in os.environ.items() if k not in ("PYTHONHOME", "PYTHONPATH")}
    env["VIRTUAL_ENV"] = str(VENV)
    env["PATH"] = os.pathsep.join([str(VENV / "bin"), env.get("PATH", os.defpath)])
    # A kernel "python3" that the user registered elsewhere would otherwise be taken for ours.
    paths = [str(VENV / "share" / "jupyter"), env.get("JUPYTER_PATH")]
    env["JUPYTER_PATH"] = os.pathsep.join(filter(None, paths))
    return env


def prepare(extras=(), torch_index=None):
    """Makes `.venv` hold the project, its dependencies and the named extras; quick when it already does.

    torch_index: where to take torch from; None leaves the choice to `choose_index`. Raises Stop.
    """
    check_folder()
    with lock():
        old = read_stamp()
        extras = sorted({*extras, *old.get("extras", [])})
        unusable = broken() or other_index(old, torch_index)
        if unusable:
            say(f".venv is of no use any more ({unusable}): making it again")
            remove_venv()
        elif old == stamp(extras, old.get("torch_index"), old.get("python")):
            if old["torch_index"] == CPU_INDEX and has_driver():
                say("note: .venv has CPU-only torch, yet there is an NVIDIA driver: for CUDA, "
                    "scripts/lab.py --clean, then this again")
            return
        install(extras, torch_index)


def ask_nothing():
    """Sets JupyterLab in `.venv` not to ask about news, or that is the first thing that a learner sees."""
    settings = VENV / "share" / "jupyter" / "lab" / "settings"
    settings.mkdir(parents=True, exist_ok=True)
    (settings / "overrides.json").write_text(
        json.dumps({"@jupyterlab/apputils-extension:notification": {"fetchNews": "false"}}) + "\n")


def install(extras, torch_index):
    began = time.monotonic()
    index, why = choose_index(torch_index)
    size = "cpu" if index == CPU_INDEX or sys.platform == "darwin" else "cuda"
    check_room("update" if has_torch() else size)

    doing = "completing" if python().exists() else "making"
    say(f"{doing} .venv in {ROOT} (log: {VENV.name}/setup.log)")
    if " " in str(ROOT):
        say("note: this folder's path has spaces; that works, but quote it in commands of your own")
    if not has_torch():
        say(f"{why}; about {DOWNLOAD[size]} GB to download in all, less what pip has kept from before")

    make_venv()
    with contextlib.suppress(OSError):
        shutil.rmtree(VENV / "tmp")
    (VENV / "tmp").mkdir()
    pip("[2/4] pip itself", "--upgrade", "pip")
    torch = [d for d in requirements() if d.startswith("torch")]
    try:
        pip("[3/4] torch and torchvision", *torch, *(["--index-url", index] if index else []))
    except Stop:
        if index is None or torch_index:
            raise
        say(f"that did not work from {index}: taking torch from the default index")
        index = None
        pip("[3/4] torch and torchvision", *torch)
    project = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    pip("[4/4] JupyterLab and the rest", "--editable", project)
    shutil.rmtree(VENV / "tmp", ignore_errors=True)
    ask_nothing()
    (VENV / "ddp-lab.json").write_text(json.dumps(stamp(extras, index, venv_version()), indent=1) + "\n")
    say(f".venv is ready ({time.monotonic() - began:.0f} s)")


# ---- what is there

def stamp(extras, torch_index, version):
    """What a finished set-up depends on; another value means that it has to be completed."""
    packaging = (ROOT / "pyproject.toml").read_text().split("[tool.")[0]  # not the tools' settings
    return {"pyproject": hashlib.sha256(packaging.encode()).hexdigest(), "python": version,
            "extras": list(extras), "torch_index": torch_index}


def read_stamp():
    try:
        return dict(json.loads((VENV / "ddp-lab.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def broken():
    """Why `.venv` cannot be used or completed; None if it can, or if there is none yet."""
    if not os.path.lexists(VENV):
        return None
    if not VENV.exists():
        return "it is a link to a folder that is gone"
    if (VENV / "half-made").exists():
        return "its making was interrupted"
    if not (VENV / "pyvenv.cfg").exists():
        if VENV.is_file() or any(VENV.iterdir()):
            raise Stop(f"{VENV} is no virtual environment: move it away, then call this again", 2)
        return "it is empty"
    if not python().exists():
        return "its Python is gone"
    ask = "import sys; print('%d.%d' % sys.version_info[:2]); print(sys.prefix); import pip"
    answer = subprocess.run([python(), "-I", "-c", ask], capture_output=True, text=True)
    if answer.returncode:
        return "its Python does not run" if not answer.stdout else "it has no pip"
    version, prefix = answer.stdout.splitlines()
    if version != venv_version():
        return f"it was made by Python {venv_version()}, which is {version} now"
    return None if Path(prefix) == VENV and made_here() else "it was made in another folder"


def made_here():
    """Whether `.venv` still is where it was made: the scripts in its bin have that path written into them."""
    try:
        script = (VENV / "bin" / "activate").read_text()
    except OSError:
        return True
    return any(f"={path}" in script for path in (f'"{VENV}"', f"'{VENV}'", shlex.quote(str(VENV))))


def other_index(old, torch_index):
    """Why the torch that is there is not the one asked for; None if it may be."""
    if torch_index and has_torch() and old.get("torch_index") != torch_index:
        return "its torch is from another index"
    return None


def venv_version():
    """The version of the Python that made `.venv`, as "3.11"."""
    with contextlib.suppress(OSError):
        found = re.search(r"^version\w* *= *(\d+\.\d+)", (VENV / "pyvenv.cfg").read_text(), re.M)
        if found:
            return found[1]
    return None


def has_torch():
    return any(site_packages().glob("torch-*.dist-info"))


def site_packages():
    return VENV / "lib" / f"python{venv_version()}" / "site-packages"


def requirements():
    """The project's dependencies, read without tomllib, which Python 3.10 lacks."""
    block = re.search(r"^dependencies = \[\n(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S)[1]
    return re.findall(r'^ *"([^"]+)"', block, re.M)


# ---- what the machine offers

def check_folder():
    if os.pathsep in str(ROOT):
        raise Stop(f"a virtual environment cannot be in a path with '{os.pathsep}': move {ROOT}", 2)
    if not os.access(ROOT, os.W_OK):
        raise Stop(f"cannot write in {ROOT}: copy the course to a folder of your own", 2)


def check_room(kind):
    free = shutil.disk_usage(ROOT).free / 1e9
    if free < ROOM[kind]:
        raise Stop(f"no room: the set-up takes up to {ROOM[kind]} GB, {ROOT} has {free:.1f} GB free", 2)


def has_driver():
    """Whether an NVIDIA driver is there (the last: under WSL)."""
    signs = "/proc/driver/nvidia", "/dev/nvidia0", "/usr/lib/wsl/lib/nvidia-smi"
    return bool(shutil.which("nvidia-smi")) or any(map(os.path.exists, signs))


def choose_index(wanted):
    """(index of torch, or None for pip's default one; the sentence that says why)."""
    if wanted:
        return wanted, f"torch from {wanted}, as asked"
    if sys.platform != "linux":
        return None, "torch from the default index"
    if has_driver():
        return None, "NVIDIA driver found: torch with CUDA from the default index"
    if answers(CPU_INDEX + "/torch/"):
        return CPU_INDEX, f"no NVIDIA driver: CPU-only torch from {CPU_INDEX}"
    return None, "no NVIDIA driver, but PyTorch's CPU-only index does not answer: torch from the default one"


def answers(url, seconds=4):
    """Whether url answers in time. In a thread, as looking up a name has no time limit of its own."""
    good = []

    def ask():
        with contextlib.suppress(OSError, ValueError), urllib.request.urlopen(url, timeout=seconds) as page:
            good.append(page.status == 200)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(seconds)
    return good == [True]


# ---- doing it

@contextlib.contextmanager
def lock():
    """One set-up at a time in this folder. pip inherits the lock: one that outlives us still holds it."""
    fd = os.open(ROOT, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("another set-up is running in this folder: waiting for it")
            fcntl.flock(fd, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            pass
        lock.fd = fd
        yield
    finally:
        os.close(fd)


def make_venv():
    """A new `.venv` with pip in it, unless there is one."""
    if python().exists():
        return
    if not has_ensurepip():
        version = ".".join(map(str, sys.version_info[:2]))
        cure = f"on Debian or Ubuntu, apt install python{version}-venv"
        raise Stop(f"this Python cannot make virtual environments: {cure}", 2)
    VENV.mkdir(exist_ok=True)
    (VENV / "half-made").touch()
    # Not sys.executable, which may be that of an active environment, perhaps the very one that was removed.
    base = getattr(sys, "_base_executable", None) or sys.executable
    step("[1/4] the virtual environment", [base, "-m", "venv", str(VENV)])
    (VENV / "half-made").unlink()


def has_ensurepip():
    return importlib.util.find_spec("ensurepip") is not None


def pip(title, *arguments):
    """One `pip install`, marked as half-made for as long as it writes packages."""
    mark = VENV / "half-made"
    raw = pip_version() >= (24, 1)  # the first that reports its downloads to a program
    command = [str(python()), "-m", "pip", "install", "--no-input", "--retries", "2", "--timeout", "20",
               "--progress-bar", "raw" if raw else "off", *arguments]
    step(title, command, writes=mark)
    mark.unlink(missing_ok=True)


def pip_version():
    found = [re.match(r"pip-(\d+)\.(\d+)", p.name) for p in site_packages().glob("pip-*.dist-info")]
    return max((tuple(map(int, m.groups())) for m in found if m), default=(0, 0))


def step(title, command, writes=None):
    """Runs one command: what it says to the log, how far it is to the terminal. Raises Stop when it fails.

    writes: a file to make as soon as pip begins to write packages.
    """
    line, said = Line(title), []
    env = {**environment(), "PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PYTHONUNBUFFERED": "1"}
    if (VENV / "tmp").exists():
        env["TMPDIR"] = str(VENV / "tmp")  # /tmp may be far smaller than the disk whose room was checked
    with open(VENV / "setup.log", "a", errors="replace") as log:
        print(f"\n$ {' '.join(command)}", file=log, flush=True)
        # Its own session: a Ctrl-C reaches us alone, and we pass it on and wait for pip to tidy up.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                 stderr=subprocess.STDOUT, env=env, cwd=ROOT, start_new_session=True,
                                 pass_fds=[lock.fd])
        try:
            for text in lines(child.stdout):
                if text:
                    if not text.startswith("Progress "):
                        log.write(text + "\n")
                        log.flush()
                        said.append(text)
                    if writes and text.startswith("Installing collected packages"):
                        writes.touch()
                line.show(text)
            code = child.wait()
        except BaseException:
            end(child)
            raise
        finally:
            line.close()
    if code:
        raise Stop(*explain("\n".join(said), title))


def lines(pipe, every=0.5):
    """The lines of a pipe as they come, and "" whenever none came for a while."""
    rest = b""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, selectors.EVENT_READ)
        while True:
            if not ready.select(every):
                yield ""
                continue
            data = os.read(pipe.fileno(), 65536)
            if not data:
                break
            *whole, rest = (rest + data).split(b"\n")
            for text in whole:
                yield text.decode(errors="replace").strip()
    if rest.strip():
        yield rest.decode(errors="replace").strip()


def end(child):
    """Ends a step's process group: politely, then not."""
    for sign, seconds in (signal.SIGINT, 5), (signal.SIGKILL, 5):
        with contextlib.suppress(ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            os.killpg(child.pid, sign)
            child.wait(seconds)
            return


NETWORK = re.compile(r"NewConnectionError|NameResolutionError|ConnectTimeoutError|ReadTimeoutError|ProxyError"
                     r"|Max retries exceeded|connection broken by|Network is unreachable|timed out")


def explain(said, title):
    """(line, exit code) for a step that failed, from what it said."""
    see = f"(log: {VENV.name}/setup.log)"
    if "No space left on device" in said:
        return f"no room left on the disk during {title} {see}", 2
    if NETWORK.search(said):
        return f"no network: pip cannot reach its package index; connect, then call this again {see}", 1
    missing = re.search(r"No matching distribution found for (\S+)", said)
    if missing:
        here = f"Python {venv_version()} on {platform.system()} {platform.machine()}"
        return f"the package index has no {missing[1]} for {here} {see}", 1
    last = [text for text in said.splitlines() if text.strip()][-1:] or ["nothing was said"]
    errors = re.findall(r"^ERROR: (.+)", said, re.M) or last
    return f"{title} failed: {errors[-1]} {see}", 1


def remove_venv():
    """Removes `.venv`, and nothing a link named `.venv` points to."""
    try:
        if VENV.is_symlink():
            VENV.unlink()
        elif VENV.exists():
            shutil.rmtree(VENV)
    except OSError as error:
        raise Stop(f"cannot remove {VENV}: {error.strerror} ({error.filename})", 2) from None


def clean():
    """Takes away what these commands made: `.venv`. Runs, notebooks and pip's cache are the user's."""
    check_folder()
    with lock():
        broken()  # refuses a folder that is no virtual environment
        there = os.path.lexists(VENV)
        remove_venv()
    say("removed .venv; pip keeps its downloads until `pip cache purge`" if there else "nothing to remove")


# ---- saying it

def say(text):
    print(text, flush=True)


class Line:
    """One step on the terminal: rewritten in place there, a plain line now and then elsewhere."""

    def __init__(self, title, out=None, every=15):
        self.title, self.out, self.every = title, out or sys.stdout, every
        self.began = self.last = time.monotonic()
        self.stage, self.what, self.names = "", "", []
        self.live = self.out.isatty()
        self.write()

    def show(self, text):
        self.stage = self.read(text) or self.stage
        now = time.monotonic()
        if now - self.last >= (0.5 if self.live else self.every):
            self.last = now
            self.write()

    def read(self, text):
        """What a line of pip's means for the one who waits; None if nothing."""
        if text.startswith("Installing collected packages: "):
            self.names = [plain(name) for name in text.split(": ", 1)[1].split(", ")]
        if self.names:
            have = {plain(p.name.split("-")[0]) for p in site_packages().glob("*.dist-info")}
            todo = [name for name in self.names if name not in have]
            return f"installing {todo[0]}, {len(todo)} of {len(self.names)} to go" if todo else None
        if text.startswith("Collecting "):
            return f"looking for {text.split()[1]}"
        if text.startswith("Downloading "):
            self.what = text.split()[1].rsplit("/", 1)[-1].split("-")[0]
            return "downloading " + " ".join([self.what, *text.split()[2:]])
        got = re.match(r"Progress (\d+) of (\d+)", text)
        if got:
            done, size = (int(n) / 1e6 for n in got.groups())
            return f"downloading {self.what}, {done:.0f} of {size:.0f} MB"
        return None

    def write(self, end=""):
        seconds = f"{time.monotonic() - self.began:4.0f} s"
        text = f"{self.title:32}{seconds}  {self.stage}".rstrip()
        if self.live:
            width = shutil.get_terminal_size().columns - 1
            self.out.write(f"\r\x1b[K{text[:width]}{end}")
        else:
            self.out.write(text + "\n")
        self.out.flush()

    def close(self):
        self.stage = ""
        self.write("\n")


def plain(name):
    """A package's name as its metadata folder spells it."""
    return re.sub(r"[-_.]+", "_", name).lower()
