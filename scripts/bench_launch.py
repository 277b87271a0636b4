#!/usr/bin/env python3
"""Measures how long two ranks take to start: by torchrun, by ours, cold and warm, and by what others offer.

    .venv/bin/python scripts/bench_launch.py                    everything: 15 minutes and more
    .venv/bin/python scripts/bench_launch.py --quick --only ours-warm,torchrun
    .venv/bin/python scripts/bench_launch.py --json figures.json

A kernel is a fresh Python process. The first column is from its start to the first result, the second from a later call
in the same kernel to its result. All launchers come in turn in every round, so the figures of one run compare with each
other, and with nothing else. accelerate, torchrunx and ipyparallel are measured where the Python that runs this has
them: install them into a virtual environment of their own, not into .venv.

Exit code: 0 fine, 1 a measurement failed, 2 bad usage, 130 interrupted.
"""

import argparse
import contextlib
import importlib.metadata
import importlib.util
import json
import os
import secrets
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

try:
    import psutil

    from ddp_lab.launch import environment
except ImportError as error:
    sys.stderr.write(f"{error}: run this by the Python of the course, .venv/bin/python {sys.argv[0]}\n")
    sys.exit(2)

MARK = "DDP_LAB_BENCH_MARK"  # in the environment of all that is started here, by which it is found again
LIMIT = 120  # seconds that a kernel gets
GONE = 3.0  # seconds after which nothing of a killed kernel may be left
COLUMNS = {"fresh": "from a fresh kernel", "later": "each later run"}
WORKS = {"hello": "hello: join the group, one all-reduce, end", "steps": "ten steps of a small model under DDP"}

# What ranks run: the script of launchers that take one; others get do(), which carries its functions anywhere.
WORK = '''
import gc, json, os, sys, time
import torch
import torch.distributed as dist

def join():
    if not dist.is_initialized():  # torchrunx has done it
        dist.init_process_group("gloo")

def hello():
    join()
    total = torch.tensor(dist.get_rank() + 1.0)
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()

def steps(count=10, report=lambda step, loss: None):
    join()
    torch.manual_seed(dist.get_rank())
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    before, calls = sum(os.times()[:4]), 0.0
    for step in range(count):
        images, labels = torch.randn(16, 64), torch.randint(10, (16,))
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        calls -= time.thread_time()
        report(step, loss)
        calls += time.thread_time()
    cpu = sum(os.times()[:4])
    weights = sum(p.detach().double().sum().item() for p in model.parameters())
    dist.destroy_process_group()
    return {"weights": weights, "loop": cpu - before, "calls": calls, "ranks": sum(os.times()[:4])}

def bare():
    return steps(300)

def logged():
    from ddp_lab import worker
    def report(step, loss):
        worker.log(step=step, loss=loss)
        worker.progress(step + 1, 300, loss=loss)
    return steps(300, report)

def who():
    left = [name for name in ("left_by_the_kernel", "left_by_a_run") if name in sys.modules]
    sys.modules["left_by_a_run"] = sys
    return {"pid": os.getpid(), "left": left, "hash": hash("a text")}

def fail():
    if os.environ["RANK"] == "1":
        raise ValueError("the words of rank 1")

def hang():
    open(os.path.join(os.environ["BENCH_FOLDER"], "hangs" + os.environ["RANK"]), "w").close()
    time.sleep(60)

if __name__ == "__main__":
    sys.stdout.write("RESULT " + json.dumps(globals()[sys.argv[1]]()) + "\\n")  # in one piece: ranks share a pipe
    sys.stdout.flush()
    gc.collect()  # or torch 2.14 may abort a healthy process at exit
'''

# A kernel is KERNEL, then a launcher's text, by which launch(work) returns what the ranks have returned, then JOBS.
KERNEL = '''
import json, os, socket, subprocess, sys, time

SCRIPT, JOB, WORK, PAUSE = sys.argv[1:]
REPORTS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(os.open("output.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND), 1)
facts, end = dict, lambda: None

def report(**fields):
    REPORTS.write(json.dumps(fields) + "\\n")

def results(text):
    return [json.loads(line[7:]) for line in text.splitlines() if line.startswith("RESULT ")]

def free_port():
    with socket.socket() as it:
        it.bind(("127.0.0.1", 0))
        return str(it.getsockname()[1])

def do(script, work):
    names = {}
    with open(script) as file:
        exec(file.read(), names)
    return names[work]()
'''

JOBS = '''
sys.modules["left_by_the_kernel"] = sys
if JOB == "time":
    report(results=launch(WORK), at=time.monotonic())
    if PAUSE:
        time.sleep(float(PAUSE))
        began = time.monotonic()
        report(results=launch(WORK), seconds=time.monotonic() - began)
    report(cpu=sum(os.times()[:4]), **facts())
elif JOB == "probe":
    runs, found = [launch("who"), launch("who")], {}
    try:
        launch("fail")
    except BaseException as error:
        found = {"raised": type(error).__name__, "words": "the words of rank 1" in str(error)}
    report(runs=runs, torch="torch" in sys.modules, **found)
else:
    launch("hang")
end()
'''

TORCHRUN = '''
def launch(work, options=()):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *options]
    done = subprocess.run([*command, SCRIPT, work], check=True, stdout=subprocess.PIPE, text=True)
    return results(done.stdout)
'''

TORCHRUN_FORK = TORCHRUN.replace("=()", '=("--start-method", "fork", "--run-path")')

OURS_COLD = '''
import ddp_lab as lab

def launch(work, warm=False):
    run = lab.torchrun(SCRIPT, work, warm=warm)
    return [result for rank in run.ranks for result in results(rank.stdout)]
'''

# The server is asked for before the first call, which would ask for it: so its own seconds are known.
OURS_WARM = OURS_COLD.replace("warm=False", "warm=True") + '''
import pathlib, psutil
from ddp_lab.launch import environment, warm

began = time.monotonic()
server, why = warm.server_for(environment.of_ranks(2), pathlib.Path.cwd())
up = time.monotonic() - began

def facts():
    process = psutil.Process(server.pid)
    written = sum(area.private_dirty for area in process.memory_maps())
    return {"server": {"up": up, "uss": process.memory_full_info().uss / 2**20, "written": written / 2**20}}
'''

NOTEBOOK_LAUNCHER = '''
from accelerate import notebook_launcher

def tell(work):
    sys.stdout.write("RESULT " + json.dumps(do(SCRIPT, work)) + "\\n")
    sys.stdout.flush()

def launch(work):
    start = os.lseek(1, 0, os.SEEK_END)
    notebook_launcher(tell, (work,), num_processes=2, use_port=free_port())
    return results(os.pread(1, 1 << 20, start).decode())
'''

TORCHRUNX = '''
import torchrunx

def launch(work):
    names = ("DDP_LAB_BENCH_MARK", "BENCH_FOLDER", "GLOO_SOCKET_IFNAME", "OMP_NUM_THREADS")
    options = {"hostnames": ["localhost"], "workers_per_host": 2, "backend": "gloo"}
    launcher = torchrunx.Launcher(**options, extra_env_vars={name: os.environ[name] for name in names})
    return launcher.run(do, SCRIPT, work).results["localhost"]
'''

IPYPARALLEL = '''
import ipyparallel

cluster = ipyparallel.Cluster(n=2)
engines, end = cluster.start_and_connect_sync(), cluster.stop_cluster_sync

def as_rank(do, script, work, **settings):
    import os
    os.environ.update(settings)
    return do(script, work)

def launch(work):
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    asked = [engines[rank].apply_async(as_rank, do, SCRIPT, work, RANK=str(rank), **group) for rank in range(2)]
    return [answer.get() for answer in asked]
'''


class Launcher(NamedTuple):
    """launch: the text in its kernel; package: what it needs; documented: what its documentation says it gives up."""

    launch: str
    package: str = "torch"
    documented: str = ""


LAUNCHERS = {
    "torchrun": Launcher(TORCHRUN),
    "torchrun-fork": Launcher(TORCHRUN_FORK),
    "ours-cold": Launcher(OURS_COLD),
    "ours-warm": Launcher(OURS_WARM),
    "notebook_launcher": Launcher(NOTEBOOK_LAUNCHER, "accelerate",
                                  "for a function; its values are lost; no use of a GPU before it"),
    "torchrunx": Launcher(TORCHRUNX, "torchrunx", "for a function; errors of ranks are raised; Linux only"),
    "ipyparallel": Launcher(IPYPARALLEL, "ipyparallel", "for functions; engines stay and keep their state"),
}


def missing(name):
    """Why a launcher cannot be measured here; "" if it can."""
    if name in ("ours-warm", "torchrunx") and sys.platform != "linux":
        return "it needs Linux"
    package = LAUNCHERS[name].package
    return "" if importlib.util.find_spec(package) else f"{package} is not installed for {sys.executable}"


class Failed(Exception):
    """A measurement has failed; the text says which, and why."""


class Bench:
    """A folder for all that is written, and kernels whose processes can be found again by a mark."""

    def __init__(self, folder):
        self.folder, self._mark = Path(folder), secrets.token_hex(8)
        (self.folder / "work.py").write_text(WORK)
        (self.folder / "tmp").mkdir()
        places = {"DDP_LAB_HOME": "runs", "IPYTHONDIR": "ipython", "TMPDIR": "tmp", "BENCH_FOLDER": ""}
        self._env = environment.of_ranks(2) | {name: str(self.folder / place) for name, place in places.items()}
        self._env[MARK] = self._mark
        self._env.pop("DDP_LAB_LEDGER", None)  # that one counts the runs of notebooks

    def start(self, name, job, work="", pause=""):
        """A kernel with one job. A session of its own keeps Ctrl-C for this process."""
        path = self.folder / "kernel.py"
        path.write_text(KERNEL + LAUNCHERS[name].launch + JOBS)
        command = [sys.executable, path, self.folder / "work.py", job, work, str(pause)]
        with open(self.folder / "kernel.log", "wb") as log:
            return subprocess.Popen(command, env=self._env, cwd=self.folder, stdout=subprocess.PIPE, stderr=log,
                                    text=True, start_new_session=True)

    def kernel(self, name, job, *what):
        """What a kernel has reported, a list of dicts. Raises Failed."""
        with self.start(name, job, *what) as process:
            try:
                out, _ = process.communicate(timeout=LIMIT)
            except subprocess.TimeoutExpired:
                raise Failed(f"no end within {LIMIT} s") from None
            finally:
                self.clear()
        if process.returncode:
            why = (self.folder / "kernel.log").read_text(errors="replace").strip().splitlines()[-1:]
            raise Failed(f"exit code {process.returncode}, {' '.join(why)[:300]}")
        return [json.loads(line) for line in out.splitlines()]

    def killed(self, name):
        """SIGKILL to a kernel whose ranks wait: (number of processes left after GONE seconds, seconds until then)."""
        signs, limit = [self.folder / f"hangs{rank}" for rank in range(2)], time.monotonic() + LIMIT
        with self.start(name, "hang") as process:
            try:
                while not all(sign.exists() for sign in signs):
                    if time.monotonic() > limit or process.poll() is not None:
                        raise Failed("the ranks did not come up")
                    time.sleep(0.02)
                process.kill()
                began = time.monotonic()
                while (left := len(self.living())) and time.monotonic() < began + GONE:
                    time.sleep(0.05)
                return left, time.monotonic() - began
            finally:
                self.clear()
                for sign in signs:
                    sign.unlink(missing_ok=True)

    def living(self):
        """The processes that were started here and live."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def clear(self):
        """End whatever is left, also what begins meanwhile."""
        while left := self.living():
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            psutil.wait_procs(left, 1)


def measure(bench, names, works, rounds, pause, failed):
    """Seconds {launcher: {work: {column: [one of each round]}}}, and what kernels say of a server, a list of dicts."""
    found = {name: {work: {column: [] for column in COLUMNS} for work in works} for name in names}
    facts = []
    for turn in range(rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            for work in works if name not in failed else []:
                note(f"round {turn + 1} of {rounds}: {name}, {work}")
                with attempt(failed, name):
                    began = time.monotonic()  # one clock for all processes
                    fresh, later, last = bench.kernel(name, "time", work, pause)
                    if not (right(work, fresh["results"]) and right(work, later["results"])):
                        raise Failed(f"{work}: wrong results {fresh['results']}, {later['results']}")
                    found[name][work]["fresh"].append(fresh["at"] - began)
                    found[name][work]["later"].append(later["seconds"])
                    facts += [last["server"]] if "server" in last else []
    return found, facts


def right(work, results):
    """Whether both ranks have brought what they must: the sum of 1 and 2, or equal weights."""
    if work == "hello":
        return results == [3.0, 3.0]
    return len(results) == 2 and results[0]["weights"] == results[1]["weights"]


def summary(figures):
    """{"median", "min", "max", "figures"} of a list; None of an empty one."""
    if figures:
        return {"median": statistics.median(figures), "min": min(figures), "max": max(figures), "figures": figures}


def compare(found, base="torchrun"):
    """The summaries of what measure() found, each with `faster`: how many times shorter than the base's median."""
    rows = {name: {work: {column: summary(columns[column]) for column in columns} for work, columns in works.items()}
            for name, works in found.items()}
    for works in rows.values():
        for work, columns in works.items():
            for column, figures in columns.items():
                than = rows[base][work][column] if base in rows else None
                if figures:
                    figures["faster"] = than["median"] / figures["median"] if than else None
    return rows


def table(rows, work):
    """The lines of a table for one work, at most 110 characters wide."""
    head = f"{'median':>10}{'min – max':>16}{'faster':>10}"
    lines = [WORKS[work], " " * 18 + "".join(f"{title:>36}" for title in COLUMNS.values()), " " * 18 + head * 2]
    return lines + [f"{name:<18}" + "".join(cells(works[work][column]) for column in COLUMNS)
                    for name, works in rows.items()]


def cells(figures):
    """Median, spread and ratio, 36 characters."""
    if not figures:
        return f"{'failed':>10}{'':>26}"
    spread, faster = f"{figures['min']:.2f} – {figures['max']:.2f}", figures["faster"]
    return f"{figures['median']:>8.3f} s{spread:>16}{f'{faster:.1f} x' if faster else '–':>10}"


def probe(bench, name):
    """What a launcher gives up, found out by runs: four cells of a table."""
    (found,) = bench.kernel(name, "probe")
    left, seconds = bench.killed(name)
    errors = f"{found['raised']}, {'' if found['words'] else 'not '}its words" if "raised" in found else "nothing"
    return [freshness(*found["runs"]), "no" if found["torch"] else "yes", errors,
            f"{left} processes" if left else f"nothing, {seconds:.1f} s"]


def freshness(first, second):
    """Whether ranks are new processes, from what those of two runs found: lists of {"pid", "left", "hash"}."""
    left = {name for rank in second for name in rank["left"]}
    if {rank["pid"] for rank in first} & {rank["pid"] for rank in second}:
        return "no: the same go on"
    if left:
        return "no: forks of the kernel" if "left_by_the_kernel" in left else "no: state is left"
    return "yes" if len({rank["hash"] for rank in second}) == 2 else "yes, with one hash seed"


def own_cost(bench, pairs):
    """CPU of 300 steps logged under lab.torchrun over that of the same without, under torchrun: summaries of ratios.

    ranks: whole processes of the ranks, by their own account; loop: the steps alone; all: with kernel, agent, guards.
    calls: the ranks' CPU over what it is without that of the calls of worker, by one run's own account.
    Cold: a forked rank does not spend what loading torch takes, and would hide our cost.
    """
    ratios = {"ranks": [], "loop": [], "all": [], "calls": []}
    kinds = [("torchrun", "bare"), ("ours-cold", "logged")]
    for pair in range(pairs):
        note(f"own cost, pair {pair + 1} of {pairs}")
        cpu = {}
        for name, work in kinds if pair % 2 else kinds[::-1]:
            first, last = bench.kernel(name, "time", work)
            cpu[name] = {what: sum(rank[what] for rank in first["results"]) for what in ("ranks", "loop", "calls")}
            cpu[name]["all"] = last["cpu"]
        ours, plain = cpu["ours-cold"], cpu["torchrun"]
        for what in ("ranks", "loop", "all"):
            ratios[what].append(ours[what] / plain[what])
        ratios["calls"].append(ours["ranks"] / (ours["ranks"] - ours["calls"]))
    return {what: summary(found) for what, found in ratios.items()}


def note(text):
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def attempt(failed, title):
    """Put a measurement that fails into `failed`, and go on."""
    try:
        yield
    except (Failed, ValueError) as why:  # ValueError: fewer reports than due
        note(f"FAILED {title}: {why}")
        failed[title] = str(why)


def run(options, bench):
    """The whole report, a dict that JSON can hold."""
    report = {"machine": {"cores": os.cpu_count(), "python": sys.version.split()[0], "before": os.getloadavg()[0],
                          "torch": importlib.metadata.version("torch")},
              "rounds": options.rounds, "works": ["hello"] if options.quick else list(WORKS), "gives_up": {},
              "skipped": {name: missing(name) for name in options.only if missing(name)},
              "own_cost": None, "failed": {}}
    here, failed = [name for name in options.only if name not in report["skipped"]], report["failed"]
    found, facts = measure(bench, here, report["works"], options.rounds, 0.3 if options.quick else 1.0, failed)
    report["launchers"] = compare(found)
    report["server"] = {what: summary([fact[what] for fact in facts]) for what in facts[0]} if facts else None
    for name in here if not options.quick else []:
        note(f"what {name} gives up")
        with attempt(failed, f"what {name} gives up"):
            report["gives_up"][name] = probe(bench, name)
    if options.pairs:
        with attempt(failed, "own cost"):
            report["own_cost"] = own_cost(bench, options.pairs)
    report["machine"]["after"] = os.getloadavg()[0]
    return report


def lines(report):
    """The report as text, at most 110 columns wide."""
    machine, rows = report["machine"], report["launchers"]
    yield (f"{machine['cores']} cores, load {machine['before']:.1f} before and {machine['after']:.1f} after; "
           f"Python {machine['python']}, torch {machine['torch']}; {report['rounds']} rounds")
    yield "faster: how many times shorter the median is than torchrun's in the same column\n"
    for work in report["works"]:
        yield from table(rows, work)
        yield ""
    if report["gives_up"]:
        titles = "fresh processes", "no torch here", "a failing rank raises", f"{GONE:.0f} s after kill -9"
        for name, words in {"probes of a kernel": titles, **report["gives_up"]}.items():
            yield "{:<20}{:<26}{:<15}{:<35}{}".format(name, *words)
        yield ""
    yield from (f"{name}: skipped, {why}" for name, why in report["skipped"].items())
    yield from (f"{name}, from its documentation: {LAUNCHERS[name].documented}"
                for name in [*report["skipped"], *rows] if LAUNCHERS[name].documented)
    yield from verdicts(report)
    yield from (f"FAILED {what}: {why}" for what, why in report["failed"].items())


def verdicts(report):
    """Lines that say what is wanted of an idle machine, and what came."""
    for work in report["works"]:
        ours, other = (report["launchers"].get(name, {}).get(work, {}).get("later")
                       for name in ("ours-warm", "notebook_launcher"))
        if ours and ours["faster"]:
            yield f"{work}: a later warm run is {ours['faster']:.1f} times faster than torchrun; wanted: 10"
        if ours and other:
            share = ours["median"] / other["median"]
            yield f"{work}: a later warm run takes {share:.2f} of notebook_launcher's time; the aim: at most 1"
    if report["server"]:
        up, uss, written = (report["server"][what]["median"] for what in ("up", "uss", "written"))
        yield (f"the warm server: up in {up:.1f} s; private memory {written:.0f} MiB, and {uss:.0f} (uss) with the "
               "libraries it alone has open")
    if report["own_cost"]:
        share = {what: f"{100 * (ratios['median'] - 1):+.1f} %" for what, ratios in report["own_cost"].items()}
        least, most = (100 * (report["own_cost"]["ranks"][end] - 1) for end in ("min", "max"))
        yield (f"own cost, CPU of the ranks in 300 logged steps: {share['ranks']} (median of pairs, {least:+.1f} to "
               f"{most:+.1f}); wanted: < 2 %")
        yield f"    the calls of worker in it, by their own clock: {share['calls']}"
        yield f"    the steps alone: {share['loop']}; all processes, whose end torchrun pays for: {share['all']}"


def arguments(argv=None):
    """The options, checked and complete."""
    text = __doc__.split("\n\n")
    parser = argparse.ArgumentParser(description=text[0], epilog="\n\n".join(text[2:]), allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, metavar="N", help="default 8, with --quick 2")
    parser.add_argument("--pairs", type=int, metavar="N", help="pairs for our own cost; default 10, with --quick 0")
    parser.add_argument("--only", metavar="NAME[,NAME]", help=f"of {', '.join(LAUNCHERS)}; own cost only by --pairs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--quick", action="store_true", help="the hello alone, without probes")
    options = parser.parse_args(argv)
    some = options.quick or options.only
    options.only = options.only.split(",") if options.only else list(LAUNCHERS)
    options.rounds = (2 if options.quick else 8) if options.rounds is None else options.rounds
    options.pairs = (0 if some else 10) if options.pairs is None else options.pairs
    for name in options.only:
        if name not in LAUNCHERS:
            parser.error(f"--only: there is no {name!r}, but {', '.join(LAUNCHERS)}")
    if options.rounds < 1 or options.pairs < 0:
        parser.error("--rounds is 1 or more, --pairs 0 or more")
    if options.json and not options.json.resolve().parent.is_dir():
        parser.error(f"--json: there is no folder {options.json.resolve().parent}")
    if all(missing(name) for name in options.only):
        parser.error(f"--only: {options.only[0]} cannot be measured: {missing(options.only[0])}")
    return options


def main(argv=None):
    options = arguments(argv)
    with tempfile.TemporaryDirectory(prefix="ddp-lab-bench-", ignore_cleanup_errors=True) as folder:
        bench = Bench(folder)
        try:
            report = run(options, bench)
        except KeyboardInterrupt:
            note("interrupted")
            return 130
        finally:
            bench.clear()
    print("\n".join(lines(report)))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if report["failed"] else 0


if __name__ == "__main__":
    for stop in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(stop, lambda number, _: sys.exit(128 + number))
    sys.exit(main())
