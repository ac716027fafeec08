"""Reads sales.csv and draws revenue per month as an SVG on standard output."""

import csv
import sys
from collections import defaultdict
from itertools import pairwise
from statistics import mean

totals = defaultdict(float)
with open("sales.csv", newline="") as table:
    for row in csv.DictReader(table):
        totals[row["month"]] += float(row["revenue"])

months = sorted(totals)
growth = mean(totals[b] / totals[a] - 1 for a, b in pairwise(months))
print(f"{len(months)} months, {sum(totals.values()):,.0f} in all, {growth:+.1%} a month on average", file=sys.stderr)
for month in months:
    print(f"  {month}  {'█' * round(totals[month] / 100)} {totals[month]:,.0f}", file=sys.stderr)

width, height, gap = 480, 240, 10
bar = (width - gap) / len(months) - gap
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 30}" font-family="sans-serif">')
for place, month in enumerate(months):
    x, tall = gap + place * (bar + gap), height * totals[month] / max(totals.values()) * 0.9
    print(f'<rect x="{x:.1f}" y="{height - tall:.1f}" width="{bar:.1f}" height="{tall:.1f}" fill="#4c78a8"/>')
    print(f'<text x="{x + bar / 2:.1f}" y="{height + 18}" font-size="11" text-anchor="middle">{month}</text>')
print("</svg>")
