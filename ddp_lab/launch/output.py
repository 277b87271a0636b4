"""What a run prints, on its way to the reader: whole lines with their rank in front, and one bar that moves."""

from __future__ import annotations

import html
import json
import os
import re
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

RANK_COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442", "#999999")
"""A rank's colour through the whole course, as pictures have it: the palette of Okabe and Ito (2008)."""

# A text needs a contrast of 3 to what is behind it: to white, to JupyterLab's dark page (#111), and to its boxes for
# errors, #fdd on the light page and #511f1b on the dark one. Luminances from 0.184 to 0.23 have it on all four.
# So these are the colours of the palette at a luminance of 0.205: linear red, green and blue times one factor.
TEXT_COLORS = ("#0083CB", "#A87300", "#008F67", "#AE668E", "#3D84AC", "#CE5B00", "#867F21", "#7D7D7D")
"""The same colours as text has them, in bold: see text_color()."""

RED = "#DA4A40"

HEAD, TAIL = 500, 200
"""Lines of a run that are shown: the first ones at once, the last ones at the end. The files keep all."""

LONGEST = 2000
"""Characters of a line that are shown."""

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[^\[]|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f]")  # all but colour


def rank_color(rank: int) -> str:
    """The colour of a rank as `#rrggbb`; from the ninth rank on they come round again."""
    return RANK_COLORS[rank % len(RANK_COLORS)]


def text_color(color: str) -> str:
    """A rank's colour as it is readable in text, on light and dark pages; any other colour as it is."""
    return TEXT_COLORS[RANK_COLORS.index(color)] if color in RANK_COLORS else color


def in_notebook() -> bool:
    """Whether the cells of a Jupyter kernel call us: there displays can be updated."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


def colored(text: str, color: str) -> str:
    """`text` in this `#rrggbb` colour, where colours are shown: in a notebook and on a terminal.

    A rank's colour comes bold and as text_color() has it.
    """
    plain = os.environ.get("NO_COLOR") or not (in_notebook() or sys.stdout.isatty())
    if plain:
        return text
    bold = "1;" if color in RANK_COLORS else ""
    red, green, blue = (int(text_color(color)[i : i + 2], 16) for i in (1, 3, 5))
    return f"\x1b[{bold}38;2;{red};{green};{blue}m{text}\x1b[0m"


def say(text: str, end: str = "\n") -> None:
    """Print at once; what stdout's encoding does not have comes as `?`."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    print(text.encode(encoding, errors="replace").decode(encoding), end=end, flush=True)


def dressed(report: str) -> str:
    """A report on a failed run with the ranks in their colours and the failing line in red, where colours are shown."""

    def in_rank_color(found: re.Match) -> str:
        return colored(found[0], rank_color(int(found[1] or found[2])))

    report = re.sub(r"^  → .*$", lambda found: colored(found[0], RED), report, flags=re.MULTILINE)
    return re.sub(r"^rank (\d+)\b|^(\d+)(?=  )", in_rank_color, report, flags=re.MULTILINE)


class Tail:
    """Reads a growing file by whole lines."""

    def __init__(self, find: Callable[[], Path | None], hidden: Callable[[], tuple[int, int]] = lambda: (0, 0)):
        """`find`: the file, None while there is none; `hidden`: a range of bytes that is not to be shown."""
        self._find = find
        self._hidden = hidden
        self._file = None
        self._rest = b""
        self.size = 0
        """Bytes read so far."""

    def lines(self, last: bool = False) -> list[str]:
        """The lines that were completed since the last call; with `last` also one without a final newline."""
        *whole, self._rest = (self._rest + self._new_bytes()).split(b"\n")
        if last and self._rest:
            whole.append(self._rest)
            self._rest = b""
        return [_as_seen(line) for line in whole]

    @property
    def pending(self) -> str:
        """The unfinished last line, as a terminal would show it."""
        return _as_seen(self._rest[-4 * LONGEST :])

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._file = None

    def _new_bytes(self) -> bytes:
        if self._file is None:
            path = self._find()
            if path is None:
                return b""
            try:
                self._file = open(path, "rb")
            except OSError:
                return b""
        start = self.size
        data = self._file.read(1 << 22) or b""
        self.size += len(data)
        # Asked after reading: the range is made known before the bytes are written.
        first, end = (min(max(edge - start, 0), len(data)) for edge in self._hidden())
        return data[:first] + data[end:]


def _as_seen(line: bytes) -> str:
    """A line as a terminal shows it: decoded, what `\\r` overwrote left out, no cursor movements, colours closed."""
    text = line.decode("utf-8", errors="replace").rstrip("\r")
    text = text.rsplit("\r", 1)[-1]
    text = _CONTROL.sub("", text)
    return f"{text}\x1b[0m" if "\x1b[" in text else text


class Screen:
    """Shows a run while it goes on. Everything is written by the caller's thread, when `update` is called."""

    def __init__(self, sources: dict[int, list[Tail]], label: Callable[[int], str], show: set[int] | None):
        """`sources`: the streams of each rank; `label`: what stands before its lines; `show`: ranks, None for all."""
        self._sources = sources
        self._label = label
        self._shown = [rank for rank in sources if show is None or rank in show]
        self._count = 0
        self._kept: deque[str] = deque(maxlen=TAIL)
        self._status = Status()

    def update(self, bar: str = "", last: bool = False) -> bool:
        """Print what is new, in one piece; True if any rank (shown or not) has written something."""
        before = self._size()
        printed: list[str] = []
        for rank, tails in self._sources.items():
            for tail in tails:
                lines = tail.lines(last)
                if rank in self._shown:
                    printed += [self._format(rank, line) for line in lines]
        room = max(0, HEAD - self._count)
        self._count += len(printed)
        self._kept.extend(printed[room:])
        if last and self._kept:
            missing = self._count - HEAD - len(self._kept)
            if missing > 0:
                printed = [*printed[:room], f"… {missing:,} more lines here, whole in run.ranks[r].stdout …"]
            else:
                printed = printed[:room]
            printed += self._kept
        else:
            printed = printed[:room]
        if printed:
            self._status.clear()
            say("\n".join(printed))
        self._status.show(" · ".join(filter(None, [bar, *self._moving()])), last)
        return self._size() > before

    def _size(self) -> int:
        return sum(tail.size for tails in self._sources.values() for tail in tails)

    def close(self) -> None:
        for tails in self._sources.values():
            for tail in tails:
                tail.close()

    def _moving(self) -> list[str]:
        """The unfinished lines that rewrite themselves, such as a tqdm bar."""
        return [
            self._label(rank) + tail.pending[:200]
            for rank in self._shown
            for tail in self._sources[rank]
            if tail.pending
        ][:4]

    def _format(self, rank: int, line: str) -> str:
        if len(line) > LONGEST:
            head = line[:LONGEST] + ("\x1b[0m" if "\x1b" in line[:LONGEST] else "")
            line = f"{head} … ({len(line):,} characters, whole in run.ranks[{rank}].stdout)"
        return self._label(rank) + line


class Status:
    """One line that is updated in place: a display of its own in a notebook, a rewritten line on a terminal."""

    _EVERY = 0.2  # seconds between two updates

    def __init__(self):
        self._text = ""
        self._handle = None
        self._when = 0.0
        self._on_terminal = False

    def show(self, text: str, last: bool = False) -> None:
        """Put `text` in place of what stands there; at most five times a second, but always the last one."""
        if not (in_notebook() or sys.stdout.isatty()):  # nothing can be replaced there
            if last and text:
                say(text)
            return
        now = time.monotonic()
        if last and self._on_terminal and text in ("", self._text):
            say("")
            self._on_terminal = False
        if text == self._text or (not last and now - self._when < self._EVERY):
            return
        self._text, self._when = text, now
        if in_notebook():
            from IPython.display import display

            data = {"text/plain": text, "text/html": _bar_html(text)}
            if self._handle is None:
                self._handle = display(data, raw=True, display_id=True)
            else:
                self._handle.update(data, raw=True)
        else:
            say(f"\r\x1b[K{text}", end="\n" if last and text else "")
            self._on_terminal = not last

    def clear(self) -> None:
        """Make room for lines on a terminal; a display in a notebook stays where it is."""
        if self._on_terminal:
            say("\r\x1b[K", end="")
            self._on_terminal, self._text = False, ""


_DRAWN_BAR = re.compile("▕([█▏▎▍▌▋▊▉ ]+)▏")  # as _bar() draws it
_EIGHTHS = " ▏▎▍▌▋▊▉█"


def _bar_html(text: str) -> str:
    """The same line with its first bar as boxes: blocks of text would stand there as a black slab."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = _DRAWN_BAR.search(plain)
    if found is None:
        return f'<pre style="margin:0;white-space:pre-wrap">{html.escape(plain)}</pre>' if plain else ""
    share = sum(map(_EIGHTHS.index, found[1])) / (8 * len(found[1]))
    before, after = (html.escape(part.strip()) for part in (plain[: found.start()], plain[found.end() :]))
    track = "width:16em;height:8px;border-radius:4px;background:rgba(128,128,128,.25)"
    fill = f"width:{share:.1%};height:8px;border-radius:4px;background:{TEXT_COLORS[0]}"
    return (
        '<div style="display:flex;flex-wrap:wrap;align-items:center;column-gap:.8em;white-space:pre-wrap;'
        "padding-left:var(--jp-code-padding,0);"
        'font-family:var(--jp-code-font-family,monospace);font-size:var(--jp-code-font-size,13px)">'
        f'<div>{before}</div><div style="{track}"><div style="{fill}"></div></div><div>{after}</div></div>'
    )


class Progress:
    """The bar of a run, from the lines that worker.progress() wrote in the first rank that writes any."""

    _CELLS = 20

    def __init__(self, files: list[Path]):
        self._files = files
        self._tail: Tail | None = None
        self._first: dict | None = None
        self._now: dict | None = None

    def text(self) -> str:
        """The bar as text, such as `epoch 2/5 ▕███████▌            ▏ 61 steps/s · 4 s left`; "" without progress."""
        if self._tail is None:
            path = next((p for p in self._files if p.exists()), None)
            if path is None:
                return ""
            self._tail = Tail(lambda: path)
        for line in self._tail.lines():
            try:
                before, self._now = self._now, json.loads(line)
            except ValueError:  # a full disk has cut it
                continue
            # A bar that starts over (a second loop, a new epoch) has its own speed.
            if before is None or self._now["i"] < before["i"] or self._now["n"] != before["n"]:
                self._first = self._now
        return _bar(self._first, self._now, self._CELLS) if self._now else ""

    def close(self) -> None:
        if self._tail:
            self._tail.close()


def _bar(first: dict, now: dict, cells: int) -> str:
    done, total = now["i"], now["n"]
    share = min(1.0, done / total) if total else 0.0
    eighths = round(share * cells * 8)
    bar = ("█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()).ljust(cells)
    values = " ".join(f"{k} {v:.4g}" if isinstance(v, float) else f"{k} {v}" for k, v in now["values"].items())
    steps, seconds = done - first["i"], now["time"] - first["time"]
    speed = steps / seconds if steps > 0 and seconds > 0 else 0.0
    rest = f"{_number(speed)} steps/s" if speed else f"{done}/{total}"
    if speed and done < total:
        rest += f" · {(total - done) / speed:.0f} s left"
    return f"{values} ▕{bar}▏ {rest}".lstrip()


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"
