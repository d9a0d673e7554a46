"""Buffers of a compiled graph belong to the first kernel that is given them."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from memfit.phantom.compile.allocation import Origin
from memfit.phantom.compile.origins import label, module_path

WRAPPER = """
def call(args):
    primals_1, = args
    args.clear()
    with guard(0):
        buf0 = empty_strided_cuda((4, ), (1, ), float32)
        buf1 = empty_strided_cuda((8, ), (1, ), float32)
        extern_kernels.mm(primals_1, primals_1, out=buf1)
        triton_poi_fused_gelu_0.run(buf1, buf0, 4)
        del buf1
        buf2 = empty_strided_cuda((2, ), (1, ), float32)
    return (buf0, buf2)
"""


def node(path: str, *, key: str = "nn_module_stack") -> SimpleNamespace:
    return SimpleNamespace(meta={key: {"outer": ("L['self']", object), "inner": (path, object)}})


def test_each_allocation_says_its_origin():
    code, origins = label(WRAPPER, [(1, node("L['self'].layers.0.up")), (9, node("L['self'].layers.0"))], False, "<test>")
    taken = []
    calls = SimpleNamespace(mm=lambda *args, **kwargs: None, run=lambda *args: None)
    namespace = {
        "guard": lambda device: __import__("contextlib").nullcontext(),
        "empty_strided_cuda": lambda size, stride, dtype, origin=-1: taken.append((size, origin)),
        "float32": None,
        "extern_kernels": calls,
        "triton_poi_fused_gelu_0": calls,
    }
    exec(code, namespace)
    namespace["call"]([None])
    assert origins == [Origin("mm", "layers.0.up"), Origin("triton_poi_fused_gelu_0", "layers.0")]
    assert taken == [((4,), 1), ((8,), 0), ((2,), -1)]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("L['self'].layers.0.attention", "layers.0.attention"),
        ("L['self']._modules['layers']._modules['0'].up", "layers.0.up"),
        ("L['self']", ""),
        ("L['model'].head", "head"),
    ],
)
def test_paths_are_those_of_named_modules(path: str, expected: str):
    assert module_path(node(path)) == expected
    assert module_path(node(path, key="fwd_nn_module_stack")) == expected


def test_a_node_of_no_module():
    assert module_path(SimpleNamespace(meta={})) == ""
