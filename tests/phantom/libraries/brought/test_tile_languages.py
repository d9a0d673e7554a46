"""Kernels that Python describes: what a call makes is allocated, and the rest is passed over."""

import torch
from helpers.phantom_worlds import phantom


def test_a_call_allocates_what_the_description_says():
    with phantom() as world:
        import tilelang
        import tilelang.language as T

        @tilelang.jit(out_idx=[-1])
        def product(m, n, k):
            @T.prim_func
            def main(a: T.Tensor((m, k), "float16"), b: T.Tensor((k, n), "float16"), c: T.Tensor((m, n), "float32")):
                with T.Kernel(1) as _:
                    T.copy(a, c)

            return main

        a = torch.empty(64, 32, dtype=torch.float16, device="cuda")
        made = product(64, 128, 32)(a, torch.empty(32, 128, dtype=torch.float16, device="cuda"))
        assert (made.shape, made.dtype, made.is_cuda) == ((64, 128), torch.float32, True)
    assert any("the kernel main, which the script describes, was not run" in said for said in world.assumptions.sentences())


def test_a_launch_of_cute_works_on_what_is_there():
    with phantom() as world:
        from cutlass import cute
        from cutlass.cute.runtime import from_dlpack

        @cute.jit
        def scale(x: cute.Tensor, out: cute.Tensor):
            raise AssertionError("it is compiled, not run")

        x = torch.empty(64, device="cuda")
        compiled = cute.compile(scale, from_dlpack(x).mark_layout_dynamic(), from_dlpack(x))
        assert compiled(from_dlpack(x), from_dlpack(x)) is None
    assert any("the kernel scale" in said for said in world.assumptions.sentences())
