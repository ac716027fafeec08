from __future__ import annotations

import base64
import importlib.util

import pytest

pytestmark = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="needs matplotlib")

PLOT = "import matplotlib.pyplot as plt\n"


def images(ran):
    assert (ran.stderr, ran.error) == ("", None)
    return [base64.b64decode(shown["image/png"])[:4] for shown in ran.displays if "image/png" in shown]


def test_show_sends_every_open_figure_in_order_and_closes_it(plotter):
    ran = plotter.run(
        PLOT + "for n in (1, 2):\n  plt.figure(figsize=(n, n)); plt.plot([1, 2])\nplt.show()\nplt.get_fignums()"
    )
    assert images(ran) == [b"\x89PNG"] * 2
    texts = [shown["text/plain"] for shown in ran.displays]
    assert texts == ["<Figure size 100x100 with 1 Axes>", "<Figure size 200x200 with 1 Axes>", "[]"]
    assert plotter.run("1").displays == [{"text/plain": "1"}]


def test_what_is_open_at_the_end_is_sent_before_the_value(plotter):
    ran = plotter.run(PLOT + "plt.plot([1, 2])\n'value'")
    assert ["image/png" in shown for shown in ran.displays] == [True, False]
    assert ran.value == "'value'"
    assert plotter.run("plt.get_fignums()").value == "[]"


def test_also_when_the_program_failed(plotter):
    ran = plotter.run(PLOT + "plt.plot([1, 2])\n1 / 0")
    assert ran.error == "ZeroDivisionError"
    assert "image/png" in ran.displays[0]


@pytest.mark.parametrize("choice", ["import matplotlib\nmatplotlib.use('Agg')\n", "import matplotlib.figure\n"])
def test_whatever_backend_was_chosen(worker, choice):
    assert len(images(worker.run(choice + PLOT + "plt.plot([1, 2])\nNone"))) == 1


def test_saved_and_closed_figures_are_not_sent(plotter, tmp_path):
    saved = str(tmp_path / "a.png")
    ran = plotter.run(PLOT + f"fig, ax = plt.subplots()\nax.plot([1, 2])\nfig.savefig({saved!r})\nplt.close(fig)")
    assert images(ran) == []


@pytest.mark.parametrize(
    "last", ["fig", "plt.show()\nfig", "display(fig)", "fig.show()", "display(fig)\nfig", "fig.show()\nfig"]
)
def test_a_figure_comes_out_once(plotter, last):
    ran = plotter.run(PLOT + f"fig, ax = plt.subplots()\nax.plot([1, 2]);\n{last}")
    assert len(images(ran)) == 1
    if last.endswith("\nfig"):
        assert ran.displays[-1] == {"text/plain": "<Figure size 640x480 with 1 Axes>"}
    assert images(plotter.run("None")) == []


def test_a_figure_of_an_earlier_run_can_be_shown_again(plotter):
    plotter.run(PLOT + "fig, ax = plt.subplots()\nax.plot([1, 2])\nplt.show()")
    assert len(images(plotter.run("fig"))) == 1
    assert len(images(plotter.run("display(fig); display(fig)"))) == 2


def test_an_empty_figure_is_no_image(plotter):
    ran = plotter.run(PLOT + "plt.figure()\nNone")
    assert ran.displays == [{"text/plain": "<Figure size 640x480 with 0 Axes>"}]


def test_a_figure_that_cannot_be_drawn_is_an_error_and_the_others_come(plotter):
    ran = plotter.run(PLOT + "plt.figure(); plt.title('$\\\\frac{$')\nplt.figure(); plt.plot([1, 2])\nNone")
    assert ran.exit_code == 1
    assert "ValueError" in ran.stderr
    assert sum("image/png" in shown for shown in ran.displays) == 1
    assert plotter.run("plt.get_fignums()").value == "[]"


def test_child_processes_do_not_inherit_the_choice(worker):
    code = "import os, subprocess, sys, matplotlib\n"
    code += "child = 'import matplotlib; print(matplotlib.get_backend())'\n"
    code += "('MPLBACKEND' in os.environ, matplotlib.rcParams['backend'],"
    code += " subprocess.run([sys.executable, '-c', child], capture_output=True, text=True).stdout.strip().lower())"
    assert worker.run(code).value == "(False, 'module://fumehood_figures', 'agg')"


def test_matplotlib_that_was_loaded_before_is_told_too(start, monkeypatch):
    where = start.__globals__  # this directory's conftest, which is not the only module of that name
    monkeypatch.setitem(where, "START", "import matplotlib.pyplot\n" + where["START"])
    assert len(images(start().run(PLOT + "plt.plot([1, 2])\nplt.show()"))) == 1
