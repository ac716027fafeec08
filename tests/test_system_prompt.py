"""The system prompt and the descriptions say what holds here. That the example runs is in test_checklist."""

from __future__ import annotations

import re

import pytest

from fumehood.backends.base import Places
from fumehood.config import Settings
from fumehood.tools.facts import LIBRARIES, Facts
from fumehood.tools.prompt import system_prompt
from fumehood.types import AXES, Axis, Receipt

ALL = tuple(LIBRARIES)
SEALED = Receipt("sealed", {name: Axis("sealed", "as in the test") for name in AXES})
FACTS = Facts(Places(), Settings(), ALL, receipt=SEALED)


def without(*axes: str) -> Receipt:
    return SEALED._replace(axes={**SEALED.axes, **{name: Axis("none", "as in the test") for name in axes}})


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
    text = system_prompt(FACTS._replace(places=places, settings=Settings(max_timeout_sec=45)))
    assert "Timeout: 45s (adjustable to 45s max)" in text
    assert "pl.read_csv('/run/box/tmp/data/prescribers.csv')" in text
    assert "Files in /run/box/tmp/ or /run/box/workspace/ only" in text
    assert not re.search(r"(?<!box)/tmp", text)


def test_that_there_is_no_network_is_said_where_it_is_so():
    assert "No network access" not in system_prompt(FACTS._replace(receipt=without("network")))
    assert "No network access" not in system_prompt(FACTS._replace(receipt=None))  # not known
    assert "No network access" in system_prompt(FACTS._replace(settings=Settings(network=True)))  # asked, not had


@pytest.mark.parametrize(
    ("receipt", "datasets", "network", "limits"),
    [
        (SEALED, "Datasets, read-only: /d.", "There is no network access.", "1024 MB of memory, 512 MB of disk; "),
        (without("files"), "Datasets: /d.", "There is no network access.", "1024 MB of memory, 512 MB of disk; "),
        (without("network", "disk"), "Datasets, read-only: /d.", "There is network access.", "1024 MB of memory; "),
        (without("memory"), "Datasets, read-only: /d.", "There is no network access.", "512 MB of disk; "),
        (without("memory", "disk"), "Datasets, read-only: /d.", "There is no network access.", ""),
        (None, "Datasets: /d.", "", ""),
    ],
)
def test_a_description_says_what_the_receipt_says(receipt, datasets, network, limits):
    words = FACTS._replace(receipt=receipt, datasets=("/d",)).words()
    assert (words["datasets"], words["network"]) == (datasets, network)
    assert words["limits"] == f"{limits}10 KB of each output stream are shown."


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
