"""catalog: labs and faults are found by name, and shown as they stand in their files."""

import difflib
import html
import re
import subprocess
import sys

import pytest

from ddp_lab import catalog
from ddp_lab.errors import InputError


def plain(listing):
    """What the HTML view of a listing reads like: its title, then its rows."""
    text = re.sub(r"</span>(?=<span style=\"display)|</div>", "\n", listing._repr_html_())
    return html.unescape(re.sub(r"<[^>]*>", "", text)).splitlines()


def test_every_name_is_a_file_and_a_module():
    assert {"hello", "train_single", "train_ddp", "faults/killed_by_signal"} <= set(catalog.names())
    for name in catalog.names():
        assert catalog.find(name).is_file()
        assert catalog.module(name) == f"ddp_lab.labs.{name.replace('/', '.')}"


@pytest.mark.parametrize(
    "name, near",
    [
        ("train_dpd", "'train_ddp'"),
        ("killed_by_signl", "'faults/killed_by_signal'"),
        ("train_ddp.py", "'train_ddp'"),
        ("faults/hello", "'hello'"),
        ("../worker", "labs: "),
        ("qqq", f"labs: {catalog.names()[0]}, {catalog.names()[1]}"),
        ("__init__", ""),
        ("", "labs: "),
        (None, "'train_ddp'"),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(name, near):
    with pytest.raises(InputError) as error:
        catalog.find(name)
    assert repr(name) in str(error.value) and near in str(error.value) and "\n" not in str(error.value)


def test_source_shows_the_file_as_it_is():
    listing, text = catalog.source("train_ddp"), catalog.find("train_ddp").read_text()
    assert listing.text == text == repr(listing)
    rows = plain(listing)
    assert rows[0] == "ddp_lab/labs/train_ddp.py"
    assert [row[7:] for row in rows[1:]] == text.splitlines()
    assert [int(row[:4]) for row in rows[1:]] == list(range(1, len(text.splitlines()) + 1))


def test_source_shows_the_lines_asked_for(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('a = """\n<b>\n"""\nlast = "ü & \\n"')
    assert catalog.source(str(path), lines=(2, 3)).text == '<b>\n"""\n'
    assert [row[7:] for row in plain(catalog.source(path, (2, 99)))[1:]] == ["<b>", '"""', 'last = "ü & \\n"']


def test_source_can_leave_the_docstring_out_and_keeps_the_files_line_numbers():
    whole = catalog.source("hello").text
    listing = catalog.source("hello", docstring=False)
    assert listing.text.startswith("import gc\n") and whole.endswith(listing.text)
    assert plain(listing)[1].split()[0] == str(whole.splitlines().index("import gc") + 1)


def test_lines_within_the_docstring_alone_are_refused_where_it_is_left_out(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text('"""What\nhappens.\n"""\n\nx = 1\ny = 2\n')
    assert catalog.source(path, (1, 5), docstring=False).text == "x = 1\n"
    assert catalog.source(path, (6, 6), docstring=False).text == "y = 2\n"
    with pytest.raises(InputError, match="only its docstring"):
        catalog.source(path, (1, 3), docstring=False)


@pytest.mark.parametrize("lines", [3, (0, 2), (3, 2), ("a", "b"), (99, 100), (1, 2, 3)])
def test_source_refuses_lines_that_are_none(tmp_path, lines):
    (tmp_path / "x.py").write_text("a\nb\nc\n")
    with pytest.raises(InputError, match="first and the last"):
        catalog.source(tmp_path / "x.py", lines)


def test_a_file_that_cannot_be_shown_is_refused(tmp_path):
    (tmp_path / "bytes.py").write_bytes(b"\xff\xfe")
    for path in ("nowhere.py", str(tmp_path), tmp_path, tmp_path / "bytes.py"):
        with pytest.raises(InputError):
            catalog.source(path)


def test_diff_shows_each_change_of_the_code_with_three_lines_around_it():
    listing = catalog.diff("train_single", "train_ddp")
    texts = [catalog.find(name).read_text() for name in ("train_single", "train_ddp")]
    before, after = (text.split('"""\n', 1)[1].splitlines() for text in texts)
    docstring = texts[1].count("\n") - len(after)
    unified = list(difflib.unified_diff(before, after, lineterm="", n=3))[2:]
    assert listing.text.splitlines()[2:] == unified
    rows = [row for row in plain(listing)[1:] if "…" not in row]
    assert [row[5] + row[7:] for row in rows] == [line for line in unified if not line.startswith("@@")]
    for row in rows:
        if row[5] != "-":
            assert after[int(row[:4]) - 1 - docstring] == row[7:]


def test_diff_of_equal_files_says_so(tmp_path):
    listing = catalog.diff("hello", catalog.find("hello"))
    assert listing.text == "" and "are the same" in repr(listing) and "are the same" in listing._repr_html_()


def test_long_lines_scroll_and_keep_the_size_of_the_cells():
    page = catalog.diff("train_single", "train_ddp")._repr_html_()
    style = re.search(r'<pre style="([^"]*)"><span style="([^"]*)"', page)
    assert {"white-space:pre", "word-break:normal", "overflow-x:auto"} <= set(style[1].split(";"))
    assert "font-size:var(--jp-code-font-size," in style[1]
    assert style[2] == "display:inline-block;min-width:100%"  # a changed line is coloured as far as one can scroll


def test_colours_follow_the_theme():
    text = catalog.source("hello")._repr_html_()
    assert "var(--jp-mirror-editor-keyword-color,#" in text and "background:#" not in text


def test_the_catalog_imports_no_lab():
    code = (
        "import sys; from ddp_lab import catalog; catalog.source('hello')._repr_html_(); print('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60).stdout == "False\n"
