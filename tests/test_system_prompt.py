"""The system prompt says what holds here, and its example runs as printed."""

from __future__ import annotations

import random
import re

import pytest

from fumehood.backends.base import Places
from fumehood.config import Settings
from fumehood.tools.facts import LIBRARIES, Facts
from fumehood.tools.prompt import system_prompt

ALL = tuple(LIBRARIES)
FACTS = Facts(Places(), Settings(), ALL)

# The document's block, to the letter.
AS_WRITTEN = """\
## ADVANCED ANALYSIS (Sandboxed Code Execution)

For analysis beyond SQL (clustering, ML, statistical analysis, visualization):

**TOOLS:**
- `sandbox_write_file`: Create Python scripts in sandbox
- `sandbox_edit_file`: Modify scripts via exact string replacement
- `sandbox_exec`: Execute commands in isolated sandbox

**WORKFLOW:**
1. Write script: `sandbox_write_file`
2. Execute: `sandbox_exec`
3. If errors: Read output, edit script, re-run

**DATA ACCESS:**
- Datasets at: `/tmp/data/{dataset_name}.csv`
- MUST use Polars: `pl.read_csv('/tmp/data/{name}.csv')`
- Save outputs: `/tmp/output/result.csv`
- Save plots: `/tmp/output/plot.png`

**POLARS EXAMPLE:**
```python
import polars as pl
import matplotlib
matplotlib.use('Agg')
import matplotlib.pyplot as plt
from sklearn.cluster import KMeans

# Load
df = pl.read_csv('/tmp/data/prescribers.csv')

# Cluster
X = df.select(['volume', 'count']).to_numpy()
kmeans = KMeans(n_clusters=3, random_state=42).fit(X)
df = df.with_columns(pl.Series('cluster', kmeans.labels_))

# Save
df.write_csv('/tmp/output/clustered.csv')

# Plot
plt.figure(figsize=(10,6))
plt.scatter(X[:,0], X[:,1], c=kmeans.labels_, cmap='viridis')
plt.xlabel('Volume')
plt.ylabel('Count')
plt.title('Prescriber Clusters')
plt.savefig('/tmp/output/plot.png', dpi=150, bbox_inches='tight')
plt.close()

print(f"Created {len(set(kmeans.labels_))} clusters")
```

**CONSTRAINTS:**
- Timeout: 60s (adjustable to 300s max)
- No network access
- NO PANDAS - Use Polars only
- Files in /tmp/ or /workspace/ only
- Output files in /tmp/output/
"""


def test_with_the_defaults_it_is_the_document_s_block():
    assert system_prompt(FACTS) == AS_WRITTEN


def test_numbers_and_paths_are_the_live_ones():
    places = Places("/run/box/workspace", "/run/box/tmp")
    text = system_prompt(FACTS._replace(places=places, settings=Settings(max_timeout_sec=45, network=True)))
    assert "Timeout: 45s (adjustable to 45s max)" in text
    assert "network" not in text
    assert "pl.read_csv('/run/box/tmp/data/prescribers.csv')" in text
    assert "Files in /run/box/tmp/ or /run/box/workspace/ only" in text
    assert not re.search(r"(?<!box)/tmp", text)


def test_what_cannot_be_imported_is_not_spoken_of():
    text = system_prompt(FACTS._replace(libraries=("numpy", "matplotlib")))
    assert "polars" not in text.lower()
    assert "pandas" not in text.lower()
    assert "```" not in text
    assert "plot.png" in text
    assert "<<" not in text
    assert "\n\n\n" not in text


def test_the_example_needs_all_its_libraries():
    text = system_prompt(FACTS._replace(libraries=("polars", "matplotlib")))
    assert "MUST use Polars" in text
    assert "sklearn" not in text


def test_datasets_are_named_where_they_are():
    text = system_prompt(FACTS._replace(datasets=("/tmp/data/sales.csv", "/tmp/data/a$b.parquet")))
    assert "`/tmp/data/{dataset_name}.csv`\n  - `/tmp/data/sales.csv`\n  - `/tmp/data/a$b.parquet`\n- MUST" in text


def test_the_printed_example_runs_as_printed_on_200_000_rows(tmp_path):
    for module in ("polars", "sklearn", "matplotlib"):
        pytest.importorskip(module, reason=f"the example needs {module}")
    from fumehood.tools import Toolbox

    csv = tmp_path / "prescribers.csv"
    rng = random.Random(7)
    rows = [f"{rng.gauss(at, 3):.3f},{rng.gauss(at, 3):.3f}" for at in (10, 50, 90, 90) for _ in range(50_000)]
    csv.write_text("volume,count\n" + "\n".join(rows) + "\n")
    settings = {"output_dir": str(tmp_path / "output"), "store_code": "never"}
    with Toolbox({"prescribers": str(csv)}, "example", type="local", **settings) as box:
        text = box.system_prompt()
        code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
        assert code is not None
        script = f"{box.session.places.tmp}/analysis.py"
        assert box.call("sandbox_write_file", {"file_path": script, "content": code[1]})["success"]
        reply = box.call("sandbox_exec", {"command": ["python", script], "timeout": 240})
    assert reply["exit_code"] == 0, reply["stderr"]
    assert "Created 3 clusters" in reply["stdout"]
    assert sorted(reply["output_files"]) == ["clustered.csv", "plot.png"]
    assert reply["hint"].startswith("Code executed successfully. 2 output files created.")
    came_back = tmp_path / "output" / "session_example"
    assert (came_back / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert (came_back / "clustered.csv").read_text().startswith("volume,count,cluster\n")
