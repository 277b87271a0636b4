"""worker: what a rank logs, saves and reports arrives whole, as it was, or not at all."""

import contextlib
import json
import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from ddp_lab import worker


@pytest.fixture
def rank_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_LAB_RANK_DIR", str(tmp_path))
    monkeypatch.setattr(worker, "_last", {"time": 0.0, "i": None})
    return tmp_path


@pytest.fixture
def bare(monkeypatch):
    monkeypatch.delenv("DDP_LAB_RANK_DIR", raising=False)
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setattr(worker, "_last", {"time": 0.0, "i": None})


def records(folder, name="records.jsonl"):
    return [json.loads(line) for line in (folder / name).read_bytes().split(b"\n")[:-1]]


PLAIN = [
    (3, 3),
    (True, True),
    (0.1, 0.1),
    ("größer 😀 \u2028 \r\n", "größer 😀 \u2028 \r\n"),
    ("\udce9", "\udce9"),  # half a character, as os.listdir gives for a name that is not UTF-8
    (None, None),
    ((1, [2.5, "a"]), [1, [2.5, "a"]]),
    ({"a": {"b": (1,)}}, {"a": {"b": [1]}}),
    (np.float32(0.5), 0.5),
    (np.int64(3), 3),
    (np.bool_(True), True),
    (np.longdouble(0.25), 0.25),
    (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
    (np.array([{"a": np.int8(1)}, None]), [{"a": 1}, None]),
    (torch.tensor(1.5), 1.5),
    (torch.tensor(1.5, requires_grad=True), 1.5),
    (torch.tensor([1.5, 2.0], dtype=torch.bfloat16), [1.5, 2.0]),
    (torch.tensor([1.5], dtype=torch.half), [1.5]),
    (torch.tensor([True, False]), [True, False]),
    (torch.ones(2, 3).t(), [[1.0, 1.0]] * 3),
    (torch.nn.Parameter(torch.ones(2)), [1.0, 1.0]),
    ([torch.tensor(1), np.float64(2)], [1, 2.0]),
]


@pytest.mark.parametrize("value, stored", PLAIN, ids=[repr(value)[:30] for value, _ in PLAIN])
def test_a_logged_value_comes_back_as_plain_python(rank_dir, value, stored):
    worker.log(step=1, value=value)
    assert records(rank_dir) == [{"step": 1, "value": stored}]


@pytest.mark.parametrize("nan", [float("nan"), np.float32("nan"), torch.tensor(float("nan"))])
def test_nan_is_a_value_like_any_other(rank_dir, nan):
    worker.log(loss=nan, top=float("inf"))
    (record,) = records(rank_dir)
    assert math.isnan(record["loss"]) and record["top"] == math.inf


CIRCLE = []
CIRCLE.append(CIRCLE)
REFUSED = [
    (torch.nn.Linear(1, 1), "Linear", "state_dict"),
    ({1, 2}, "set", "sorted"),
    (b"abc", "bytes", "decode"),
    (1j, "complex", ".real"),
    (torch.tensor([1j]), "complex", ".real"),
    (torch.zeros(20_000), "20,000", "worker.save"),
    (np.zeros(20_000), "20,000", "worker.save"),
    (torch.zeros(2, device="meta"), "Tensor", "cannot be read"),
    (torch.float32, "dtype", "str(...)"),
    (object(), "object", "str(...)"),
    ({(1, 2): 3}, "tuple", "str"),
    (CIRCLE, "Circular", ""),
    ([1, [lambda: 0]], "function", "str(...)"),
]


@pytest.mark.parametrize("value, kind, cure", REFUSED, ids=[kind for _, kind, _ in REFUSED])
def test_what_cannot_be_stored_is_refused_by_name_and_nothing_is_written(rank_dir, value, kind, cure):
    with pytest.raises(TypeError) as error:
        worker.log(step=1, culprit=value)
    message = str(error.value)
    assert "worker.log: culprit" in message and kind in message and cure in message and "\n" not in message
    assert not (rank_dir / "records.jsonl").exists()


def test_a_record_is_on_disk_when_the_rank_is_killed_at_once(rank_dir):
    code = "import os; from ddp_lab import worker; worker.log(step=1); os.kill(os.getpid(), 9)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == -signal.SIGKILL
    assert records(rank_dir) == [{"step": 1}]


def log_many(who):
    for step in range(500):
        worker.log(who=who, step=step, text="x" * (step % 300))


def test_records_of_threads_and_forked_processes_never_mix(rank_dir):
    worker.log(who="parent", step=0)  # so that the children inherit an open descriptor, as loader workers do
    children = [multiprocessing.get_context("fork").Process(target=log_many, args=(f"p{i}",)) for i in (0, 1)]
    for child in children:
        child.start()
    threads = [threading.Thread(target=log_many, args=(f"t{i}",)) for i in (0, 1)]
    for other in threads:
        other.start()
    for other in children + threads:
        other.join(60)
    found = records(rank_dir)
    assert len(found) == 4 * 500 + 1
    for who in ("p0", "p1", "t0", "t1"):
        assert [r["step"] for r in found if r["who"] == who] == list(range(500))


def test_records_arrive_after_the_script_has_changed_its_directory(rank_dir, tmp_path_factory, monkeypatch):
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    worker.log(a=1)
    worker.save("b", 2)
    assert records(rank_dir) == [{"a": 1}] and (rank_dir / "saved" / "b.json").exists()


def test_a_file_that_has_taken_the_descriptor_stays_the_scripts(rank_dir):
    free = os.dup(0)
    os.close(free)
    worker.log(a=1)
    records_file = os.stat(rank_dir / "records.jsonl")
    own = os.open(rank_dir / "own.txt", os.O_WRONLY | os.O_CREAT)
    assert own == free  # ours is not among the numbers that a script opens
    for number in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # that of the listing itself
            if os.path.samestat(os.fstat(number), records_file):
                os.dup2(own, number)
                taken = number
    worker.log(a=2)
    os.close(taken)
    worker.log(a=3)
    assert os.fstat(own).st_size == 0 and records(rank_dir) == [{"a": 1}, {"a": 2}, {"a": 3}]
    os.close(own)


@contextlib.contextmanager
def room_for(size):
    """Make files end after so many bytes, as a full disk does: a last write that is cut, then an error.

    Around as little as can be: the limit holds for pytest's own output too, if that goes to a file.
    """
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_on_a_full_disk_a_record_is_whole_or_absent(rank_dir):
    worker.log(a="before")
    with room_for((rank_dir / "records.jsonl").stat().st_size + 20):
        with pytest.raises(OSError, match="worker.log could not write") as error:
            worker.log(a="x" * 50)
    assert "\n" not in str(error.value)
    worker.log(a="after")
    assert records(rank_dir) == [{"a": "before"}, {"a": "after"}]


def test_on_a_full_disk_a_saved_object_stays_as_it_was(rank_dir):
    worker.save("w", np.zeros(3))
    before = (rank_dir / "saved" / "w.npz").read_bytes()
    with room_for(100), pytest.raises(OSError, match="worker.save could not write"):
        worker.save("w", np.random.default_rng(0).random(1000))
    assert [p.name for p in (rank_dir / "saved").iterdir()] == ["w.npz"]
    assert (rank_dir / "saved" / "w.npz").read_bytes() == before


def test_a_bare_run_prints_what_the_launcher_would_store(bare, capsys):
    worker.log(step=1, loss=torch.tensor(0.5), name="ü")
    worker.save("grid", np.zeros((3, 4), np.float32))
    worker.save("state", torch.nn.Linear(2, 1).state_dict())
    out = capsys.readouterr().out.splitlines()
    assert json.loads(out[0]) == {"step": 1, "loss": 0.5, "name": "ü"}
    assert out[1] == "saved grid: array (3, 4) float32 (kept only under ddp_lab)"
    assert out[2] == "saved state: 2 tensors (kept only under ddp_lab)"


def test_a_bare_run_writes_each_line_by_one_call(bare, monkeypatch):
    calls = []

    class Stream:
        write = staticmethod(calls.append)

        @staticmethod
        def flush(): ...

    monkeypatch.setattr(sys, "stdout", Stream)
    worker.log(text="a\nb")
    assert calls == ['{"text": "a\\nb"}\n']


def test_a_bare_run_refuses_what_the_launcher_would_refuse(bare, capsys):
    with pytest.raises(TypeError):
        worker.log(a=object())
    with pytest.raises(TypeError):
        worker.save("a", object())
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("name", ["", "a/b", "..", ".hidden", "a\\b", "a\0", "x" * 200, "c:d"])
def test_a_name_that_is_no_file_name_is_refused(rank_dir, name):
    with pytest.raises(ValueError, match="worker.save"):
        worker.save(name, 1)
    assert list(rank_dir.iterdir()) == []


def test_save_with_its_arguments_swapped_says_so(rank_dir):
    with pytest.raises(TypeError, match="text first"):
        worker.save(np.zeros(2), "w")


@pytest.mark.parametrize(
    "thing, text",
    [
        (torch.nn.Linear(1, 1), "state_dict"),
        (np.array([object()]), "pickle"),
        (torch.eye(2).to_sparse(), "tensor"),
        ([{1}], "sorted"),
    ],
)
def test_save_never_falls_back_to_a_pickle(rank_dir, thing, text):
    with pytest.raises(TypeError, match=text):
        worker.save("thing", thing)
    assert not (rank_dir / "saved").exists()


def test_progress_is_thinned_but_keeps_the_first_and_the_last(rank_dir):
    for i in range(1, 10_001):
        worker.progress(i, 10_000, loss=torch.tensor(float(i)))
    found = records(rank_dir, "progress.jsonl")
    assert (found[0]["i"], found[-1]["i"]) == (1, 10_000)
    assert found[-1]["n"] == 10_000 and found[-1]["values"] == {"loss": 10_000.0}
    seconds = found[-1]["time"] - found[0]["time"]
    assert len(found) <= 10 * seconds + 3


def test_a_second_loop_begins_a_new_bar(rank_dir):
    for _ in range(2):
        for i in (1, 2, 3):
            worker.progress(i, 3)
    assert [r["i"] for r in records(rank_dir, "progress.jsonl")].count(1) == 2


@pytest.mark.parametrize("rank, lines", [("0", 11), ("1", 0)])
def test_a_bare_run_shows_progress_on_rank_0_about_every_tenth(bare, monkeypatch, capsys, rank, lines):
    monkeypatch.setenv("RANK", rank)
    for i in range(1, 201):
        worker.progress(i, 200, loss=1 / 3)
    captured = capsys.readouterr()
    shown = captured.err.splitlines()
    assert captured.out == "" and len(shown) == lines
    assert not shown or shown[-1] == "200 of 200  loss 0.3333"


def test_progress_of_no_whole_numbers_is_refused(rank_dir):
    with pytest.raises(TypeError, match="0.5 of 3"):
        worker.progress(0.5, 3)


def test_the_worker_alone_imports_no_large_library():
    code = (
        "import sys; from ddp_lab import worker; worker.log(a=1);"
        "worker.save('b', [2]); worker.progress(1, 1);"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'safetensors'} & set(sys.modules)))"
    )
    env = {key: value for key, value in os.environ.items() if key != "DDP_LAB_RANK_DIR"}
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert out.stdout.splitlines()[-1] == "[]", out.stderr
