"""Every link of the README and the notebooks leads somewhere, and the notebooks lead through the course in order."""

import re
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("[0-9]*.ipynb"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *NOTEBOOKS]


def prose(page):
    """The Markdown of a page."""
    if page.suffix == ".md":
        return page.read_text()
    cells = nbformat.read(page, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def anchors(page):
    """What follows # in a link to a heading, as JupyterLab and GitHub have it, both in lower case."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w-]", "", heading.replace(" ", "-")).lower() for heading in headings}


def dead(page):
    """The links of a page that lead nowhere; those to other hosts are not followed."""
    found = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        target = page if not path else page.parent / path
        if re.match(r"\w+://", link):
            continue
        if not target.exists() or (anchor and anchor.lower() not in anchors(target)):
            found.append(link)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_link_is_dead(page):
    assert dead(page) == []


def test_a_dead_link_is_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading\n[1](#A-heading) [2](#another) [3](page.md#a-heading) [4](none.md) [5](https://x.y)")
    assert dead(page) == ["#another", "none.md"]


def test_each_notebook_leads_to_the_one_before_and_the_one_after():
    for before, after in zip(NOTEBOOKS, NOTEBOOKS[1:], strict=False):
        assert f"Next: [{title(after)}]({after.name})" in prose(before)
        assert f"Previous: [{title(before)}]({before.name})" in prose(after)


def title(notebook):
    return re.match(r"# (.+)", prose(notebook))[1]


@pytest.mark.parametrize("page", [ROOT / "README.md", NOTEBOOKS[0]], ids=["README", "00"])
def test_the_map_of_the_course_links_to_each_notebook(page):
    folder = "notebooks/" if page.suffix == ".md" else ""
    for notebook in NOTEBOOKS:
        if notebook != page:
            assert f"]({folder}{notebook.name})" in prose(page)
