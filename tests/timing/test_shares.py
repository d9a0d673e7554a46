import pytest

from memfit.hardware import find_gpu
from memfit.timing.basis import basis_of, rates_of
from memfit.timing.shares import SHARE_OF_OLD_INSTRUCTIONS, published_shares


@pytest.mark.parametrize(
    ("gpu", "product", "sustained"),
    [
        ("A100-80GB", 0.869, 0.824),
        ("H100-80GB", 0.803, 0.803 * 0.67 / 0.80),
        ("B200", 0.776, 0.776 * 0.67 / 0.80),
        ("MI300X", 0.511, 0.511),
    ],
)
def test_products_reach_the_share_that_was_published(gpu: str, product: float, sustained: float):
    products = rates_of(find_gpu(gpu)).products
    assert products.power_share == product
    assert products.sustained_share == pytest.approx(sustained)
    assert published_shares(find_gpu(gpu)).source in basis_of(find_gpu(gpu))


def test_all_else_is_as_on_the_gpu_that_was_measured():
    a100, h200 = rates_of(find_gpu("A100-40GB")), rates_of(find_gpu("H200"))
    assert a100.elementwise.memory_share == h200.elementwise.memory_share
    assert a100.attention.kernels["cudnn"] == h200.attention.kernels["cudnn"]
    assert a100.attention.kernels["flash"].forward[1] == 0.72


def test_memory_efficient_kernels_are_in_proportion_to_flash():
    a100, h200 = (rates_of(find_gpu(name)).attention.kernels for name in ("A100-80GB", "H200"))
    more = a100["flash"].forward[1] / h200["flash"].forward[1]
    assert a100["efficient"].forward[1] == pytest.approx(more * h200["efficient"].forward[1])


def test_old_instructions_reach_more_of_a_peak_that_is_theirs():
    h200, h100, a10 = (rates_of(find_gpu(name)).attention.kernels["flash"] for name in ("H200", "H100-80GB", "A10"))
    assert h100 == h200
    assert a10.forward[1] == pytest.approx(h200.forward[1] / SHARE_OF_OLD_INSTRUCTIONS)


def test_a_kernel_uses_more_of_the_memory_where_each_multiprocessor_has_less_of_it():
    h200, h100, b200 = (rates_of(find_gpu(name)) for name in ("H200", "H100-80GB", "B200"))
    norm = "_fused_rms_norm"
    asked = h200.rows[norm].bandwidth / 4800 * 4800  # an H100 has as many multiprocessors, as fast
    assert h100.rows[norm].bandwidth / 4800 * 3350 == pytest.approx(min(asked, 0.915 * 3350))
    assert b200.rows[norm] == h200.rows[norm]  # which asks for no more than before
    # The second of two kernels may read again what the first has read.
    backward = "_fused_rms_norm_backward"
    assert h100.rows[backward].bandwidth / 4800 == pytest.approx(1621 / 3350)
    assert rates_of(find_gpu("RTX-3090")).rows[backward].bandwidth / 4800 == pytest.approx(0.915 * 3 / 5)


def test_only_arithmetic_in_float32_is_slower_where_half_as_many_adders_are():
    a100, h200 = rates_of(find_gpu("A100-80GB")), rates_of(find_gpu("H200"))
    there, here = find_gpu("A100-80GB").f32_flops / a100.f32_flops, find_gpu("H200").f32_flops / h200.f32_flops
    assert there / here == pytest.approx(2 * 19.5 / 66.9)
    assert a100.elementwise.slow["gelu"] == h200.elementwise.slow["gelu"] / 2
    assert a100.elementwise.casting == h200.elementwise.casting


def test_a_part_of_a_gpu_reaches_its_shares():
    assert published_shares(find_gpu("A100-80GB MIG 3g.40gb")) is published_shares(find_gpu("A100-80GB"))
    assert published_shares(find_gpu("RTX-4090=48GiB")) is published_shares(find_gpu("RTX-4090"))


def test_a_gpu_of_which_nothing_was_published_has_those_of_the_measured_one():
    assert published_shares(find_gpu("A10")) is None
    assert rates_of(find_gpu("A10")).products.power_share == rates_of(find_gpu("H200")).products.power_share
    assert "published peaks, with the shares of them that an H200 reaches" in basis_of(find_gpu("A10"))


def test_small_tiles_reach_what_large_ones_do_where_a_multiprocessor_multiplies_less():
    def smallest(name: str) -> float:
        return rates_of(find_gpu(name)).products.tensor_cores.tiles[-2][2]

    assert smallest("RTX-3090") == 1.0  # a ninth of an H200's multiprocessor: nothing waits for the cache
    assert smallest("A100-80GB") == 0.89
    assert smallest("B200") == smallest("H200") == 0.49


def test_what_one_multiprocessor_does_takes_no_longer_where_there_are_fewer_of_them():
    few, many, h200 = find_gpu("A100-80GB=0.5"), find_gpu("A100-80GB"), find_gpu("H200")
    rates = {gpu: rates_of(gpu) for gpu in (few, many, h200)}
    alone = {gpu: of.batch_norm.groups["cudnn"].rate * gpu.f32_flops / of.f32_flops for gpu, of in rates.items()}
    assert alone[few] == pytest.approx(alone[many]) == pytest.approx(alone[h200])


def test_convolutions_reach_more_where_a_multiprocessor_multiplies_less():
    def grouped(name: str) -> float:
        return rates_of(find_gpu(name)).convolution.kernels["half"].grouped_shares["forward"]

    assert grouped("RTX-3090") == 1.0
    assert grouped("B200") == grouped("H200") == 0.54
