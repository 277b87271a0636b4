"""stacks: from faulthandler's dump of a rank to one line of a table."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import torch
from waiting import wait_for

from ddp_lab.launch import job, processes, stacks

TORCH = str(Path(torch.__file__).parent)
STDLIB = sysconfig.get_path("stdlib")

HELPER = f"""Thread 0x00007f00000000aa (most recent call first):
  File "{STDLIB}/threading.py", line 324 in wait
  File "{STDLIB}/threading.py", line 1002 in _bootstrap
"""


MAIN = 0x7F0000000001  # the main thread's identity, as threading has it


def dump(*frames, ident=f"0x{MAIN:016x}", title="Current thread"):
    lines = "".join(f'  File "{file}", line {line} in {function}\n' for file, line, function in frames)
    return f"{title} {ident} (most recent call first):\n{lines}"


ALL_REDUCE = [
    (f"{TORCH}/distributed/distributed_c10d.py", 3000, "all_reduce"),
    (f"{TORCH}/distributed/c10d_logger.py", 83, "wrapper"),
    ("/home/me/train.py", 14, "evaluate"),
    ("/home/me/train.py", 30, "<module>"),
    (stacks.__file__.replace("stacks.py", "rank.py"), 60, "run"),
]
BACKWARD = [
    (f"{TORCH}/autograd/graph.py", 869, "_engine_run_backward"),
    (f"{TORCH}/autograd/__init__.py", 354, "backward"),
    (f"{TORCH}/_tensor.py", 630, "backward"),
    ("/home/me/train.py", 18, "main"),
]
UNFINISHED = {"name": "all_reduce", "backend": "gloo", "number": 7, "group": "0"}


def place(frames, unfinished=None):
    return stacks.place(stacks.frames(dump(*frames), MAIN), unfinished)


def test_the_main_thread_is_found_among_others_and_the_last_dump_counts():
    old, new = dump(("/me/a.py", 1, "f"), title="Thread"), dump(("/me/a.py", 2, "g"), title="Thread")
    text = old + "\n" + HELPER + "\n" + new + "\n" + HELPER
    assert stacks.frames(text, MAIN) == [{"file": "/me/a.py", "line": 2, "function": "g"}]


def test_paths_with_spaces_and_quotes_are_read_whole():
    assert stacks.frames(dump(('/my "own" home/a b.py', 3, "f")), MAIN)[0]["file"] == '/my "own" home/a b.py'


RANK = stacks.__file__.replace("stacks.py", "rank.py")
BELOW = [
    (RANK, 60, "run"),
    (f"{TORCH}/distributed/run.py", 1138, "main"),
    (stacks.__file__.replace("stacks.py", "server.py"), 99, "main"),
]
ANSWERS = [(RANK, 94, "_answer"), (f"{STDLIB}/threading.py", 1002, "_bootstrap")]


def test_a_dump_is_shown_without_the_frames_and_the_thread_that_are_ours():
    own = [("/me/a.py", 1, "f"), ("/me/a.py", 9, "<module>")]
    text = dump(*ANSWERS, ident="0xaa") + "\n" + dump(*own, *BELOW, title="Thread")
    assert stacks.of_script(text) == dump(*own, title="Thread")
    assert stacks.of_script(text + text) == dump(*own, title="Thread") + "\n" + dump(*own, title="Thread")
    assert stacks.of_script(text + "\n" + HELPER) == dump(*own, title="Thread") + "\n" + HELPER


def test_what_led_to_the_script_is_not_what_it_waits_in():
    ends = [(f"{STDLIB}/threading.py", 1583, "_shutdown"), (RANK, 133, "leave"), *BELOW]
    assert place(ends)["collective"] is None and "its end" in place(ends)["function"]
    assert place(BELOW)["collective"] is None


@pytest.mark.parametrize("text", ["", "nothing of a stack", "Fatal Python error: Aborted\n\n"])
def test_a_dump_that_is_none_gives_no_frames_and_an_unknown_place(text):
    assert stacks.frames(text, MAIN) == []
    spot = stacks.place([], None)
    assert spot["file"] is spot["line"] is spot["collective"] is None and not spot["stuck"]


def test_a_rank_stands_at_the_learners_line_and_waits_in_what_it_called_there():
    spot = place(ALL_REDUCE, UNFINISHED)
    assert (spot["file"], spot["line"], spot["function"]) == ("train.py", 14, "evaluate")
    assert (spot["collective"], spot["number"]) == ("all_reduce", 7)
    assert spot["stuck"]


def test_without_the_flight_recorder_the_stack_is_enough():
    spot = place(ALL_REDUCE)
    assert (spot["collective"], spot["number"], spot["stuck"]) == ("all_reduce", None, True)


def test_in_ddps_backward_the_recorder_tells_the_collective():
    spot = place(BACKWARD, UNFINISHED)
    assert (spot["line"], spot["collective"]) == (18, "backward (bucket all_reduce)")


def test_a_backward_without_an_unfinished_collective_computes():
    spot = place(BACKWARD)
    assert spot["collective"] is None and not spot["stuck"]


def test_building_ddp_and_the_buffers_of_its_forward_wait_for_others_too():
    module = f"{TORCH}/nn/parallel/distributed.py"
    inner = [(f"{TORCH}/distributed/utils.py", 280, "_verify_param_shape_across_processes")]
    learner = [("/home/me/train.py", 9, "main")]
    assert place([*inner, (module, 842, "__init__"), *learner])["collective"] == "DDP(...)"
    assert "forward" in place([*inner, (module, 1600, "_pre_forward"), *learner])["collective"]


def test_waiting_for_the_group_to_form_is_waiting():
    inner = [
        (f"{TORCH}/distributed/rendezvous.py", 200, "_env_rendezvous_handler"),
        (f"{TORCH}/distributed/distributed_c10d.py", 1700, "init_process_group"),
        (f"{TORCH}/distributed/c10d_logger.py", 100, "wrapper"),
    ]
    assert place([*inner, ("/home/me/train.py", 5, "main")])["collective"] == "init_process_group"


def test_a_rank_that_computes_while_gloo_works_in_the_background_is_not_surely_stuck():
    computing = [("/home/me/train.py", 20, "heavy")]
    assert not place(computing, UNFINISHED)["stuck"]
    assert place(computing, UNFINISHED | {"backend": "nccl"})["stuck"]


@pytest.mark.parametrize(
    "file, library",
    [
        (f"{TORCH}/nn/modules/linear.py", True),
        (f"{STDLIB}/json/__init__.py", True),
        ("<frozen importlib._bootstrap>", True),
        (stacks.__file__, True),
        (str(Path(stacks.__file__).parents[1] / "worker.py"), True),
        (str(Path(stacks.__file__).parents[1] / "labs" / "hello.py"), False),
        ("/home/me/train.py", False),
        ("/home/me/.venv/lib/python3.12/site-packages/thing/a.py", True),
    ],
)
def test_only_the_learners_own_files_and_the_labs_are_no_library(file, library):
    assert stacks.is_library(file) is library


def test_a_dump_without_the_main_thread_places_nobody():
    dump = 'Current thread 0x00000001 (most recent call first):\n  File "/lib/json.py", line 258 in encode\n'
    assert stacks.frames(dump, 1)[0]["line"] == 258
    assert stacks.frames(dump, 2) == []


IN_PIECES = """
import signal, sys, time
from pathlib import Path

def dump(*_):
    with open("stacks.txt", "a") as file:
        for piece in sys.argv[1:]:
            file.write(piece)
            file.flush()
            time.sleep(0.1)

signal.signal(signal.SIGUSR1, dump)
Path("ready").touch()
while True:
    signal.pause()
"""


@pytest.mark.parametrize("earlier", ["", dump(("/me/a.py", 1, "<module>"))], ids=["no dump before", "a dump before"])
def test_a_dump_that_is_written_piece_by_piece_is_waited_for(tmp_path, monkeypatch, earlier):
    monkeypatch.setattr(job, "_ANSWER", 10)  # seconds: it is the end of the dump that ends the wait
    place = tmp_path / "rank0"
    place.mkdir()
    (place / "stacks.txt").write_text(earlier)
    header, *frames = dump(("/me/b.py", 2, "g"), ("/me/b.py", 3, "<module>")).splitlines(keepends=True)
    rank = subprocess.Popen([sys.executable, "-c", IN_PIECES, header, *frames], cwd=place)
    try:
        wait_for((place / "ready").exists, 30, "its handler is there")
        (place / "rank.json").write_text(json.dumps({"rank": processes.identity(rank.pid)}))
        job.Job(tmp_path, {"kind": "torchrun"}, {}, 1)._make_dump(0)
        assert (place / "stacks.txt").read_text() == earlier + header + "".join(frames)
    finally:
        rank.kill(), rank.wait()


def test_a_dump_is_whole_with_the_first_frame_of_the_program_or_dots():
    whole = dump(("/me/a.py", 2, "g"), ("/me/a.py", 3, "<module>"))
    assert stacks.is_whole(HELPER + "\n" + whole) and stacks.is_whole(dump(("/me/a.py", 2, "g")) + "  ...\n")
    for part in ("", whole[:-1], HELPER, dump(), dump(("/me/a.py", 2, "g"))):
        assert not stacks.is_whole(part)
