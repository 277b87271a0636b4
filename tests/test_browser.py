"""What a learner sees: notebooks in a real JupyterLab, in a real browser."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import nbformat
import psutil
import pytest
from launch import kernels
from waiting import wait_for

pytestmark = pytest.mark.browser

ROOT = Path(__file__).resolve().parent.parent
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
]


@pytest.fixture(scope="module")
def lab(tmp_path_factory):
    """A JupyterLab of its own over a copy of the notebooks: its folder, its address, and the mark of its processes."""
    home = tmp_path_factory.mktemp("jupyter")
    shutil.copytree(ROOT / "notebooks", home / "work")
    mark = secrets.token_hex(8)
    token = secrets.token_hex(16)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    env = os.environ | {kernels.MARK: mark, "DDP_LAB_HOME": str(home / "runs")}
    env |= {f"JUPYTER_{name}_DIR": str(home / name.lower()) for name in ("CONFIG", "DATA", "RUNTIME")}
    env.pop("PYTEST_CURRENT_TEST", None)  # a kernel under pytest shows its output in another way
    env.pop("DDP_LAB_LEDGER", None)  # what is counted there is what nbmake runs
    command = [
        *(sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1", f"--port={port}"),
        *("--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={home / 'work'}"),
    ]
    with open(home / "server.log", "wb") as log:
        server = subprocess.Popen(command, env=env, stdout=log, stderr=log)
    try:
        address = f"http://127.0.0.1:{port}"
        wait_for(lambda: _answers(f"{address}/api?token={token}"), 60, "JupyterLab answers")
        yield home / "work", lambda name: f"{address}/lab/tree/{name}?token={token}&reset", mark
    finally:
        children = psutil.Process(server.pid).children(recursive=True)
        server.terminate()
        server.wait(20)
        for child in psutil.wait_procs(children, timeout=10)[1]:
            child.kill()


@pytest.fixture(scope="module")
def browser():
    if CHROMIUM is None:
        pytest.skip("there is no chromium on this machine")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    page = browser.new_page(viewport={"width": 1400, "height": 1000})
    yield page
    page.close()


def _answers(address):
    try:
        with urllib.request.urlopen(address, timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def _open(page, address):
    page.goto(address)
    # The notebook's own indicator says idle before there is a kernel; the status bar tells when one is there.
    page.wait_for_selector('#jp-main-statusbar :text("| Idle")', timeout=60_000)


def _run_all(page):
    page.click('.lm-MenuBar-item:has-text("Run")')
    page.click('.lm-Menu-item[data-command="runmenu:run-all"]')


def _saved_code(folder, name):
    """The code cells of a notebook as JupyterLab has saved it; none while it writes the file, in place."""
    try:
        notebook = nbformat.read(folder / name, as_version=4)
    except nbformat.reader.NotJSONError:
        return []
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def _save(page):
    page.keyboard.press("Escape")
    page.keyboard.press("Control+s")


def _notebook(folder, name, *sources):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, folder / name)


def _of_runs(mark):
    """The processes of runs started by this JupyterLab: agents and all below them, not the server they came from."""
    files = ("server.py", "agent.py", "rank.py")  # what they were started to run, or forked from
    found = kernels.marked(mark).values()
    return [p for p in found if any(kernels.runs_file(p, file) for file in files) and not kernels.is_server(p)]


FIRST, *OTHERS = sorted(path.name for path in (ROOT / "notebooks").glob("*.ipynb"))


@pytest.mark.parametrize("name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_a_notebook_runs_from_top_to_bottom(name, lab, page):
    folder, address, _ = lab
    _open(page, address(name))
    _run_all(page)
    assert not page.get_by_text("notified about official Jupyter news").count()  # no question first

    def finished():
        _save(page)
        cells = _saved_code(folder, name)
        done = all(cell.execution_count for cell in cells) or any(_errors(cell) for cell in cells)
        return done and cells

    cells = wait_for(finished, 240, "every cell has been run", every=2)
    assert not [error for cell in cells for error in _errors(cell)]
    picture = re.compile(r"^(drawn\()?figures\.(?!table\b)", re.MULTILINE)
    drawing = [cell for cell in cells if picture.search(cell.source)]
    assert drawing and all(any("image/png" in o.get("data", {}) for o in cell.outputs) for cell in drawing)

    widths = _widths_of_pictures(page)
    assert len(widths) == len(drawing) and min(widths) > 300

    solution = page.locator(".jp-InputPlaceholder").first
    _scroll_to(page, solution)
    before = page.locator(".jp-InputPlaceholder").count()
    solution.click()
    wait_for(lambda: page.locator(".jp-InputPlaceholder").count() == before - 1, 10, "the solution opens")


def _widths_of_pictures(page):
    """The width of each picture that is seen on the way from the notebook's first cell to its last, in pixels."""
    found = {}
    for _ in _down_the_page(page):
        images = page.locator(".jp-OutputArea-output img")
        found |= dict(images.evaluate_all("images => images.map(image => [image.src, image.naturalWidth])"))
    return list(found.values())


def _errors(cell):
    return [output.evalue for output in cell.get("outputs", []) if output.output_type == "error"]


def _down_the_page(page):
    """Scroll the notebook in steps, from its top to its end: cells far from the window are not in the page."""
    page.keyboard.press("Escape")
    page.keyboard.press("Control+Home")
    area = page.locator(".jp-WindowedPanel-outer").first
    area.evaluate("area => area.scrollTo(0, 0)")
    still = 0
    while still < 5:  # it grows as cells come in: at its end only when it stays there
        page.wait_for_timeout(100)
        yield
        before = area.evaluate("area => area.scrollTop")
        area.evaluate("area => area.scrollBy(0, 400)")
        still = still + 1 if area.evaluate("area => area.scrollTop") == before else 0


def _scroll_to(page, target):
    for _ in _down_the_page(page):
        if target.count() and target.is_visible():
            target.scroll_into_view_if_needed()
            return
    raise AssertionError(f"{target} never came into view")


def test_a_line_is_seen_before_the_run_ends(lab, page, tmp_path):
    folder, address, _ = lab
    go_on = tmp_path / "go_on"
    script = f"""%%torchrun --nproc 1
import pathlib, time
print("the first line of " + "three", flush=True)
while not pathlib.Path({str(go_on)!r}).exists():
    time.sleep(0.05)
print("the last line")"""
    _notebook(folder, "live.ipynb", "import ddp_lab", script)
    _open(page, address("live.ipynb"))
    _run_all(page)
    page.wait_for_selector('.jp-OutputArea-output:has-text("the first line of three")', timeout=60_000)
    assert not page.locator('.jp-OutputArea-output:has-text("the last line")').count()
    go_on.touch()  # only now may the rank end: what was seen came live
    page.wait_for_selector('.jp-OutputArea-output:has-text("the last line")', timeout=30_000)


def test_the_stop_button_frees_a_deadlocked_cell(lab, page):
    folder, address, mark = lab
    script = """%%torchrun --nproc 2 --timeout none --stall none
import torch.distributed as dist
dist.init_process_group()
print("deadlocked " + "now", flush=True)
if dist.get_rank() == 0:
    dist.barrier()
else:
    dist.all_gather_object([None, None], 1)"""
    _notebook(folder, "stuck.ipynb", "import ddp_lab", script, "print('usable' + ' again')")
    _open(page, address("stuck.ipynb"))
    _run_all(page)
    page.wait_for_selector('.jp-OutputArea-output:has-text("deadlocked now")', timeout=60_000)
    assert len(_of_runs(mark)) >= 5  # the agent, two guards, two ranks

    page.click('[data-command="notebook:interrupt-kernel"]')
    wait_for(lambda: not _of_runs(mark), 3, "every process of the run has gone")
    page.wait_for_selector('.jp-OutputArea-output:has-text("Where each rank stood")', timeout=10_000)
    assert page.locator('.jp-OutputArea-output:has-text("barrier")').count()

    page.locator(".jp-CodeCell").last.click()
    page.keyboard.press("Shift+Enter")
    page.wait_for_selector('.jp-OutputArea-output:has-text("usable again")', timeout=10_000)
