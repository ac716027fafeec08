"""Sorts customers into groups and draws them. DATA and OUTPUT come from an earlier run of the session."""

import matplotlib.pyplot as plt
import polars as pl
from sklearn.cluster import KMeans

customers = pl.read_csv(DATA)
features = customers.select("orders", "basket").to_numpy()
groups = KMeans(n_clusters=3, random_state=42, n_init=1).fit_predict(features)
customers = customers.with_columns(pl.Series("group", groups))

summary = customers.group_by("group").agg(pl.len().alias("customers"), pl.mean("orders", "basket").round(1))
summary = summary.sort("orders")
summary.write_csv(f"{OUTPUT}/groups.csv")

some = customers.sample(5000, seed=1)
plt.figure(figsize=(8, 5))
plt.scatter(some["orders"], some["basket"], c=some["group"], cmap="viridis", s=4)
plt.xlabel("orders a year")
plt.ylabel("basket")
plt.title(f"{len(customers):,} customers")
plt.savefig(f"{OUTPUT}/groups.png", dpi=120)
plt.close()

summary
