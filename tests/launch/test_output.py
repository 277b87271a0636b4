"""output: what a run prints arrives whole, line by line, in a size that a browser can carry."""

import io
import json
import re
import sys

import pytest

from ddp_lab.launch import output
from ddp_lab.launch.output import HEAD, LONGEST, TAIL, Progress, Screen, Tail


class Stream:
    """A file that a rank writes to, and a Tail that reads it."""

    def __init__(self, path, hidden=lambda: (0, 0)):
        self.file = open(path, "ab", buffering=0)
        self.tail = Tail(lambda: path, hidden)

    def write(self, data):
        self.file.write(data)


@pytest.fixture
def streams(tmp_path):
    made = [Stream(tmp_path / f"{rank}.log") for rank in range(3)]
    yield made
    for stream in made:
        stream.file.close()
        stream.tail.close()


def screen_of(streams, show=None):
    return Screen({i: [s.tail] for i, s in enumerate(streams)}, lambda rank: f"[rank {rank}] ", show)


def finish(screen):
    """What the launcher does when the run has ended."""
    while screen.update():
        pass
    screen.update(last=True)


# ---- Tail: whole lines, as a terminal shows them


def test_a_line_is_given_once_it_is_whole(streams):
    stream = streams[0]
    stream.write(b"one\ntw")
    assert stream.tail.lines() == ["one"] and stream.tail.pending == "tw"
    stream.write(b"o\n")
    assert stream.tail.lines() == ["two"] and stream.tail.pending == ""


def test_a_last_line_without_newline_is_not_lost(streams):
    streams[0].write(b"one\nthe end")
    assert streams[0].tail.lines(last=True) == ["one", "the end"]
    assert streams[0].tail.lines(last=True) == []


def test_a_letter_whose_bytes_come_in_two_pieces_stays_whole(streams):
    data = "größe 😀\n".encode()
    got = []
    for i in range(len(data)):
        streams[0].write(data[i : i + 1])
        got += streams[0].tail.lines()
    assert got == ["größe 😀"]


SEEN = {
    "bytes that are no UTF-8": (b"caf\xe9 \xff\xfe", "caf\ufffd \ufffd\ufffd"),
    "a bar that rewrites itself": (b"10%\r50%\r100%", "100%"),
    "a bar that ends by going back": (b"10%\r100%\r", "100%"),
    "an end of line from Windows": (b"text\r", "text"),
    "colours are closed": (b"\x1b[31mred", "\x1b[31mred\x1b[0m"),
    "cursor movements are dropped": (b"\x1b[2K\x1b[1Aup\x1b[?25l", "up"),
    "a bell and a NUL are dropped": (b"a\x07b\0c", "abc"),
    "a tab stays": (b"a\tb", "a\tb"),
    "separators of other worlds stay": ("a\u2028b\x85c".encode(), "a\u2028b\x85c"),
    "an empty line stays": (b"", ""),
}


@pytest.mark.parametrize("written, seen", SEEN.values(), ids=SEEN)
def test_a_line_is_seen_as_on_a_terminal(streams, written, seen):
    streams[0].write(written + b"\n")
    assert streams[0].tail.lines() == [seen]


def test_no_file_yet_is_no_lines(tmp_path):
    there = []
    tail = Tail(lambda: there[0] if there else None)
    assert tail.lines() == [] and tail.size == 0
    (tmp_path / "log").write_bytes(b"now\n")
    there.append(tmp_path / "log")
    assert tail.lines() == ["now"]
    tail.close()


@pytest.mark.parametrize("piece", [1, 3, 1000])
def test_the_hidden_range_is_left_out_however_it_is_read(tmp_path, piece):
    before, traceback, after = b"before\n", b"Traceback\n  frames\nError\n", b"after\n"
    hidden = len(before), len(before + traceback)
    stream = Stream(tmp_path / "stderr.log", lambda: hidden)
    data, got = before + traceback + after, []
    for i in range(0, len(data), piece):
        stream.write(data[i : i + piece])
        got += stream.tail.lines()
    assert got == ["before", "after"]
    assert stream.tail.size == len(data)  # what is not shown is a sign of life all the same


# ---- Screen: ranks in one place


def test_each_line_has_its_rank_in_front_and_ranks_do_not_mix(streams, capsys):
    screen = screen_of(streams)
    for step in range(3):
        for stream in streams:
            stream.write(b"st")
        screen.update()
        for stream in streams:
            stream.write(f"ep {step}\n".encode())
        screen.update()
    finish(screen)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == sorted(f"[rank {rank}] step {step}" for rank in range(3) for step in range(3))


@pytest.mark.parametrize("show, ranks", [(None, {0, 1, 2}), (set(), set()), ({1}, {1}), ({0, 2}, {0, 2})])
def test_show_chooses_the_ranks_that_are_seen(streams, capsys, show, ranks):
    screen = screen_of(streams, show)
    for stream in streams:
        stream.write(b"hello\n")
    assert screen.update(), "a rank that is not shown gives a sign of life too"
    finish(screen)
    assert {int(n) for n in re.findall(r"\[rank (\d)\]", capsys.readouterr().out)} == ranks


def test_a_hundred_thousand_lines_are_shown_by_head_and_tail(streams, capsys):
    screen = screen_of(streams[:1])
    for first in range(0, 100_000, 10_000):
        streams[0].write(b"".join(b"line %d\n" % n for n in range(first, first + 10_000)))
        screen.update()
    shown_before_the_end = capsys.readouterr().out.splitlines()
    finish(screen)
    rest = capsys.readouterr().out.splitlines()
    assert shown_before_the_end == [f"[rank 0] line {n}" for n in range(HEAD)]
    assert rest[1:] == [f"[rank 0] line {n}" for n in range(100_000 - TAIL, 100_000)]
    assert f"{100_000 - HEAD - TAIL:,} more lines" in rest[0] and "run.ranks" in rest[0]


@pytest.mark.parametrize("count", [HEAD - 1, HEAD, HEAD + 1, HEAD + TAIL, HEAD + TAIL + 1])
@pytest.mark.parametrize("pieces", [1, 7])
def test_around_the_limits_no_line_is_lost_or_shown_twice(streams, capsys, count, pieces):
    screen = screen_of(streams[:1])
    for start in range(pieces):
        streams[0].write(b"".join(b"%d\n" % n for n in range(count * start // pieces, count * (start + 1) // pieces)))
        screen.update()
    finish(screen)
    lines = capsys.readouterr().out.splitlines()
    expected = [f"[rank 0] {n}" for n in range(count)]
    if count > HEAD + TAIL:
        expected[HEAD:-TAIL] = ["… 1 more lines here, whole in run.ranks[r].stdout …"]
    assert lines == expected


def test_one_line_of_two_megabytes_is_cut_and_says_where_it_is_whole(streams, capsys):
    screen = screen_of(streams[:2])
    for _ in range(200):
        streams[1].write(b"x" * 10_000)
        screen.update()
    streams[1].write(b"\nafter\n")
    finish(screen)
    long, after = capsys.readouterr().out.splitlines()
    assert long.startswith("[rank 1] " + "x" * LONGEST + " … ") and len(long) < LONGEST + 100
    assert "2,000,000" in long and "run.ranks[1]" in long
    assert after == "[rank 1] after"


def test_a_rewriting_bar_is_one_line_when_it_is_stored(streams, capsys):
    screen = screen_of(streams[:1])
    for percent in range(0, 101, 10):
        streams[0].write(f"\r{percent}%".encode())
        screen.update()
    streams[0].write(b"\ndone\n")
    finish(screen)
    assert capsys.readouterr().out.splitlines() == ["[rank 0] 100%", "[rank 0] done"]


def test_new_lines_are_printed_in_one_piece(streams, monkeypatch):
    pieces = []

    class Out(io.StringIO):
        def write(self, text):
            pieces.append(text)

    monkeypatch.setattr(sys, "stdout", Out())
    streams[0].write(b"a\nb\nc\n")
    screen_of(streams[:1]).update()
    assert pieces == ["[rank 0] a\n[rank 0] b\n[rank 0] c", "\n"]  # print's own two


# ---- the line that moves, in a notebook and elsewhere


class Display:
    """A notebook's display: what it shows at last, and how often it was updated."""

    def __init__(self):
        self.shown, self.updates = None, 0

    def __call__(self, data, raw, display_id):
        self.shown = data
        return self

    def update(self, data, raw):
        self.shown, self.updates = data, self.updates + 1


@pytest.fixture
def notebook(monkeypatch):
    import IPython.display

    display = Display()
    monkeypatch.setattr(output, "in_notebook", lambda: True)
    monkeypatch.setattr(IPython.display, "display", display)
    monkeypatch.setenv("NO_COLOR", "1")
    return display


@pytest.fixture
def clock(monkeypatch):
    """A clock that the test sets."""
    now = [1000.0]
    monkeypatch.setattr(output.time, "monotonic", lambda: now[0])
    return now


def test_in_a_notebook_a_moving_line_is_one_display(streams, notebook, clock, capsys):
    screen = screen_of(streams[:1])
    for percent in (10, 20, 30):
        streams[0].write(f"\r{percent}%".encode())
        screen.update()
        clock[0] += 1
    assert notebook.shown["text/plain"] == "[rank 0] 30%" and notebook.updates == 2
    assert capsys.readouterr().out == ""


def test_a_display_is_updated_five_times_a_second_at_most(streams, notebook, clock):
    screen = screen_of(streams[:1])
    for percent in range(100):
        streams[0].write(f"\r{percent}%".encode())
        screen.update()
        clock[0] += 0.01
    assert notebook.updates <= 5


def test_a_bar_that_has_become_a_line_is_not_seen_twice(streams, notebook, clock, capsys):
    screen = screen_of(streams[:1])
    streams[0].write(b"\r97%")
    screen.update()
    streams[0].write(b"\r100%\n")
    finish(screen)
    assert capsys.readouterr().out == "[rank 0] 100%\n"
    assert notebook.shown["text/plain"] == ""


def test_the_bar_of_progress_stays_when_the_run_has_ended(streams, notebook, clock):
    screen = screen_of(streams[:1])
    screen.update("▕██  ▏ 5/10")
    screen.update("▕████▏ 10/10")
    screen.update("▕████▏ 10/10", last=True)
    assert notebook.shown["text/plain"] == "▕████▏ 10/10"
    assert "width:100.0%" in notebook.shown["text/html"] and "10/10" in notebook.shown["text/html"]


@pytest.mark.parametrize("done, width", [(0, "0.0%"), (1, "12.5%"), (5, "62.5%"), (8, "100.0%")])
def test_in_a_notebook_the_bar_is_drawn_as_wide_as_the_share(streams, notebook, done, width):
    now = {"i": done, "n": 8, "time": 1.0, "values": {"epoch": "<1>"}}
    streams[0].write(b"\r12% \xe2\x96\x95\xe2\x96\x88\xe2\x96\x8f")  # a bar of the rank's own stays text
    screen_of(streams[:1]).update(output._bar(now, now, 20))
    page = notebook.shown["text/html"]
    assert re.search(r"width:([\d.]+%);height:8px", page)[1] == width
    texts = [text for text in re.split(r"<[^>]*>", page) if text]
    assert texts == ["epoch &lt;1&gt;", f"{done}/8 · [rank 0] 12% ▕█▏"]


def test_a_bar_that_is_gone_leaves_no_room(streams, notebook, clock):
    screen = screen_of(streams[:1])
    streams[0].write(b"\r97%")
    screen.update()
    streams[0].write(b"\r\n")
    finish(screen)
    assert notebook.shown["text/html"] == ""


@pytest.mark.parametrize("seconds", [0, 1])
def test_without_a_notebook_the_last_state_of_the_bar_is_printed_once(streams, clock, capsys, seconds):
    screen = screen_of(streams[:1])
    screen.update("▕██  ▏ 5/10")
    clock[0] += seconds
    screen.update("▕████▏ 10/10")
    clock[0] += seconds
    screen.update("▕████▏ 10/10", last=True)
    assert capsys.readouterr().out == "▕████▏ 10/10\n"


def test_on_a_terminal_the_bar_makes_room_for_lines(streams, clock, monkeypatch):
    out = io.StringIO()
    out.isatty = lambda: True
    monkeypatch.setattr(sys, "stdout", out)
    screen = screen_of(streams[:1])
    screen.update("bar 1")
    clock[0] += 1
    streams[0].write(b"line\n")
    screen.update("bar 2")
    screen.update("bar 2", last=True)
    assert out.getvalue() == "\r\x1b[Kbar 1\r\x1b[K[rank 0] line\n\r\x1b[Kbar 2\n"


def test_what_a_bar_says_is_no_html(notebook, streams):
    screen_of(streams[:1]).update("<b>loss</b>")
    assert "&lt;b&gt;" in notebook.shown["text/html"]


# ---- Progress: from worker.progress() to a bar


def report(path, i, n, at, **values):
    with open(path, "a") as file:
        file.write(json.dumps({"i": i, "n": n, "time": at, "values": values}) + "\n")


def test_a_bar_tells_the_share_the_rate_and_the_time_left(tmp_path):
    path = tmp_path / "progress.jsonl"
    progress = Progress([tmp_path / "none", path])
    assert progress.text() == ""
    report(path, 10, 100, at=50.0)
    report(path, 50, 100, at=51.0, epoch=2, loss=0.123456)
    assert progress.text() == f"epoch 2 loss 0.1235 ▕{'█' * 10}{' ' * 10}▏ 40 steps/s · 1 s left"
    progress.close()


def test_a_new_loop_has_its_own_rate(tmp_path):
    path = tmp_path / "progress.jsonl"
    progress = Progress([path])
    for i, at in ((1, 0.0), (10, 1.0), (1, 100.0), (5, 102.0)):
        report(path, i, 10, at)
    assert progress.text().endswith("▏ 2 steps/s · 2 s left")
    progress.close()


def test_a_finished_bar_is_full_and_has_no_time_left(tmp_path):
    path = tmp_path / "progress.jsonl"
    report(path, 1, 3, at=0.0)
    report(path, 3, 3, at=1.0)
    progress = Progress([path])
    assert progress.text() == f"▕{'█' * 20}▏ 2 steps/s"
    progress.close()


@pytest.mark.parametrize("i, n", [(0, 0), (5, 3), (-1, 3)])
def test_an_odd_count_makes_a_bar_all_the_same(tmp_path, i, n):
    path = tmp_path / "progress.jsonl"
    report(path, i, n, at=0.0)
    progress = Progress([path])
    bar = re.search("▕(.*)▏", progress.text())[1]
    assert len(bar) == 20
    progress.close()


def test_a_line_that_a_full_disk_has_cut_is_passed_over(tmp_path):
    path = tmp_path / "progress.jsonl"
    report(path, 1, 2, at=0.0)
    path.write_text(path.read_text() + '{"i": 2, "n\n')
    progress = Progress([path])
    assert "1/2" in progress.text()
    progress.close()


# ---- colours


def test_ranks_have_the_colours_of_okabe_and_ito_and_come_round_after_the_eighth():
    assert output.rank_color(0) == "#0072B2" and output.rank_color(1) == "#E69F00"
    assert len({output.rank_color(rank) for rank in range(8)}) == 8
    assert output.rank_color(8) == output.rank_color(0)


def linear(color):
    """Red, green and blue of `#rrggbb` in linear light (sRGB)."""
    values = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in values]


def luminance(color):
    return sum(share * value for share, value in zip((0.2126, 0.7152, 0.0722), linear(color), strict=True))


def contrast(one, other):
    """As WCAG 2 defines it: from 1 to 21."""
    dark, light = sorted(map(luminance, (one, other)))
    return (light + 0.05) / (dark + 0.05)


BEHIND = {"light": "#ffffff", "dark": "#111111", "error, light": "#ffdddd", "error, dark": "#511f1b"}


@pytest.mark.parametrize("behind", BEHIND.values(), ids=BEHIND)
@pytest.mark.parametrize("color", [*output.TEXT_COLORS, output.RED])
def test_a_coloured_text_is_readable_on_each_page_of_jupyterlab(color, behind):
    assert contrast(color, behind) >= 3


@pytest.mark.parametrize("color, text", list(zip(output.RANK_COLORS, output.TEXT_COLORS, strict=True)))
def test_a_ranks_text_has_the_hue_of_its_pictures(color, text):
    assert output.text_color(color) == text
    factor = luminance(text) / luminance(color)
    assert linear(text) == pytest.approx([factor * value for value in linear(color)], abs=0.005)


def test_colours_are_left_out_where_they_would_be_noise(monkeypatch, capsys):
    assert output.colored("x", "#0072B2") == "x"  # pytest's capture is no terminal
    monkeypatch.setattr(output, "in_notebook", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert output.colored("x", "#6E7781") == "\x1b[38;2;110;119;129mx\x1b[0m"
    assert output.colored("x", "#0072B2") == "\x1b[1;38;2;0;131;203mx\x1b[0m"  # a rank's: bold, readable
    monkeypatch.setenv("NO_COLOR", "1")
    assert output.colored("x", "#0072B2") == "x"


def test_a_report_shows_ranks_in_their_colours_and_the_failing_line_in_red(monkeypatch):
    monkeypatch.setattr(output, "colored", lambda text, color: f"<{color}>{text}</>")
    report = "rank 1 failed\n  →   14 | raise\n0     x.py:3\nrank 2: its peer\n14 of them"
    blue, orange, green = output.RANK_COLORS[:3]
    assert output.dressed(report) == (
        f"<{orange}>rank 1</> failed\n<{output.RED}>  →   14 | raise</>\n<{blue}>0</>     x.py:3\n"
        f"<{green}>rank 2</>: its peer\n14 of them"
    )


def test_a_stdout_that_has_no_bars_and_dots_gets_question_marks(monkeypatch):
    narrow = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(output.sys, "stdout", narrow)
    output.say("2 ranks · 1 s")
    assert narrow.buffer.getvalue() == b"2 ranks ? 1 s\n"
