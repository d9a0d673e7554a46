"""bitsandbytes: its Python code for CUDA runs above a native library that does nothing.

Where the package is not installed, a small one with the same parts is: a native library, operators defined with torch.library whose
CUDA kernels are Python, and paged memory.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys

import pytest
import torch
from helpers.phantom_worlds import phantom

import memfit
from memfit.phantom.libraries.bitsandbytes import PAGED
from memfit.units import MIB

FILES = {
    "__init__.py": """
import torch
from . import _ops, functional
if torch.cuda.is_available():
    from .backends.cuda import ops
""",
    "cuda_specs.py": "def get_cuda_specs():\n    return 'a GPU'\n",
    "cextension.py": """
from .cuda_specs import get_cuda_specs
class Real:
    def cdouble(self, *args):
        return "real"
    def cpu_double(self, *args):
        return "real on the host"
if get_cuda_specs():
    raise ImportError("libcudart is not there")
lib = Real()
""",
    "functional.py": """
from .cextension import lib
def get_paged(*shape, dtype=None, device=None):
    raise RuntimeError("cudaMallocManaged")
""",
    "_ops.py": """
import torch
torch.library.define("bitsandbytes::double", "(Tensor x) -> Tensor")
torch.library.define("bitsandbytes::undescribed", "(Tensor x) -> Tensor")
@torch.library.register_fake("bitsandbytes::double")
def _(x):
    return torch.empty_like(x)
@torch.library.register_kernel("bitsandbytes::undescribed", ("cpu", "cuda"))
def _(x):
    return torch.ops.bitsandbytes.double(x)
""",
    "backends/__init__.py": "",
    "backends/cuda/__init__.py": "",
    "backends/cuda/ops.py": """
import functools
import torch
from ...cextension import lib
lib.cdouble.argtypes = ["anything"]
@functools.cache
def num_sms(index):
    return torch.cuda.get_device_properties(index).multi_processor_count
@torch.library.register_kernel("bitsandbytes::double", "cuda")
def _(x):
    wide = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    out = torch.empty_like(x)
    assert lib.cdouble(x.data_ptr(), wide.data_ptr(), torch._C._cuda_getCurrentRawStream(0)) == 0
    return out
""",
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    if importlib.util.find_spec("bitsandbytes"):
        pytest.skip("the real package is installed here")
    for name, source in FILES.items():
        file = tmp_path / "bitsandbytes" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "bitsandbytes"]:
        del sys.modules[name]
    for key in [key for key in torch.library._impls if key.startswith("bitsandbytes/")]:
        torch.library._impls.discard(key)


def test_everything_in_one(package):
    """One test, because torch does not forget operators."""

    def build():
        import bitsandbytes
        from bitsandbytes import functional
        from bitsandbytes.backends.cuda import ops

        assert functional.lib.cdouble() == 0
        assert functional.lib.cpu_double() == "real on the host"
        assert ops.num_sms(0) == 132
        assert bitsandbytes.functional.get_paged(4, 4, dtype=torch.uint8).device.type == "cpu"
        x = torch.ones(MIB // 4, device="cuda")

        def step():
            torch.ops.bitsandbytes.double(x)
            torch.ops.bitsandbytes.undescribed(x)

        return step

    prediction = memfit.predict(build, gpu="H200", steps=1)
    assert PAGED in prediction.assumptions
    assert prediction.peak_allocated == MIB + MIB + 2 * MIB  # input, output, and the wide one in between

    functional = importlib.import_module("bitsandbytes.functional")
    assert functional.lib.cpu_double() == "real on the host"
    assert functional.lib.cdouble.__class__.__name__ == "_Function"  # imported inside, it asks the real library now
    with pytest.raises(RuntimeError, match="cudaMallocManaged"):
        functional.get_paged(4)
    with phantom(gpu="A100-80GB"):
        assert importlib.import_module("bitsandbytes.backends.cuda.ops").num_sms(0) == 108


def test_the_real_package():
    bitsandbytes = pytest.importorskip("bitsandbytes")

    def build():
        layer = bitsandbytes.nn.Linear4bit(256, 512, bias=False, compute_dtype=torch.bfloat16).cuda()
        assert isinstance(layer.weight, bitsandbytes.nn.Params4bit)
        assert layer.weight.dtype == torch.uint8
        x = torch.ones(64, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
        optimizer = bitsandbytes.optim.Adam8bit([x])

        def step():
            layer(x).sum().backward()
            optimizer.step()

        return step

    memfit.predict(build, gpu="H200", steps=2)
