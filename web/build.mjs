// Writes the bundle: the same bytes from the same lock file, wherever it runs. `--out DIR` writes it elsewhere.
import { copyFileSync, mkdirSync, readFileSync, readdirSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const asked = process.argv.indexOf("--out");
const out = asked > 0 ? process.argv[asked + 1] : join(here, "../src/fumehood/server/page");
const assets = join(out, "assets");
mkdirSync(assets, { recursive: true });

const result = await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.ts" },
  bundle: true,
  minify: true,
  charset: "utf8",
  format: "esm",
  target: ["chrome119", "firefox125", "safari17"],
  legalComments: "none", // the licences are in licenses.txt, whole
  metafile: true,
  outdir: assets,
  logLevel: "warning",
});
copyFileSync(join(here, "src/index.html"), join(out, "index.html"));
for (const name of ["app.css", "icon.svg"]) copyFileSync(join(here, "src", name), join(assets, name));

const packages = new Set();
for (const input of Object.keys(result.metafile.inputs)) {
  const found = /^node_modules\/((?:@[^/]+\/)?[^/]+)\//.exec(input);
  if (found) packages.add(found[1]);
}
const notices = [...packages].sort().map((name) => {
  const root = join(here, "node_modules", name);
  const { version, license } = JSON.parse(readFileSync(join(root, "package.json"), "utf8"));
  const file = readdirSync(root).sort().find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} has no licence text`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(root, file), "utf8").trim()}\n`;
});
writeFileSync(join(assets, "licenses.txt"), `What app.js contains of others, and their licences.\n\n${notices.join(`\n${"-".repeat(72)}\n\n`)}`);
