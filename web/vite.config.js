// Builds src/ into scripts and styles that ship in the Python package: the report page's (PAGE=page), and that of memfit serve
// (PAGE=serve). Their first line has a hash of everything they are built from, so that a test can tell, without Node, when they are
// stale.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { defineConfig } from "vite";

const PAGES = {
  page: { input: "src/main.ts", outDir: "../src/memfit/views/html/built", bundled: ["uplot", "d3-hierarchy"] },
  serve: { input: "src/serve.ts", outDir: "../src/memfit/serve/built", bundled: [] },
};
const name = process.env.PAGE ?? "page";
const page = PAGES[name];

function sources() {
  const own = ["package.json", "package-lock.json", "tsconfig.json", "vite.config.js"];
  return [...own, ...readdirSync("src").map((file) => `src/${file}`)].sort();
}

function hashOfSources() {
  const hash = createHash("sha256");
  for (const path of sources()) hash.update(`${path}\n`).update(readFileSync(path)).update("\n");
  return hash.digest("hex");
}

function licenses() {
  return page.bundled.map((part) => `${part}\n\n${readFileSync(`node_modules/${part}/LICENSE`, "utf8").trim()}`).join("\n\n");
}

function stamped() {
  return {
    name: "stamped",
    enforce: "post",
    generateBundle(_, bundle) {
      const stamp = `/* Built from web/ by "make page"; do not edit. sources sha256:${hashOfSources()} */\n`;
      const notice = page.bundled.length ? `/*\nThis file contains:\n\n${licenses()}\n*/\n` : "";
      for (const file of Object.values(bundle)) {
        if (file.type === "chunk") file.code = stamp + notice + file.code;
        else file.source = stamp + file.source;
      }
    },
  };
}

export default defineConfig({
  build: {
    outDir: page.outDir,
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      input: page.input,
      output: { format: "iife", entryFileNames: `${name}.js`, assetFileNames: `${name}.[ext]` },
    },
  },
  plugins: [stamped()],
});
