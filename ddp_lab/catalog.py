"""The labs and faults by name: where their files are, their source, and how two of them differ."""

import ast
import difflib
import html
import os
from pathlib import Path

from ddp_lab.errors import InputError

LABS = Path(__file__).with_name("labs")


def names():
    """The names of all labs, then of all faults and their cures: "hello", ..., "faults/killed_by_signal", ..."""
    files = [path for path in LABS.rglob("*.py") if not path.name.startswith("_")]
    found = [path.relative_to(LABS).with_suffix("").as_posix() for path in files]
    return sorted(found, key=lambda name: ("/" in name, name))


def find(name):
    """The file of a lab or fault: find("train_ddp"), find("faults/killed_by_signal").

    InputError, with the nearest names, if there is none.
    """
    if not isinstance(name, str):
        raise InputError(f"{name!r} is no name of a lab: give a text such as 'train_ddp'")
    known = names()
    if name not in known:
        ends = {known_name.split("/")[-1]: known_name for known_name in known}  # the folder is easily left out
        near = difflib.get_close_matches(name.split("/")[-1].removesuffix(".py"), ends, n=3)
        hint = f"did you mean {' or '.join(repr(ends[end]) for end in near)}?" if near else f"labs: {', '.join(known)}"
        raise InputError(f"there is no lab {name!r}; {hint}")
    return LABS / f"{name}.py"


def module(name):
    """The name by which Python runs it: module("faults/x") is "ddp_lab.labs.faults.x", for `torchrun -m`."""
    find(name)
    return "ddp_lab.labs." + name.replace("/", ".")


def source(name, lines=None, docstring=True):
    """Show the source of a lab, a fault, or a file whose path ends in .py; `.text` is the plain text.

    lines: the first and the last line to show, counted from 1, as in `lines=(20, 31)`. None shows all.
    docstring: False starts below the docstring, where that would tell what is to be predicted.
    """
    path = _path(name)
    text = _read(path)
    first, last = _range(lines, len(text.splitlines()))
    if not docstring:
        skip, code = _after_docstring(text)
        first = max(first, skip + 1 + next((i for i, line in enumerate(code) if line.strip()), 0))
        if first > last:
            raise InputError(f"there is no code in lines={lines!r} of {_title(path)}, only its docstring")
    rows = [("", str(number), number - 1, 0) for number in range(first, last + 1)]
    shown = "\n".join(text.splitlines()[first - 1 : last]) + "\n"
    return Listing(_title(path), shown, rows, [text])


def diff(old, new):
    """Show what changes from one lab (fault, or file ending in .py) to another, with three lines around each change.

    The docstrings at their tops, which differ by nature, are left out. `.text` is the plain unified diff, "" if
    nothing differs.
    """
    paths = [_path(old), _path(new)]
    texts = [_read(path) for path in paths]
    (skip, before), (start, after) = (_after_docstring(text) for text in texts)
    titles = [_title(path) for path in paths]
    rows = []
    for group in difflib.SequenceMatcher(None, before, after, autojunk=False).get_grouped_opcodes(3):
        if rows:
            rows.append(("…", "", None, None))
        for tag, i, j, k, m in group:
            if tag == "equal":
                rows += [("", str(number + 1), number, 1) for number in range(start + k, start + m)]
            else:
                rows += [("-", "", number, 0) for number in range(skip + i, skip + j)]
                rows += [("+", str(number + 1), number, 1) for number in range(start + k, start + m)]
    text = "\n".join(difflib.unified_diff(before, after, *titles, lineterm=""))
    title = " → ".join(titles) if rows else f"{titles[0]} and {titles[1]} are the same"
    return Listing(title, text, rows, texts)


def _after_docstring(text):
    """(how many lines stand up to the end of a script's docstring, the lines after it)."""
    try:
        first = ast.parse(text).body[0]
    except (SyntaxError, IndexError):
        return 0, text.splitlines()
    is_docstring = isinstance(first, ast.Expr) and isinstance(getattr(first.value, "value", None), str)
    end = first.end_lineno if is_docstring else 0
    return end, text.splitlines()[end:]


class Listing:
    """Source that shows itself coloured in a notebook and plain elsewhere. `.text` is the plain text."""

    def __init__(self, title, text, rows, files):
        self.title, self.text = title, text
        self._rows = rows  # (mark, shown number, index of the line, index of the file)
        self._files = files

    def __repr__(self):
        return self.text or self.title

    def _repr_html_(self):
        lines = [_colored_lines(text) for text in self._files]
        body = "".join(
            _row(mark, number, "" if index is None else lines[file][index]) for mark, number, index, file in self._rows
        )
        # JupyterLab breaks the lines of a <pre> anywhere, and goes on under the numbers: here they scroll. The inner
        # block is as wide as the longest one, so that the colour of a changed line goes on where the scrolling begins.
        return (
            f'<div style="margin:.3em 0"><div style="opacity:.7">{html.escape(self.title)}</div>'
            f'<pre style="margin:0;line-height:1.35;background:none;overflow-x:auto;white-space:pre;'
            f'word-break:normal;font-size:var(--jp-code-font-size,13px)">'
            f'<span style="display:inline-block;min-width:100%">{body}</span></pre></div>'
        )


# Translucent, so that they stay behind the text on light and dark pages; the sign says the same without colour.
BACKGROUND = {"+": "rgba(46,160,67,.20)", "-": "rgba(248,81,73,.20)"}


def _row(mark, number, line):
    gutter = f'<span style="opacity:.5;user-select:none">{number:>4} {mark or " "} </span>'
    background = f";background:{BACKGROUND[mark]}" if mark in BACKGROUND else ""
    return f'<span style="display:block;min-height:1.35em{background}">{gutter}{line}</span>'


def _colored_lines(text):
    """The lines of a Python source as HTML, coloured by kind of word."""
    from pygments.lexers import PythonLexer

    lines = [""]
    for token, value in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        color = _color(token)
        for number, piece in enumerate(value.split("\n")):
            if number:
                lines.append("")
            if piece:
                piece = html.escape(piece)
                lines[-1] += f'<span style="color:{color}">{piece}</span>' if color else piece
    return lines


def _color(token):
    """JupyterLab's own editor colours, which follow its theme; elsewhere colours that read on light and dark."""
    from pygments.token import Comment, Keyword, Name, Number, Operator, String

    colors = [
        (Comment, "comment", "#7A828E"),
        (Keyword, "keyword", "#9A6DD7"),
        (Operator.Word, "keyword", "#9A6DD7"),
        (String, "string", "#CB5B48"),
        (Number, "number", "#2E8B57"),
        (Name.Function, "def", "#3B82C4"),
        (Name.Class, "def", "#3B82C4"),
        (Name.Decorator, "def", "#3B82C4"),
        (Name.Builtin, "builtin", "#2E8B57"),
    ]
    for kind, name, color in colors:
        if token in kind:
            return f"var(--jp-mirror-editor-{name}-color,{color})"
    return None


def _path(name):
    if isinstance(name, os.PathLike) or (isinstance(name, str) and name.endswith(".py")):
        return Path(name)
    return find(name)


def _read(path):
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{path} cannot be shown: {getattr(error, 'strerror', None) or 'it is not UTF-8 text'}"
        ) from None


def _title(path):
    return str(path.relative_to(LABS.parent.parent)) if path.is_relative_to(LABS) else str(path)


def _range(lines, count):
    if lines is None:
        return 1, count
    try:
        first, last = lines
        ok = 1 <= first <= last
    except (TypeError, ValueError):
        ok = False
    if not ok or first > count:
        raise InputError(f"lines={lines!r}: give the first and the last line, such as (1, {count})")
    return first, min(last, count)
