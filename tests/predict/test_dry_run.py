"""A dry run harms nothing: one script writes, deletes, renames and overwrites in every usual way, on both overlays and on none."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a process is forked")

START = """
import csv, glob, gzip, json, logging, os, pickle, shutil, sqlite3, subprocess, sys, tempfile
from pathlib import Path
import numpy as np
import torch
import safetensors.torch as st
from torch import nn

model = nn.Linear(100, 100).cuda()
optimizer = torch.optim.AdamW(model.parameters())
host = {name: tensor.cpu() for name, tensor in model.state_dict().items()}
here = Path.cwd()
"""

WAYS = {
    "torch.save": 'torch.save(model.state_dict(), "model.pt"); assert torch.load("model.pt")["weight"].is_cuda',
    "torch.save to a file": 'f = open("model.pt", "wb"); torch.save(model.state_dict(), f); f.close(); assert torch.load("model.pt")["weight"].is_cuda',
    "torch.save of host copies": 'torch.save(host, "model.pt"); assert torch.load("model.pt")["weight"].shape == (100, 100)',
    "torch.save of host copies to a file": 'with open("model.pt", "wb") as f:\n    torch.save(host, f)\nassert torch.load("model.pt")["weight"].shape == (100, 100)',
    "torch.save of host copies, absolute": 'torch.save(host, here / "model.pt"); assert len(torch.load(here / "model.pt")) == 2',
    "torch.save in the old format": 'torch.save(host, "model.pt", _use_new_zipfile_serialization=False); assert len(torch.load("model.pt")) == 2',
    "pickle": 'pickle.dump({"a": 1}, open("log.txt", "wb")); assert pickle.load(open("log.txt", "rb")) == {"a": 1}',
    "gzip": 'gzip.open("log.txt", "wt").write("x"); assert gzip.open("log.txt", "rt").read() == "x"',
    "numpy.save": 'np.save("array.npy", host["weight"].numpy()); assert np.load("array.npy").shape == (100, 100)',
    "numpy.tofile": 'np.arange(3).tofile("array.npy"); assert np.fromfile("array.npy", dtype=int).tolist() == [0, 1, 2]',
    "numpy.memmap": 'm = np.memmap("array.npy", mode="r+", dtype=np.uint8); m[:] = 7; m.flush(); assert open("array.npy", "rb").read(1) == b"\\x07"',
    "safetensors": 'st.save_file(host, "model.safetensors"); assert len(st.load_file("model.safetensors")) == 2',
    "safetensors of the GPU": 'st.save_file(model.state_dict(), "model.safetensors"); assert st.load_file("model.safetensors", device="cuda")["weight"].is_cuda',
    "safetensors by safe_open": 'st.save_file(host, "new.safetensors")\nwith st.safe_open("new.safetensors", framework="pt") as f:\n    assert len(f.keys()) == 2',
    "a mapped storage": 's = torch.UntypedStorage.from_file("log.txt", True, 4); s[0] = 1; del s',
    "sqlite3": 'c = sqlite3.connect("log.db"); c.execute("create table if not exists t (a)"); c.execute("insert into t values (1)"); c.commit(); c.close()',
    "append": 'open("log.txt", "a").write("more"); assert open("log.txt").read() == "beforemore"',
    "update in place": 'f = open("log.txt", "r+"); f.write("XX"); f.close(); assert open("log.txt").read() == "XXfore"',
    "text": 'Path("log.txt").write_text("new"); assert Path("log.txt").read_text() == "new" and os.path.getsize("log.txt") == 3',
    "csv": 'csv.writer(open("log.txt", "w", newline="")).writerow([1])',
    "logging": 'h = logging.FileHandler("log.txt", mode="w"); logging.getLogger("x").addHandler(h); logging.getLogger("x").warning("y"); h.close()',
    "os.open": 'n = os.open("log.txt", os.O_RDWR | os.O_TRUNC); os.write(n, b"q"); os.close(n); assert open("log.txt").read() == "q"',
    "os.truncate": 'os.truncate("log.txt", 2); assert open("log.txt").read() == "be"',
    "os.remove": 'os.remove("log.txt"); assert not os.path.exists("log.txt") and "log.txt" not in os.listdir(".")',
    "unlink a path": 'Path("log.txt").unlink(); assert not Path("log.txt").exists(); assert not glob.glob("log*")',
    "missing after unlink": 'os.remove("log.txt")\ntry:\n    open("log.txt")\n    raise SystemExit(3)\nexcept FileNotFoundError as error:\n    assert error.filename == "log.txt"',
    "os.rename": 'os.rename("log.txt", "old.txt"); assert open("old.txt").read() == "before" and not os.path.exists("log.txt")',
    "os.replace": 'open("new.tmp", "w").write("new"); os.replace("new.tmp", "log.txt"); assert open("log.txt").read() == "new" and not os.path.exists("new.tmp")',
    "backup by renaming": 'os.replace("log.txt", "log.bak"); open("log.txt", "w").write("new"); assert open("log.bak").read() == "before"',
    "rename a directory": 'os.rename("sub", "moved"); assert open("moved/deep/file.txt").read() == "before" and not os.path.exists("sub")',
    "shutil.move": 'shutil.move("sub", "moved"); assert sorted(p.name for p in Path("moved").rglob("*")) == ["deep", "file.txt"]',
    "shutil.rmtree": 'shutil.rmtree("sub"); assert not os.path.exists("sub/deep/file.txt") and "sub" not in os.listdir()',
    "remove and make again": 'shutil.rmtree("sub"); os.makedirs("sub/deep"); assert os.listdir("sub/deep") == []; Path("sub/deep/n").touch(); assert os.listdir("sub/deep") == ["n"]',
    "shutil.copy": 'shutil.copy("log.txt", "sub/deep/file.txt"); shutil.copytree("sub", "copy"); assert open("copy/deep/file.txt").read() == "before"',
    "symbolic links": 'open("link.txt", "w").write("through"); assert open("log.txt").read() == "through"; os.remove("link.txt"); os.symlink("sub", "way"); assert os.listdir("way") == ["deep"]',
    "os.link": 'os.link("log.txt", "hard.txt"); open("hard.txt", "a").write("x")',
    "times and modes": 'os.utime("log.txt", (1, 1)); os.chmod("log.txt", 0o600); Path("log.txt").touch(); Path("log.txt").chmod(0o640)',
    "chdir": 'os.makedirs("run/a"); os.chdir("run/a"); assert os.getcwd() == str(here / "run" / "a"); open("x", "w").write("1"); open("../../log.txt", "w").write("2"); os.chdir(here); assert open("run/a/x").read() == "1"',
    "listing": 'Path("sub/new.txt").touch(); assert sorted(os.listdir("sub")) == ["deep", "new.txt"] == sorted(e.name for e in os.scandir("sub")); assert sorted(glob.glob("sub/*")) == ["sub/deep", "sub/new.txt"]; assert [len(f) for _, _, f in os.walk("sub")] == [1, 1]',
    "temporary files": 'with tempfile.TemporaryDirectory(dir=".") as d:\n    open(d + "/x", "w").write("1")\nwith tempfile.NamedTemporaryFile(dir=".") as f:\n    f.write(b"1")\ntempfile.TemporaryFile().write(b"2")',
    "names imported before": 'from os import remove\nfrom shutil import rmtree\nremove("log.txt"); rmtree("sub")',
    "a module that the run writes": 'Path("plugin.py").write_text("value = 7"); sys.path.insert(0, "."); import importlib; importlib.invalidate_caches(); import plugin; assert plugin.value == 7; sys.path.pop(0); del sys.modules["plugin"]',
    "directories by number": 'n = os.open(".", os.O_RDONLY); os.unlink("log.txt", dir_fd=n); assert "log.txt" not in os.listdir(n); os.close(n)',
    "bytes": 'os.remove(b"log.txt"); assert b"log.txt" not in os.listdir(b"."); open(b"log.txt", "w").write("1")',
    "a forked process": 'import multiprocessing\nworker = multiprocessing.get_context("fork").Process(target=lambda: open("log.txt", "w").write("worker"))\nworker.start(); worker.join(); assert open("log.txt").read() == "worker"',
    "at exit": 'import atexit; atexit.register(lambda path=str(here / "log.txt"): open(path, "w").write("late"))',
    "save, replace, rotate, resume": '''
for step in range(4):
    torch.save({"model": model.state_dict(), "rng": torch.get_rng_state(), "step": step}, "tmp.pt")
    os.replace("tmp.pt", f"step{step}.pt")
    for old in sorted(glob.glob("step*.pt"))[:-2]:
        os.remove(old)
assert sorted(glob.glob("*.pt")) == ["model.pt", "step2.pt", "step3.pt"], glob.glob("*.pt")
state = torch.load("step3.pt", map_location="cuda")
model.load_state_dict(state["model"]); assert state["step"] == 3
torch.set_rng_state(state["rng"].cpu())
''',
    "write and open with Path": 'with Path("model.pt").open("wb") as f:\n    torch.save(model.state_dict(), f)\nos.replace("model.pt", "final.pt")\nwith open("final.pt", "rb") as f:\n    assert torch.load(f)["weight"].is_cuda',
}

ONLY_BY_SYSTEM = {
    "another program": 'subprocess.run(["rm", "-r", "sub", "log.txt"], check=True); subprocess.run("echo x > model.pt", shell=True, check=True)',
}

END = """
while True:
    model(torch.ones(1, 100, device="cuda")).sum().backward()
    optimizer.step()
"""


def script(ways: dict[str, str]) -> str:
    parts = [START]
    for way, code in ways.items():
        body = "\n".join(f"    {line}" for line in code.strip().splitlines())
        parts.append(f"os.chdir(here / {way!r})\nhere = Path.cwd()\ntry:\n{body}\nexcept BaseException:\n    print('FAILED', {way!r}, flush=True)\n    raise\nhere = here.parent\nos.chdir(here)\n")
    return "".join(parts) + END


def fill(folder: Path) -> None:
    """What somebody has from earlier runs."""
    (folder / "sub" / "deep").mkdir(parents=True)
    for name in ("log.txt", "sub/deep/file.txt"):
        (folder / name).write_text("before")
    torch.save({"weight": torch.arange(4.0)}, folder / "model.pt")
    save_file({"weight": torch.arange(4.0)}, folder / "model.safetensors")
    np.save(folder / "array.npy", np.arange(4))
    (folder / "link.txt").symlink_to("log.txt")
    (folder / "step0.pt").write_text("an older checkpoint")


def state_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Names, contents, times and modes of everything."""
    found = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        status = path.lstat()
        content = os.readlink(path) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[str(path.relative_to(folder))] = (content, status.st_mode, status.st_mtime_ns, status.st_size)
    return found


DRIVER = """
import functools, sys
import memfit.cli
from memfit.predict import dry_run
dry_run.harmlessly = functools.partial(dry_run.harmlessly, by_system={by_system})
sys.exit(memfit.cli.main())
"""


def memfit_run(file: Path, *flags: str, by_system: bool, cwd: Path) -> subprocess.CompletedProcess[str]:
    code = DRIVER.format(by_system=by_system)
    command = [sys.executable, "-c", code, "run", "--gpu", "T4", "--json", "--out", str(cwd.parent / "run.memfit"), *flags, str(file)]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd)


def said(done: subprocess.CompletedProcess[str]) -> dict[str, object]:
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return found


class Ran:
    """Folders before and after a run of all ways, each in a folder of its own."""

    def __init__(self, root: Path, ways: dict[str, str], *flags: str, by_system: bool) -> None:
        folders = root / "folders"
        for way in ways:
            fill(folders / way)
        (root / "train.py").write_text(script(ways))
        self.before = {way: state_of(folders / way) for way in ways}
        self.done = memfit_run(root / "train.py", *flags, by_system=by_system, cwd=folders)
        self.after = {way: state_of(folders / way) for way in ways}
        self.names = {path.name for path in folders.iterdir()}
        self.verdict = said(self.done)


def system_gives_an_overlay(tmp_path: Path) -> bool:
    from memfit.overlay import namespace

    child = os.fork()
    if child == 0:
        os._exit(0 if namespace.enter(str(tmp_path)) else 1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.fixture(scope="module")
def by_system(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    if not system_gives_an_overlay(tmp_path_factory.mktemp("probe")):
        pytest.skip("this system gives no overlay of its own")
    return Ran(tmp_path_factory.mktemp("by_system"), WAYS | ONLY_BY_SYSTEM, by_system=True)


@pytest.fixture(scope="module")
def by_python(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("by_python"), WAYS, by_system=False)


@pytest.fixture(scope="module")
def by_nobody(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return Ran(tmp_path_factory.mktemp("by_nobody"), WAYS | ONLY_BY_SYSTEM, "--write", by_system=True)


@pytest.mark.parametrize("way", [*WAYS, *ONLY_BY_SYSTEM])
def test_the_system_keeps_a_folder_as_it_was(by_system: Ran, way: str):
    assert by_system.after[way] == by_system.before[way]


@pytest.mark.parametrize("way", WAYS)
def test_python_keeps_a_folder_as_it_was(by_python: Ran, way: str):
    assert by_python.after[way] == by_python.before[way]


_HARMLESS = {"torch.save", "safetensors of the GPU"}
"""What writes nothing even on real files: tensors without data."""


@pytest.mark.parametrize("way", [way for way in (*WAYS, *ONLY_BY_SYSTEM) if way not in _HARMLESS])
def test_with_write_the_script_does_what_it_says(by_nobody: Ran, way: str):
    """So the proofs above can fail."""
    assert by_nobody.after[way] != by_nobody.before[way]
