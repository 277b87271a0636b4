"""Starting warm: what a forked rank finds is what a fresh one finds, and the server serves, goes cold and ends well."""

import errno
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
from kernels import MARK, Emptying, is_server, kernel, marked, stands_in
from launching import ASLEEP, script, see
from waiting import wait_for

import ddp_lab as lab
from ddp_lab.launch import cluster, warm

torchrun = importlib.import_module("ddp_lab.launch.torchrun")

WARM_AND_COLD = [pytest.param(True, id="warm"), pytest.param(False, id="cold", marks=pytest.mark.slow)]

# All that a script can find out about the process that it runs in, and that may differ between a fork and a fresh one.
PROBE = """
import os
environment = dict(os.environ)
import atexit, gc, io, json, locale, logging, multiprocessing, os, resource, signal, socket, sys, tempfile, threading
import time, warnings
from concurrent.futures import ThreadPoolExecutor

import numpy
import torch
import torch.distributed as dist
import threadpoolctl
from ddp_lab import worker

def name_of_a_worker():
    with ThreadPoolExecutor() as pool:
        return pool.submit(lambda: threading.current_thread().name).result()

found = {
    "environment": environment, "argv": sys.argv, "name": __name__, "file": __file__, "cwd": os.getcwd(),
    "path": sys.path, "spec": str(__spec__), "globals": sorted(k for k in globals() if k.startswith("__")),
    "main": sys.modules["__main__"].__dict__ is globals(), "flags": str(sys.flags), "executable": sys.executable,
    "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
    "pools": sorted({(p["user_api"], p["num_threads"]) for p in threadpoolctl.threadpool_info()}),
    "streams": [(s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through, s.name, type(s.buffer).__name__)
                for s in (sys.stdout, sys.stderr)],
    "stdin": (sys.stdin.fileno(), sys.stdin.name, sys.stdin.encoding, sys.stdin.read(), os.fstat(0).st_rdev),
    "descriptors": len(os.listdir("/proc/self/fd")), "process": multiprocessing.current_process().name,
    "processes": (multiprocessing.parent_process(), multiprocessing.active_children()),
    "start method": multiprocessing.get_start_method(allow_none=True),
    "thread": (threading.current_thread().name, threading.main_thread() is threading.current_thread()),
    "threads": sorted(t.name for t in threading.enumerate()),
    "signals": {s.name: str(getattr(signal.getsignal(s), "__name__", signal.getsignal(s)))
                for s in signal.valid_signals() if isinstance(s, signal.Signals)},
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])), "wakeup": signal.set_wakeup_fd(-1),
    "leads": (os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()), "umask": os.umask(0o077),
    "new names": (threading.Thread(target=print).name, name_of_a_worker()),
    "started": 0 < time.time() * 1000 - logging.makeLogRecord({}).created * 1000
               + logging.makeLogRecord({}).relativeCreated < 60_000,
    "limits": [resource.getrlimit(getattr(resource, n)) for n in sorted(dir(resource)) if n.startswith("RLIMIT_")],
    "cores": sorted(os.sched_getaffinity(0)), "nice": os.nice(0), "comm": open("/proc/self/comm").read(),
    "locale": (locale.setlocale(locale.LC_ALL), locale.getpreferredencoding(False), sys.getfilesystemencoding()),
    "logging": (logging.getLogger().handlers, logging.getLogger().level), "hooks": sys.excepthook is sys.__excepthook__,
    "gc": (gc.isenabled(), gc.get_threshold()), "recursion": sys.getrecursionlimit(), "tempdir": tempfile.gettempdir(),
    "settings": [torch.get_default_dtype(), torch.is_grad_enabled(), torch.are_deterministic_algorithms_enabled(),
                 torch.get_float32_matmul_precision(), torch.cuda.is_initialized(), torch.is_inference_mode_enabled()],
    "debug": str(dist.get_debug_level()), "store": (dist.TCPStore.__module__, dist.TCPStore.__name__),
    "accelerator": torch.accelerator.is_available.__module__, "timeout": socket.getdefaulttimeout(),
    "initialised": dist.is_initialized(), "module": __import__("beside").VALUE,
}
dist.init_process_group()
found["group"] = (dist.get_backend(), dist.get_rank(), dist.get_world_size())
worker.save("found", json.loads(json.dumps(found, default=str)))
dist.barrier()
dist.destroy_process_group()
"""

# What is each run's own. TORCHELASTIC_ERROR_FILE is in the run's folder.
OWN = {"MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE", "DDP_LAB_RANK_DIR"}


def found_by(path, nproc, is_warm):
    seen = see(lab.torchrun, path, "an argument", nproc=nproc, warm=is_warm, env={"A_SETTING": "x"})
    assert seen.error is None, seen.error
    found = [rank.saved["found"] for rank in seen.run.ranks]
    for one in found:
        assert one["environment"].keys() >= OWN
        one["environment"] = {k: v for k, v in one["environment"].items() if k not in OWN}
    return found


@pytest.fixture(scope="module", params=[1, 2])
def both(request, tmp_path_factory):
    """What the ranks of a warm and of a cold run have found."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "beside.py").write_text("VALUE = 1")
    path = script(folder, PROBE)
    return found_by(path, request.param, True), found_by(path, request.param, False)


def test_a_rank_finds_warm_what_it_finds_cold(both):
    for warm_one, cold_one in zip(*both, strict=True):
        assert warm_one.keys() == cold_one.keys()
        different = {what: (warm_one[what], cold_one[what]) for what in cold_one if warm_one[what] != cold_one[what]}
        assert not different


def test_the_threads_are_those_that_were_asked_for(both):
    from ddp_lab import limits

    for found in both:
        for one in found:
            expected = max(1, limits.cores() // len(found))
            assert one["torch threads"][0] == expected
            assert {threads for _, threads in one["pools"]} == {expected}


def test_training_gives_the_same_to_the_last_bit():
    runs = [lab.torchrun("train_ddp", "--epochs", "2", show="none", warm=is_warm) for is_warm in (True, False)]
    warm_records, cold_records = ([rank.records for rank in run.ranks] for run in runs)
    assert warm_records == cold_records and len(warm_records[0]) > 5


DRAWS = """
import multiprocessing, random, numpy, sympy.core.random, torch
from ddp_lab import worker
worker.log(torch=torch.rand(1).item(), numpy=numpy.random.rand(), random=random.random(),
           sympy=sympy.core.random.rng.random(), key=multiprocessing.current_process().authkey.hex(),
           seed=torch.initial_seed(),
           model=torch.nn.Linear(1, 1).weight.item())
"""


@pytest.mark.parametrize("is_warm", WARM_AND_COLD)
def test_ranks_that_are_not_seeded_draw_their_own_numbers(tmp_path, is_warm):
    path = script(tmp_path, DRAWS)
    runs = [see(lab.torchrun, path, warm=is_warm).run for _ in range(2 if is_warm else 1)]
    drawn = [rank.records[0] for run in runs for rank in run.ranks]
    for name in ("torch", "numpy", "random", "sympy", "key", "seed", "model"):
        assert len({one[name] for one in drawn}) == len(drawn) >= 2, name


PROCESSES = """
import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader
from ddp_lab import worker

def spawned(index, queue):
    queue.put((index, __name__))

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 6
    def __getitem__(self, i):
        return i * i, torch.utils.data.get_worker_info().id

if __name__ == "__main__":
    for how in ("fork", "spawn"):
        batches = list(DataLoader(Squares(), batch_size=3, num_workers=2, multiprocessing_context=how))
        squares, workers = zip(*batches)
        worker.log(how=how, squares=sorted(torch.cat(squares).tolist()), workers=[ids[0].item() for ids in workers])
    queue = mp.get_context("spawn").SimpleQueue()
    mp.spawn(spawned, (queue,), nprocs=2)
    worker.log(spawned=sorted(queue.get() for _ in range(2)))
"""


@pytest.mark.parametrize("is_warm", WARM_AND_COLD)
def test_loader_workers_and_spawn_work_inside_a_rank(tmp_path, is_warm):
    seen = see(lab.torchrun, script(tmp_path, PROCESSES), nproc=1, warm=is_warm)
    assert seen.error is None, seen.error
    records = seen.run.ranks[0].records
    assert [r["squares"] for r in records[:2]] == [[0, 1, 4, 9, 16, 25]] * 2
    assert [r["workers"] for r in records[:2]] == [[0, 1]] * 2
    assert records[2]["spawned"] == [[0, "__mp_main__"], [1, "__mp_main__"]]


FORKS = """
import os
from ddp_lab import worker

pipes = [end for _ in range(20) for end in os.pipe()]
before = [os.readlink(f"/proc/self/fd/{end}") for end in pipes]
told, tell = os.pipe()
if os.fork() == 0:
    found = [os.path.lexists(f"/proc/self/fd/{end}") and os.readlink(f"/proc/self/fd/{end}") for end in pipes]
    os.write(tell, bytes([sum(one != other for one, other in zip(before, found))]))
    os._exit(0)
worker.log(lost=os.read(told, 1)[0])
"""


@pytest.mark.parametrize("hosts", [{}, {"nodes": 2, "nproc": 1}], ids=["here", "on hosts"])
def test_a_fork_of_a_warm_rank_has_the_descriptors_of_the_rank(tmp_path, hosts):
    if hosts and (why := cluster.why_not()):
        pytest.skip(why)
    run = lab.torchrun(script(tmp_path, FORKS), warm=True, show="none", **hosts)
    assert [record["lost"] for rank in run.ranks for record in rank.records] == [0, 0]


FILES = """
import sys, tempfile
from ddp_lab import worker

frame = sys._getframe()
while "error_file" not in frame.f_locals:  # in torch.multiprocessing, which has forked this
    frame = frame.f_back
worker.log(file=frame.f_locals["error_file"], folder=tempfile.gettempdir())
"""


@pytest.mark.parametrize("hosts", [{}, {"nodes": 2, "nproc": 1}], ids=["here", "on hosts"])
def test_what_torch_would_leave_of_a_rank_stopped_at_its_start_is_in_the_folder_of_the_run(tmp_path, hosts):
    if hosts and (why := cluster.why_not()):
        pytest.skip(why)
    run = lab.torchrun(script(tmp_path, FILES), warm=True, show="none", **hosts)
    for rank in run.ranks:
        (record,) = rank.records
        assert Path(record["file"]).parent == run.dir and record["folder"] == tempfile.gettempdir()


def test_an_edited_script_and_an_edited_module_are_seen_at_the_next_run(tmp_path):
    for number in range(3):
        (tmp_path / "helper.py").write_text(f"VALUE = {number}  # {'x' * number}")
        path = script(tmp_path, f"import helper\nprint(helper.VALUE, {number})\n")
        assert see(lab.torchrun, path, nproc=1, warm=True).run.ranks[0].stdout == f"{number} {number}\n"


@pytest.mark.parametrize("is_warm", WARM_AND_COLD)
@pytest.mark.parametrize("end", ["os._exit(0)", "sys.exit()", "sys.exit(0)", "pass"])
def test_a_rank_that_ends_before_the_others_is_no_reason_to_wait(tmp_path, end, is_warm):
    source = f"""
        import os, sys, time
        from pathlib import Path
        if os.environ["RANK"] == "0":
            {end}
        else:
            gone, limit = Path(os.environ["DDP_LAB_RANK_DIR"]).parent / "rank0/exit.json", time.monotonic() + 60
            while not gone.exists():
                assert time.monotonic() < limit, "rank 0 has not ended"
                time.sleep(0.01)
            print("rank 0 has gone")
    """
    seen = see(lab.torchrun, script(tmp_path, source), stall=10, warm=is_warm)
    assert seen.error is None, seen.error
    assert [rank.exitcode for rank in seen.run.ranks] == [0, 0]
    assert seen.run.ranks[1].stdout == "rank 0 has gone\n"


def test_the_first_wrap_and_step_import_nothing_more(tmp_path):
    source = """
        import sys
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel
        from torch.utils.data import DataLoader, DistributedSampler
        from ddp_lab import worker
        dist.init_process_group()
        before = set(sys.modules)
        model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))
        optimizer = torch.optim.AdamW(model.parameters())
        for batch in DataLoader(torch.ones(8, 2), batch_size=2, sampler=DistributedSampler(range(8))):
            model(batch).sum().backward()
            optimizer.step()
        worker.log(imported=sorted(set(sys.modules) - before))
        dist.destroy_process_group()
    """
    (first, second) = (rank.records for rank in see(lab.torchrun, script(tmp_path, source), warm=True).run.ranks)
    assert first == second == [{"imported": []}]


def test_the_kernels_environment_is_written_into_no_file(tmp_path, monkeypatch):
    path = script(tmp_path, "import os; print(len(os.environ['TOKEN']))")
    monkeypatch.setenv("TOKEN", "a-secret-word")
    run = see(lab.torchrun, path, nproc=1, warm=True).run
    assert run.ranks[0].stdout == "13\n"
    files = [file for file in run.dir.rglob("*") if file.is_file()]
    assert files and not [file for file in files if b"a-secret-word" in file.read_bytes()]


# ---- when it goes cold, and how it says so


def why(run_options=None, path="hello"):
    """The line that says why a run went cold, None if it was warm."""
    seen = see(lab.torchrun, path, nproc=1, show="none", **(run_options or {}))
    assert seen.error is None, seen.error
    return next((line for line in seen.lines if line.startswith("cold start:")), None)


@pytest.mark.parametrize(
    "name, value",
    [
        ("TORCH_DISTRIBUTED_DEBUG", "INFO"),
        ("TORCH_CPP_LOG_LEVEL", "INFO"),
        ("PYTHONHASHSEED", "0"),
        ("MKL_NUM_THREADS", "1"),
        ("OMP_PROC_BIND", "true"),
        ("OMP_NUM_THREADS", "1,2"),
        ("LD_BIND_NOW", "1"),
        ("LC_ALL", "C.UTF-8"),
        ("TMPDIR", "/var/tmp"),
        ("SYMPY_CACHE_SIZE", "10"),
        ("ONEDNN_DEFAULT_FPMATH_MODE", "BF16"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
    ],
)
def test_a_variable_that_is_read_too_early_for_a_fork_starts_cold(monkeypatch, name, value):
    monkeypatch.setattr(torchrun, "Job", warm_or_cold(asked := []))
    with pytest.raises(StopIteration):
        seen = []
        monkeypatch.setattr(torchrun, "say", seen.append)
        lab.torchrun("hello", nproc=1, env={name: value})
    assert asked == [None] and any(f"cold start: {name} is read" in line for line in seen)


@pytest.mark.parametrize(
    "env", [{"OMP_NUM_THREADS": "2"}, {"TORCH_FR_BUFFER_SIZE": "10"}, {"CUDA_VISIBLE_DEVICES": ""}, {"MINE": "1"}]
)
def test_other_variables_do_not(monkeypatch, env):
    monkeypatch.setattr(torchrun, "Job", warm_or_cold(asked := []))
    with pytest.raises(StopIteration):
        lab.torchrun("hello", nproc=1, env=env)
    assert asked[0] is not None


def warm_or_cold(asked):
    """A stand-in for Job that notes the server it is given, and starts nothing."""

    def job(folder, work, env, ranks, server, warm_only):
        asked.append(server)
        raise StopIteration

    return job


def test_the_folder_that_torch_sets_in_a_kernel_that_trains_is_no_change_and_another_is(monkeypatch):
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    assert why() is None
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", own := cache_dir())
    assert why() is None
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", own + "/mine")
    assert why() == "cold start: TORCHINDUCTOR_CACHE_DIR is read while Python and torch are being loaded"


def test_a_variable_that_has_changed_in_the_kernel_starts_cold_too(monkeypatch):
    assert why() is None
    monkeypatch.setenv("TORCH_SHOW_CPP_STACKTRACES", "1")
    assert "TORCH_SHOW_CPP_STACKTRACES" in why()
    monkeypatch.delenv("TORCH_SHOW_CPP_STACKTRACES")
    assert why() is None


def test_the_number_of_threads_that_is_asked_for_is_what_a_warm_rank_has(tmp_path):
    path = script(tmp_path, "import torch; print(torch.get_num_threads())")
    assert see(lab.torchrun, path, nproc=1, env={"OMP_NUM_THREADS": "3"}, warm=True).run.ranks[0].stdout == "3\n"


@pytest.mark.parametrize("name", ["random.py", "sympy.py", "numpy/__init__.py"])
def test_a_file_that_takes_the_place_of_a_loaded_module_starts_cold(tmp_path, name, monkeypatch):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("")
    path = script(tmp_path, "print('hello')")
    monkeypatch.setattr(torchrun, "Job", warm_or_cold(asked := []))
    with pytest.raises(StopIteration):
        lab.torchrun(path, nproc=1)
    (tmp_path / name).unlink()
    with pytest.raises(StopIteration):
        lab.torchrun(path, nproc=1)
    assert asked[0] is None and asked[1] is not None


@pytest.mark.parametrize("name", ["__main__.py", "train.py", "random.txt"])
def test_other_files_beside_the_script_do_not(tmp_path, name, monkeypatch):
    (tmp_path / name).write_text("")
    monkeypatch.setattr(torchrun, "Job", warm_or_cold(asked := []))
    with pytest.raises(StopIteration):
        lab.torchrun(script(tmp_path, "print('hello')", "run.py"), nproc=1)
    assert asked[0] is not None


@pytest.fixture
def changed_limit():
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_a_server_cannot_pass_on_starts_cold(monkeypatch, changed_limit):
    monkeypatch.setattr(warm, "drop", lambda: None)  # it is kept: only this test has changed anything
    line = "cold start: the resource limits of this kernel changed after the server for warm starts had begun"
    assert why() == line


@pytest.mark.parametrize(
    "name, other",
    [
        ("signal mask", lambda: signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])),
        ("cores", lambda: os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})),
        ("priority", lambda: os.nice(1)),
    ],
)
def test_what_a_server_cannot_pass_on_is_noticed(name, other):
    assert why() is None
    if name == "cores" and len(os.sched_getaffinity(0)) == 1:
        pytest.skip("needs two cores")
    told = []

    def change():  # to Linux these belong to a thread, and so end with it
        told.append(warm._server.outdated())
        other()
        told.append(warm._server.outdated())

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert told == ["", name] and not warm._server.outdated()


@pytest.mark.slow
def test_without_semaphores_it_starts_cold(monkeypatch):
    def full():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(multiprocessing.get_context("fork"), "Lock", full)
    assert "needs semaphores, and none can be made: No space left" in why()


def test_relative_folders_of_modules_are_those_of_a_fresh_start_and_a_folder_that_has_gone_does_no_harm(
    tmp_path, monkeypatch
):
    warm.drop()
    for name in ("there", "scripts", "gone", "parts"):
        (tmp_path / name).mkdir()
    (tmp_path / "there" / "beside.py").write_text("")
    path = script(tmp_path / "scripts", "import beside, tempfile; print(tempfile.gettempdir())")
    monkeypatch.setenv("TMPDIR", str(tmp_path / "gone"))
    monkeypatch.setenv("PYTHONPATH", f"there{os.pathsep}{os.environ.get('PYTHONPATH', '')}".strip(os.pathsep))
    monkeypatch.chdir(tmp_path)
    assert see(lab.torchrun, path, nproc=1, warm=True).run.ranks[0].stdout == f"{tmp_path / 'gone'}\n"
    shutil.rmtree(tmp_path / "gone")  # torch has made a folder in it
    seen = see(lab.torchrun, path, nproc=1, warm=True)
    assert seen.run.ranks[0].stdout == "/tmp\n"
    monkeypatch.chdir(tmp_path / "parts")
    seen = see(lab.torchrun, path, nproc=1)
    assert "cold start: PYTHONPATH is read while" in seen.text and "No module named 'beside'" in str(seen.error)
    warm.drop()


@pytest.mark.parametrize("name", ["torch", "torch.distributed.distributed_c10d", "ddp_lab.launch.rank"])
def test_a_module_that_was_changed_since_is_noticed(name):
    assert why() is None
    server = warm._server
    server._loaded[name][1] -= 1
    assert server.changed() == name
    server._loaded[name][1] += 1
    assert not server.changed()


def test_a_torch_that_was_changed_since_starts_cold_and_then_warm_again():
    assert why() is None
    before = warm._server
    before._loaded["torch"][1] -= 1
    assert why() == "cold start: torch has changed since the server for warm starts has loaded it"
    assert why() is None and warm._server.pid != before.pid
    assert not psutil.pid_exists(before.pid)


@pytest.mark.slow
def test_after_an_installation_it_starts_cold_once(monkeypatch):
    assert why() is None
    (folder,) = [name for name in warm._server._loaded if name.endswith("site-packages")]
    warm._server._loaded[folder][1] -= 1
    assert why() == f"cold start: {folder} has changed since the server for warm starts has loaded it"
    assert why() is None


def test_a_run_goes_on_when_its_server_is_let_go(tmp_path):
    source = """
        import time
        from pathlib import Path
        Path("here").touch()
        while not Path("go").exists():
            time.sleep(0.02)
        print("through")
    """
    with kernel(tmp_path) as it:
        script(tmp_path, source)
        it.run("import threading, ddp_lab as lab; from ddp_lab.launch import warm; runs = []")
        it.run("thread = threading.Thread(target=lambda: runs.append(lab.torchrun('train.py', nproc=1, warm=True)))")
        it.run("thread.start()")
        wait_for((tmp_path / "here").exists, 60, "the run is there")
        server = it.server
        it.run("warm.drop()")
        assert psutil.pid_exists(server)
        (tmp_path / "go").touch()
        assert "True" in it.run("thread.join(); print(runs[0].ok)")
        wait_for(lambda: server not in marked(it.mark), 5, "the server has ended")


@pytest.fixture
def broken(tmp_path, monkeypatch):
    """Fork servers end before they have begun."""
    (tmp_path / "broken").mkdir()
    source = "import os, sys\nif any(word.endswith('launch/server.py') for word in sys.orig_argv): os._exit(3)\n"
    (tmp_path / "broken" / "sitecustomize.py").write_text(source)
    warm.drop()
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'broken'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    yield
    warm.drop()


def test_a_server_that_does_not_come_up_is_told_and_the_run_is_cold(broken):
    assert why() == "cold start: the server for warm starts is not there: it ended with exit code 3"
    error = see(lab.torchrun, "hello", warm=True, show="none").error
    assert type(error) is lab.InputError and "warm=True: the server" in str(error) and "exit code 3" in str(error)


def test_a_server_that_was_killed_is_told_once_and_replaced():
    assert why() is None
    os.kill(warm._server.pid, signal.SIGKILL)  # still dying, perhaps, when the next run asks for it
    assert why() in (
        "cold start: the server for warm starts is not there: it ended with exit code -9",
        "cold start: the server for warm starts has gone",
    )
    assert why() is None


def test_a_server_that_goes_just_before_a_run_is_told_and_warm_true_is_kept(monkeypatch):
    assert why() is None
    gone = warm._server
    monkeypatch.setattr(torchrun, "_server", lambda *_: gone)
    gone._process.kill(), gone._process.wait()
    error = see(lab.torchrun, "hello", nproc=1, warm=True).error
    assert type(error) is lab.InputError
    assert str(error).startswith("warm=True: the server for warm starts has gone. Run it again")
    assert why() == "cold start: the server for warm starts has gone"


def test_an_interrupt_while_the_server_loads_takes_nothing_from_the_next_run():
    assert why() is None
    warm._server._loaded = None  # as if the interrupt had come behind the answer, and before it was noted
    warm._server._channel.settimeout(0.1)
    began = time.monotonic()
    assert warm._server.ready() and time.monotonic() - began < 1


def test_another_system_starts_cold(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(torchrun, "Job", warm_or_cold(asked := []))
    with pytest.raises(StopIteration):
        lab.torchrun("hello", nproc=1)
    assert asked == [None]


# ---- the server


ALONE = """
import json, sys
import psutil
import ddp_lab as lab

def servers():
    return [p for p in psutil.Process().children() if any("launch/server.py" in word for word in p.cmdline())]

after_import = len(servers())
lab.machine()
after_machine = len(servers())
runs = [lab.torchrun("hello", nproc=1, show="none") for _ in range(2)]
(server,) = servers()
print(json.dumps({"counts": [after_import, after_machine], "pid": server.pid, "threads": server.num_threads(),
    "seconds": [run.seconds for run in runs], "cwd": server.cwd(), "private": server.memory_full_info().uss,
    "devices": [f.path for f in server.open_files()] , "sockets": [c.laddr for c in server.net_connections("inet")]}))
"""


def test_the_server_of_a_plain_script_begins_with_machine_has_one_thread_and_ends_with_it(tmp_path):
    path = script(tmp_path, ALONE)  # unguarded: nothing may import it again
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Error" not in done.stderr, done.stderr
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["counts"] == [0, 1] and told["threads"] == 1 and not told["sockets"]
    assert not psutil.pid_exists(told["pid"])
    assert told["private"] < 700 << 20


def test_a_script_with_processes_of_its_own_is_served_too(tmp_path):
    source = """
        import multiprocessing as mp
        import ddp_lab as lab

        def square(x):
            return x * x

        def nested(_):
            return lab.torchrun("hello", nproc=1, show="none").ranks[0].records[0]["total"]

        if __name__ == "__main__":
            assert lab.torchrun("hello", nproc=1, show="none", warm=True).ok
            for how in ("fork", "spawn", "forkserver"):
                with mp.get_context(how).Pool(2) as pool:
                    assert pool.map(square, range(4)) == [0, 1, 4, 9]
                assert lab.torchrun("hello", nproc=1, show="none", warm=True).ok
            with mp.get_context("fork").Pool(2) as pool:  # each with a server of its own
                assert pool.map(nested, range(2)) == [1.0, 1.0]
            assert lab.torchrun("hello", nproc=1, show="none", warm=True).ok
            print("all served")
    """
    mark = "processes"
    env = {**os.environ, MARK: mark}
    done = subprocess.run(
        [sys.executable, script(tmp_path, source)], capture_output=True, text=True, timeout=120, env=env
    )
    assert done.stdout.splitlines()[-1:] == ["all served"], done.stdout + done.stderr
    wait_for(lambda: not marked(mark), 3, "every server has ended")


def test_after_its_idle_time_it_ends_and_the_next_run_starts_another(monkeypatch):
    warm.drop()
    monkeypatch.setattr(warm, "IDLE", 1.0)
    assert why() is None
    first = warm._server
    wait_for(lambda: first.left, 10, "the server has ended by itself")
    assert why() is None
    assert warm._server is not first
    warm.drop()


def test_a_long_run_is_no_idle_time(monkeypatch, tmp_path):
    warm.drop()
    idle = 2.0
    monkeypatch.setattr(warm, "IDLE", idle)
    path = script(tmp_path, f"import time; time.sleep({1.5 * idle})")  # longer, on the server's own clock
    assert see(lab.torchrun, path, nproc=1, warm=True).run.ok
    first = warm._server
    assert why() is None and warm._server is first and not first.left  # it has all of its idle time before it
    warm.drop()


def test_when_the_server_is_killed_its_runs_end_and_the_kernel_goes_on(tmp_path):
    (tmp_path / "script.py").write_text(ASLEEP)
    with kernel(tmp_path) as it:
        it.run("import ddp_lab as lab")
        cell = it.send("lab.torchrun('script.py', timeout=None, stall=None, warm=True)")
        wait_for(lambda: it.counts().get("rank") == 2, 60, "the ranks live")
        wait_for(lambda: stands_in(tmp_path, 0, "nap"), 60, "rank 0 sleeps", every=0.2)
        server = it.server
        emptying = Emptying(it.children)
        emptying.begin()
        os.kill(server, signal.SIGKILL)
        assert not emptying.end()
        name, shown, _ = it.finish(cell)
        assert name == "LaunchError" and "was killed from outside" in shown
        assert "ok" in it.run("print('ok' if lab.torchrun('hello', show='none').ok else 'no')")


@pytest.mark.slow
def test_a_server_that_is_stopped_holds_nobody_up(tmp_path, monkeypatch):
    here = tmp_path / "here"
    path = script(tmp_path, f"open({str(here)!r}, 'w').close()\n{ASLEEP}")
    assert why() is None
    server = warm._server.pid

    def stop():
        wait_for(here.exists, 60, "a rank is there")
        os.kill(server, signal.SIGSTOP)

    stopping = threading.Thread(target=stop)
    stopping.start()
    seen = see(lab.torchrun, path, timeout=2, warm=True)
    stopping.join()
    assert psutil.Process(server).status() == psutil.STATUS_STOPPED
    assert type(seen.error) is lab.HangError and seen.seconds < 8, seen.seconds
    os.kill(server, signal.SIGCONT)
    here.unlink()
    source = f"""
        import psutil, time
        open({str(here)!r}, "w").close()
        while psutil.Process({server}).status() != psutil.STATUS_STOPPED:
            time.sleep(0.01)
        print("ends well")
    """
    stopping = threading.Thread(target=stop)
    stopping.start()
    seen = see(lab.torchrun, script(tmp_path, source), nproc=1, timeout=20, warm=True)
    stopping.join()
    assert seen.error is None and seen.seconds < 8, seen.error
    monkeypatch.setattr(warm, "_ANSWER", 0.5)
    assert why() == "cold start: the server for warm starts does not answer"
    os.kill(server, signal.SIGKILL)
    assert why() is None


SLOW_WAYS = [pytest.param(way, marks=pytest.mark.slow) for way in ("shutdown", "restart", "kill while it is stopped")]


@pytest.mark.parametrize("way", ["kill", *SLOW_WAYS])
def test_an_idle_server_ends_with_its_kernel(tmp_path, way):
    with kernel(tmp_path) as it:
        it.run("import ddp_lab as lab; lab.torchrun('hello', show='none', warm=True)")
        server = it.server
        if way.endswith("stopped"):
            os.kill(server, signal.SIGSTOP)
        assert psutil.pid_exists(server) and not it.children()
        {"shutdown": it.shutdown, "restart": it.restart}.get(way, it.kill)()
        wait_for(lambda: server not in marked(it.mark), 3, "the server has ended")


def test_a_kernel_that_has_forked_takes_its_server_with_it(tmp_path):
    """The child holds the kernel's end of the channel, so that the server sees no end of it."""
    with kernel(tmp_path) as it:
        it.run("import ddp_lab as lab; lab.torchrun('hello', show='none', warm=True)")
        it.run("import os, time\nchild = os.fork()\nif child == 0:\n    time.sleep(60)\n    os._exit(0)")
        child = int(it.run("print(child)"))
        server = it.server
        assert is_server(psutil.Process(server))
        it.kill()
        wait_for(lambda: server not in marked(it.mark), 3, "the server has ended")
        assert child in marked(it.mark)
