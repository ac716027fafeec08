/** What a new page offers to try. */

export const FIRST = `# A session remembers: run this, change it, run it again.
import time

for step in range(1, 6):
    print("step", step)
    time.sleep(0.4)

{"steps": step, "sum": sum(range(step + 1))}
`;

export const EXAMPLES: [name: string, code: string][] = [
  [
    "Draw a figure",
    `import matplotlib.pyplot as plt

x = [n / 20 for n in range(200)]
plt.figure(figsize=(7, 3.5))
plt.plot(x, [(n % 2) * n for n in x], label="saw")
plt.plot(x, [n ** 0.5 * 3 for n in x], label="root")
plt.legend()
plt.show()
`,
  ],
  [
    "Show a table",
    `import polars as pl

pl.DataFrame({
    "city": ["Oslo", "Lima", "Pune", "Cork"],
    "people": [717_710, 10_092_000, 3_124_458, 224_004],
    "by the sea": [True, True, False, True],
})
`,
  ],
  [
    "Look around",
    `# What a program sees of the machine. The receipt says why it is so little.
import os, platform, socket

print("I am     ", os.getuid(), "on", platform.node())
print("root     ", *sorted(os.listdir("/")))
print("processes", *[entry for entry in os.listdir("/proc") if entry.isdigit()])
print("network  ", *[name for _, name in socket.if_nameindex()])
`,
  ],
];
