import pytest

from memfit.hardware import find_gpu
from memfit.timing.basis import basis_of, rates_of
from memfit.timing.shares import published_shares


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
    assert a100.elementwise == h200.elementwise
    assert a100.attention.kernels["cudnn"] == h200.attention.kernels["cudnn"]
    assert a100.attention.kernels["flash"].forward[1] == 0.72


def test_a_part_of_a_gpu_reaches_its_shares():
    assert published_shares(find_gpu("A100-80GB MIG 3g.40gb")) is published_shares(find_gpu("A100-80GB"))
    assert published_shares(find_gpu("RTX-4090=48GiB")) is published_shares(find_gpu("RTX-4090"))


def test_a_gpu_of_which_nothing_was_published_has_those_of_the_measured_one():
    assert published_shares(find_gpu("T4")) is None
    assert rates_of(find_gpu("T4")).products.power_share == rates_of(find_gpu("H200")).products.power_share
    assert "published peaks, with the shares of them that an H200 reaches" in basis_of(find_gpu("T4"))


def test_small_tiles_reach_what_large_ones_do_where_a_multiprocessor_multiplies_less():
    def smallest(name: str) -> float:
        return rates_of(find_gpu(name)).products.tensor_cores.tiles[-2][2]

    assert smallest("RTX-3090") == 0.95  # a ninth of an H200's multiprocessor: nothing waits for the cache
    assert smallest("A100-80GB") == 0.89
    assert smallest("B200") == smallest("H200") == 0.49


def test_what_one_multiprocessor_does_takes_no_longer_where_there_are_fewer_of_them():
    few, many = find_gpu("A100-80GB=0.5"), find_gpu("A100-80GB")
    rates = {gpu: rates_of(gpu).batch_norm.groups["cudnn"].rate * gpu.f32_flops for gpu in (few, many)}
    assert rates[few] == pytest.approx(rates[many], rel=0.02)
