from __future__ import annotations


def test_variables_are_kept(worker):
    assert worker.run("x = 1").exit_code == 0
    ran = worker.run("print(x + 1)")
    assert (ran.stdout, ran.stderr, ran.displays, ran.error) == ("2\n", "", [], None)


def test_the_last_expression_is_the_last_result_and_is_not_printed(worker):
    ran = worker.run("display('first')\n6 * 7")
    assert [shown["text/plain"] for shown in ran.displays] == ["'first'", "42"]
    assert ran.stdout == ""
