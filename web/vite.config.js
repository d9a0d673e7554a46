// Builds src/ into one script and one style that ship in the Python package. Their first line has a hash of everything they are
// built from, so that a test can tell, without Node, when they are stale.
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { defineConfig } from "vite";

const BUNDLED = ["uplot", "d3-hierarchy"];

function sources() {
  const own = ["package.json", "package-lock.json", "tsconfig.json", "vite.config.js"];
  return [...own, ...readdirSync("src").map((name) => `src/${name}`)].sort();
}

function hashOfSources() {
  const hash = createHash("sha256");
  for (const path of sources()) hash.update(`${path}\n`).update(readFileSync(path)).update("\n");
  return hash.digest("hex");
}

function licenses() {
  return BUNDLED.map((name) => `${name}\n\n${readFileSync(`node_modules/${name}/LICENSE`, "utf8").trim()}`).join("\n\n");
}

function stamped() {
  return {
    name: "stamped",
    enforce: "post",
    generateBundle(_, bundle) {
      const stamp = `/* Built from web/ by "make page"; do not edit. sources sha256:${hashOfSources()} */\n`;
      const notice = `/*\nThis file contains:\n\n${licenses()}\n*/\n`;
      for (const file of Object.values(bundle)) {
        if (file.type === "chunk") file.code = stamp + notice + file.code;
        else file.source = stamp + file.source;
      }
    },
  };
}

export default defineConfig({
  build: {
    outDir: "../src/memfit/views/html/built",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: false,
    cssCodeSplit: false,
    rollupOptions: {
      input: "src/main.ts",
      output: { format: "iife", entryFileNames: "page.js", assetFileNames: "page.[ext]" },
    },
  },
  plugins: [stamped()],
});
