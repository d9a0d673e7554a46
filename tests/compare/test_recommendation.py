"""Which cell is recommended, and in which words."""

from helpers.compare_cells import CAPACITY, cell, configuration

from memfit.compare.recommendation import choose, is_sure
from memfit.units import GIB
from memfit.views.words.comparison import closing_words

VARYING = ("strategy", "checkpointing")


def said(cells, varying=VARYING, gpu="H100-80GB") -> str:
    return " ".join(closing_words(cells, varying, gpu))


def test_recomputation_weighs_more_than_communication():
    cheap = cell(70, strategy="full_shard", checkpointing="none")
    cells = [cell(30, checkpointing="full"), cell(60, strategy="shard_grad_op", checkpointing="selective"), cheap]
    assert choose(cells) is cheap
    assert choose([*cells, cell(90, strategy="no_shard")]) is cheap, "what does not fit is not recommended"


def test_least_communication_decides_among_equals():
    cells = {strategy: cell(50, strategy=strategy) for strategy in ("full_shard", "hybrid_shard", "shard_grad_op")}
    assert choose(list(cells.values())) is cells["hybrid_shard"]


def test_offloading_and_more_gpus_come_last():
    offloaded = cell(20, offload="params")
    recomputing = cell(50, checkpointing="full")
    assert choose([offloaded, recomputing]) is recomputing
    assert choose([cell(20, world_size=64), recomputing]) is recomputing


def test_the_larger_batch_of_equals():
    assert choose([cell(20, batch=1), cell(60, batch=4)]).inputs["batch"] == 4


def test_a_sure_fit_is_preferred_to_a_close_one():
    close, sure = cell(79.5), cell(30, checkpointing="full")
    assert not is_sure(close)
    assert choose([close, sure]) is sure
    assert choose([close]) is close
    assert "try it before you rely on it" in said([close])


def test_nothing_to_choose():
    assert choose([cell(None), cell(90)]) is None
    assert said([cell(None)]) == ""


def test_the_recommendation_in_words():
    cells = [cell(60, strategy="shard_grad_op", checkpointing="selective"), cell(50, checkpointing="full")]
    assert said(cells) == (
        "Run shard_grad_op with selective checkpointing on H100-80GB: it fits with 20.00 GiB to spare. It is the cheapest to run "
        "of the 2 that fit: least recomputation, then least communication."
    )


def test_the_only_one_that_fits():
    assert "Nothing else fits." in said([cell(70, checkpointing="full"), cell(90)])


def test_room_for_a_larger_batch():
    assert "compare --batch 2,4,8" in said([cell(20, batch=2), cell(30, batch=2, checkpointing="full")])
    assert "--batch" not in said([cell(20, batch=2), cell(30, batch=4)], ("batch",))


def test_a_peak_in_the_optimizer():
    at_the_end = {"peak_phase": "optimizer"}
    assert "--optimizer adamw-fused" in said([cell(60, at_the_end)])
    assert "adamw-fused" not in said([cell(60, at_the_end, optimizer="sgd")])


def test_a_tight_fit():
    assert "expandable_segments:True" in said([cell(60, {"num_alloc_retries": 3})])


def test_nothing_fits():
    closest = cell(100, checkpointing="full")
    words = said([cell(200), closest, cell(None)])
    assert words.startswith("Nothing fits on H100-80GB. Closest: full_shard with full checkpointing, short by 20.00 GiB.")
    assert "At its peak (backward), activation takes 50.00 GiB" in words
    assert words.endswith("Try --seq 4096, or --world-size 16, or --offload params, or --gpu H200.")


def test_a_function_is_given_no_flags_of_ours():
    own = cell(100, {"least_gpu": ""})
    asked = configuration(function="a.py:b", gpu="H100-80GB", world_size=1, layers=3)
    own = type(own)(configuration=asked, figures=own.figures)
    words = said([own], ("layers",))
    assert "Closest: layers 3, short by 20.00 GiB." in words
    assert "--" not in words


def test_each_gpu_is_spoken_for_alone():
    cells = [cell(70), cell(70, {"fits": False, "margin": -30 * GIB, "capacity": CAPACITY - 40 * GIB}, gpu="A100-40GB")]
    assert said(cells, ("gpu",), "H100-80GB").startswith("Run it on H100-80GB")
    assert said(cells, ("gpu",), "A100-40GB").startswith("Nothing fits on A100-40GB")


def timed(smallest_fit: float, tokens_per_second: float, **inputs):
    seconds = inputs.get("batch", 1) * 8192 / tokens_per_second
    return cell(smallest_fit, {"step_seconds": seconds, "tokens_per_second": tokens_per_second}, **inputs)


def test_the_fastest_that_fits_is_recommended_whatever_else_it_costs():
    slow = timed(30, 5000, strategy="hybrid_shard")
    fast = timed(60, 7000, strategy="full_shard", checkpointing="full", world_size=16)
    assert choose([slow, fast, timed(90, 9000)]) is fast
    assert said([slow, fast]).endswith("It is the fastest of the 2 that fit.")


def test_of_several_that_are_as_fast_the_cheapest_to_run():
    cells = [timed(30, 7000, checkpointing="full"), timed(60, 6900, strategy="hybrid_shard"), timed(20, 5000, world_size=4)]
    assert choose(cells) is cells[1]
    assert "2 of the 3 that fit are as fast; it is the cheapest to run of them: least recomputation" in said(cells)


def test_a_larger_batch_is_faster_for_its_work_not_for_its_step():
    small, large = timed(20, 5000, batch=1), timed(60, 6000, batch=4)
    assert choose([small, large]) is large


def test_where_one_time_is_not_known_none_decides():
    assert choose([cell(30, strategy="hybrid_shard"), timed(60, 9000)]).inputs["strategy"] == "hybrid_shard"
