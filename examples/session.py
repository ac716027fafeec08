"""A data analysis in a session: a dataset lent read-only, a plot that comes back, variables that stay.

Run it with: python examples/session.py [DIRECTORY FOR THE FILES THAT COME BACK]
"""

import os
import random
import sys
import tempfile
from pathlib import Path

from fumehood import open_session

INSTALL = (
    "The packages of this analysis are not there. Install them beside fumehood: pip install '.[data]'\n"
    "(or name them: open_session(requirements=['polars', 'scikit-learn', 'matplotlib']))."
)


def write_customers(path, rows=200_000):
    """Three kinds of customers, mixed."""
    chance = random.Random(7)
    kinds = [(4, 90), (12, 35), (26, 70)]
    with path.open("w") as table:
        table.write("orders,basket\n")
        for _ in range(rows):
            orders, basket = chance.choice(kinds)
            table.write(f"{abs(chance.gauss(orders, 2)):.2f},{abs(chance.gauss(basket, 6)):.2f}\n")


def tell(title, result):
    """One call: what it printed, showed and left behind."""
    print(f"\n> {title}  ({result.duration:.2f} s, exit code {result.exit_code}, variables {result.meta['state']})")
    print(result.stdout, end="")
    for shown in result.meta["results"]:
        print(shown["text/plain"])
    if result.stderr:
        print(result.stderr.splitlines()[-1])


def main():
    output = sys.argv[1] if len(sys.argv) > 1 else "output"
    with tempfile.TemporaryDirectory() as directory:
        table = Path(directory, "customers.csv")
        write_customers(table)
        with open_session(datasets={"customers": table}, output_dir=output, session_id="demo") as session:
            level = session.check().level  # makes the sandbox; from here on its paths are known
            print(f"A session, {level}. The program finds the dataset at {session.datasets['customers']}.")

            missing = session.run("import matplotlib.pyplot, polars, sklearn.cluster", timeout=120)
            if missing.exit_code:
                raise SystemExit(f"{missing.stderr.splitlines()[-1]}\n{INSTALL}")

            session.run(f"DATA, OUTPUT = {session.datasets['customers']!r}, {session.places.output!r}")
            analysis = session.run(Path(__file__).with_name("clusters.py").read_text(), timeout=120)
            tell("clusters.py", analysis)
            if analysis.exit_code:
                raise SystemExit(analysis.stderr)
            for path in analysis.meta["copied_files"]:
                print(f"came back: {os.path.relpath(path)} ({os.path.getsize(path):,} bytes)")

            again = "customers['basket'].mean()"
            tell(f"a second call has its variables: {again}", session.run(again))
            tell("one that does not end: while True: pass", session.run("while True: pass", timeout=1))
            tell(f"they are still there: {again}", session.run(again))


if __name__ == "__main__":
    main()
