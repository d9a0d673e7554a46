"""Other people's training scripts, as they are, under ``memfit run``; and, on a machine with a GPU, for real.

    python benchmarks/wild/wild.py --work FOLDER              # predict all: installs packages, gets sources, makes data
    python benchmarks/wild/wild.py --work FOLDER trl_sft mae  # some of them
    python benchmarks/wild/wild.py --work FOLDER --measure    # run them on this GPU, for as many steps as predicted
    python benchmarks/wild/wild.py --table                    # the table again, from the results

Sources come from GitHub at pinned commits; ``--mirrors`` names a folder of git directories (``owner+name/repo``) to take them from.
``--here`` uses the packages of this Python in place of a new environment. Writes ``results/wild.json`` and ``results/wild.md``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from scripts import PACKAGES, REPOSITORIES, SCRIPTS, Script

BENCHMARKS = Path(__file__).parents[1]
ROOT = BENCHMARKS.parent

RESULT = BENCHMARKS / "results" / "wild.json"
PREDICTED, MEASURED = "predicted", "measured"
SECONDS = 600
MiB = 2**20
KEPT = ("peak_allocated", "peak_reserved", "smallest_fit", "fits", "num_steps", "problem", "assumptions")
CODE = (".py", ".toml", ".yaml", ".yml", ".json", ".jinja")


def _is_used(path: str, folders: set[str]) -> bool:
    """Is it code or settings, in one of the folders? Data are ours, and large."""
    return path.endswith(CODE) and any(path.startswith(f"{folder}/" if folder else "") for folder in folders)


class Workshop:
    """A folder with an environment, sources and data; what is there already is left as it is."""

    def __init__(self, root: Path, mirrors: Path | None, here: bool) -> None:
        self.root, self._mirrors = root.absolute(), mirrors
        self.python = sys.executable if here else str(self.root / "venv" / "bin" / "python")
        self._here = here
        (self.root / "runs").mkdir(parents=True, exist_ok=True)

    def prepare(self) -> None:
        if not self._here and not Path(self.python).exists():
            subprocess.run([sys.executable, "-m", "venv", str(self.root / "venv")], check=True)
            torch = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line.startswith("torch==")]
            subprocess.run([self.python, "-m", "pip", "install", "-q", *torch], check=True)
            subprocess.run([self.python, "-m", "pip", "install", "-q", "-e", str(ROOT), *PACKAGES, *torch], check=True)
        subprocess.run([self.python, str(BENCHMARKS / "wild" / "data.py"), str(self.root / "data")], check=True)

    def sources(self, name: str) -> Path:
        folder = self.root / "sources" / name
        if folder.exists():
            return folder
        repository, commit = REPOSITORIES[name]
        bare = self._mirrors / repository.replace("/", "+") / "repo" if self._mirrors else self.root / "git" / name
        if not bare.exists():
            subprocess.run(["git", "init", "-q", "--bare", str(bare)], check=True)
            url = f"https://github.com/{repository}"
            subprocess.run(["git", "-C", str(bare), "fetch", "-q", "--depth", "1", url, commit], check=True)
        folder.mkdir(parents=True)
        used = {script.folder for script in SCRIPTS if script.repository == name}
        code = subprocess.run(
            ["git", "-C", str(bare), "ls-tree", "-r", "--name-only", commit], check=True, capture_output=True, text=True
        )
        kept = [line for line in code.stdout.splitlines() if _is_used(line, used)]
        packed = subprocess.run(["git", "-C", str(bare), "archive", commit, *kept], check=True, stdout=subprocess.PIPE)
        subprocess.run(["tar", "x", "-C", str(folder)], input=packed.stdout, check=True)
        return folder

    def folder(self, script: Script) -> Path:
        """Where the script is started: a copy of its sources, with the data where scripts that take no path look for it."""
        folder = self.root / "runs" / script.name
        shutil.rmtree(folder, ignore_errors=True)
        if script.repository:
            shutil.copytree(self.sources(script.repository), folder, symlinks=True)
        inside = folder / script.folder
        inside.mkdir(parents=True, exist_ok=True)
        data = self.root / "data"
        with contextlib.suppress(FileExistsError):
            (inside / "data").mkdir()
        for name, made in (
            ("tokens", "tokens"),
            ("MNIST", "digits/MNIST"),
            ("input.txt", "texts/plain.txt"),
            ("wikitext-2", "texts/words"),
            ("wikitext-2.txt", "texts/plain.txt"),
        ):
            for place in (inside / "data", inside.parent / "data"):
                if place.is_dir() and not (place / name).exists():
                    (place / name).symlink_to(data / made)
        for found in (*(data / "metrics").iterdir(), *(data / "hub").iterdir()):
            if not (inside / found.name).exists():
                (inside / found.name).symlink_to(found)
        if not (inside.parent / "data").exists() and script.repository == "examples":
            (inside.parent / "data").symlink_to(data / "digits")
        if script.repository == "lightning":
            for place in (inside.parent, inside.parent.parent):
                (place / "Datasets").symlink_to(data / "digits")
        return inside

    def words(self, script: Script) -> list[str]:
        data = self.root / "data"
        out = self.root / "runs" / f"{script.name}.out"
        places = {"data": data, "models": data / "models", "out": out}
        return script.command.format(**places).split()

    def environment(self, script: Script) -> dict[str, str]:
        offline = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "WANDB_MODE": "disabled"}
        offline["NLTK_DATA"] = str(self.root / "data" / "metrics" / "nltk")
        own = dict(pair.split("=", 1) for pair in script.environment.split())
        path = f"{Path(self.python).parent}{os.pathsep}{os.environ['PATH']}"
        if script.packages:
            own["PYTHONPATH"] = str(self._extra(script.packages))
        return {**os.environ, **offline, "PATH": path, "HF_HOME": str(self.root / "hf"), **own}

    def _extra(self, packages: str) -> Path:
        """Packages that one script needs in another version than the rest."""
        folder = self.root / "extra" / packages.replace(" ", "+")
        if not folder.exists():
            subprocess.run(
                [self.python, "-m", "pip", "install", "-q", "--no-deps", "--target", str(folder), *packages.split()], check=True
            )
        return folder


def predict(workshop: Workshop, script: Script) -> dict[str, object]:
    out = workshop.root / "runs" / f"{script.name}.json"
    folder = workshop.folder(script)
    out.unlink(missing_ok=True)
    command = [workshop.python, "-m", "memfit", "run", "--gpu", "H200", "--json", *workshop.words(script)]
    start = time.perf_counter()
    log = workshop.root / "runs" / f"{script.name}.log"
    with log.open("w") as errors, out.open("w") as answer:
        try:
            code = subprocess.run(
                command,
                cwd=folder,
                env=workshop.environment(script),
                stdout=answer,
                stderr=errors,
                stdin=subprocess.DEVNULL,
                timeout=SECONDS,
            ).returncode
        except subprocess.TimeoutExpired:
            code = 124
    seconds = time.perf_counter() - start
    if code != 0:
        lines = [line for line in log.read_text().splitlines() if line.strip()]
        said = f"no answer in {SECONDS} s" if code == 124 else " ".join(lines[-3:])[-400:]
        return {"code": code, "seconds": seconds, "said": said}
    found = json.loads(out.read_text())
    return {"code": 0, "seconds": seconds, **{name: found[name] for name in KEPT}}


def measure(workshop: Workshop, script: Script, steps: int) -> dict[str, object]:
    out = workshop.root / "runs" / f"{script.name}.measured.json"
    out.unlink(missing_ok=True)
    command = [workshop.python, str(BENCHMARKS / "wild" / "on_gpu.py"), str(steps), str(out), *workshop.words(script)]
    log = workshop.root / "runs" / f"{script.name}.measured.log"
    with log.open("w") as said:
        code = subprocess.run(
            command, cwd=workshop.folder(script), env=workshop.environment(script), stdout=said, stderr=said, timeout=SECONDS
        ).returncode
    if not out.exists():
        return {"code": code, "said": " ".join(log.read_text().splitlines()[-3:])[-400:]}
    return json.loads(out.read_text())


def table(results: dict[str, dict[str, dict]]) -> str:
    lines = [
        "| script | predicted: allocated, reserved MiB | measured | error | seconds | said |",
        "|---|---|---|---|---|---|",
    ]
    for script in SCRIPTS:
        found = results.get(script.name, {})
        predicted, measured = found.get(PREDICTED), found.get(MEASURED)
        if predicted is None:
            continue
        ours = theirs = error = ""
        if predicted["code"] == 0:
            ours = f"{predicted['peak_allocated'] / MiB:,.1f}, {predicted['peak_reserved'] / MiB:,.0f}"
        if measured and "peak_allocated" in measured:
            theirs = f"{measured['peak_allocated'] / MiB:,.1f}, {measured['peak_reserved'] / MiB:,.0f}"
            if ours:
                error = ", ".join(
                    f"{100 * (predicted[what] / measured[what] - 1):+.2f} %" for what in ("peak_allocated", "peak_reserved")
                )
        said = str(predicted.get("said") or predicted.get("problem") or "").replace("|", "/").replace("\n", " ")
        lines.append(f"| {script.name} | {ours} | {theirs} | {error} | {predicted['seconds']:.0f} | {said[:240]} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="all if none")
    parser.add_argument("--work", type=Path, help="a folder for environment, sources and data")
    parser.add_argument("--mirrors", type=Path)
    parser.add_argument("--here", action="store_true", help="with the packages of this Python")
    parser.add_argument("--measure", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--result", type=Path, default=RESULT)
    args = parser.parse_args()
    results = json.loads(args.result.read_text()) if args.result.exists() else {}
    if not args.table:
        workshop = Workshop(args.work, args.mirrors, args.here)
        workshop.prepare()
        for script in SCRIPTS:
            if args.names and script.name not in args.names:
                continue
            row = results.setdefault(script.name, {})
            if args.measure:
                row[MEASURED] = measure(workshop, script, row.get(PREDICTED, {}).get("num_steps", 3))
            else:
                row[PREDICTED] = predict(workshop, script)
            print(script.name, json.dumps(row[MEASURED if args.measure else PREDICTED])[:300], flush=True)
            args.result.write_text(json.dumps(results, indent=1) + "\n")
    args.result.with_suffix(".md").write_text(table(results))
    print(table(results))


if __name__ == "__main__":
    main()
