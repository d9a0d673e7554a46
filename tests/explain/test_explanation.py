"""Hand-made runs that ran out of memory, with exact bytes."""

import pickle
from dataclasses import replace

import pytest
from helpers.failed_runs import SPLIT, TRAINING, failed

from memfit.allocator import smallest_fit
from memfit.errors import ConfigError, LedgerFormatError, TraceError
from memfit.explain import Explanation, explain
from memfit.explain.unusable import Reason
from memfit.ledger import Category, Failure, Ledger
from memfit.testing import ledger
from memfit.units import GIB, MIB

HOLES = """
    alloc 400MiB parameter layer.w on cuda:0
    step
    enter forward layer
    alloc 200MiB a on cuda:0; alloc 100MiB b on cuda:0; alloc 200MiB c on cuda:0; alloc 100MiB d on cuda:0
    free a; free c
"""


def remedies(explanation: Explanation) -> dict:
    return {remedy.what: remedy for remedy in explanation.remedies}


def test_what_was_asked_for_and_what_there_was():
    found = explain(failed("alloc 800MiB parameter w on cuda:0; step; enter forward; alloc 100MiB x on cuda:0", 200, 900))
    assert (found.ran_out, found.future_known, found.asked) == (True, False, 200 * MIB)
    assert (found.allocated, found.reserved, found.capacity, found.left) == (900 * MIB, 900 * MIB, 1000 * MIB, 100 * MIB)
    assert found.holdings.categories == {Category.PARAMETER: 800 * MIB, Category.ACTIVATION: 100 * MIB}
    assert found.holdings.where == "step 0, forward"
    assert found.holdings.op == "aten.mm.default"
    assert found.unusable == ()


def test_owners_are_modules_and_repeated_ones_are_one():
    script = "alloc 100MiB parameter layers.0.w on cuda:0; alloc 100MiB parameter layers.1.w on cuda:0; alloc 50MiB x on cuda:0"
    owners = [(o.owner, o.num_members, o.size_bytes) for o in explain(failed(script, 900, 250)).holdings.owners]
    assert owners == [("layers.*", 2, 200 * MIB), ("", 1, 50 * MIB)]


def test_segments_that_can_be_given_back_are_not_what_is_in_the_way():
    """a and c are whole segments: the allocator gives them back before it fails."""
    found = explain(failed(HOLES, 500, 600))
    assert (found.allocated, found.reserved, found.left) == (600 * MIB, 600 * MIB, 400 * MIB)


def test_pieces_that_are_too_small():
    found = explain(failed(SPLIT, 600, 500))
    assert [(group.reason, group.size_bytes, group.num_pieces, group.largest_piece) for group in found.unusable] == [
        (Reason.TOO_SMALL, 200 * MIB, 2, 150 * MIB)
    ]
    assert found.unusable_bytes == found.reserved - found.allocated


def test_what_completes_by_luck_in_this_memory_alone_is_not_said_to_fit(monkeypatch: pytest.MonkeyPatch):
    run = failed(SPLIT, 600, 500)
    monkeypatch.setattr("memfit.explain.remedies.smallest_fit", lambda *_: replace(smallest_fit(*_), capacity=1001 * MIB))
    assert explain(run).capacity == 1000 * MIB
    assert remedies(explain(run))["expandable_segments:True"].served is False


def test_expandable_segments_would_have_served_it():
    found = explain(failed(SPLIT, 600, 500))
    remedy = remedies(found)["expandable_segments:True"]
    assert remedy.served is True
    assert remedy.smallest_fit == 920 * MIB  # in pages of 20 MiB
    assert found.remedies[0] == remedy


def test_pieces_of_another_stream_and_another_class():
    script = """
        alloc 100MiB a on cuda:0; alloc 1MiB s on cuda:0
        alloc 500MiB big on cuda:0 stream 7; free big; alloc 100MiB o on cuda:0 stream 7
        alloc 1KiB last on cuda:0
    """
    found = explain(failed(script, 450, 602))
    assert {group.reason: group.size_bytes for group in found.unusable if "rounding" not in group.reason} == {
        Reason.OTHER_STREAM: 400 * MIB,
        Reason.SMALL_ONLY: 1 * MIB - 1024,
    }


def test_memory_that_the_ledger_never_saw_counts():
    run = failed("alloc 300MiB parameter w on cuda:0; step; enter forward; alloc 100MiB x on cuda:0", 200, 900)
    run = replace(run, info=replace(run.info, failure=replace(run.info.failure, allocated_bytes=900 * MIB)))
    found = explain(run)
    assert found.holdings.unknown_bytes == 500 * MIB
    assert found.allocated == 900 * MIB
    assert not any("replayed" in note for note in found.notes)
    # 500 unknown + 300 + half of the rest
    assert remedies(found)["half the micro-batch"].peak_allocated == 950 * MIB


def test_rounding_in_the_message_is_no_unknown_memory():
    run = failed("alloc 900MiB w on cuda:0", 200, 900, allocated_bytes=900 * MIB + MIB // 200)
    assert explain(run).holdings.unknown_bytes == 0


def test_a_failure_that_the_replay_cannot_see():
    found = explain(failed("alloc 300MiB w on cuda:0", 100, 300))
    assert any("gets what it asked for" in note for note in found.notes)
    assert {remedy.served for remedy in found.remedies} == {None}


def test_an_error_without_figures_still_shows_what_was_in_use():
    run = failed("alloc 300MiB parameter w on cuda:0", 100, 300)
    run = replace(run, info=replace(run.info, failure=Failure(message="out of memory", time_ns=10**9)))
    found = explain(run)
    assert (found.ran_out, found.asked, found.capacity, found.remedies) == (True, None, None, ())
    assert found.holdings.categories == {Category.PARAMETER: 300 * MIB}
    assert any("nothing can be tried" in note for note in found.notes)


def test_what_happened_on_the_way_out_does_not_count():
    run = failed("alloc 800MiB parameter w on cuda:0; step; enter forward; alloc 100MiB x on cuda:0; exit; free x", 200, 900)
    run = replace(run, info=replace(run.info, failure=replace(run.info.failure, time_ns=3500)))
    assert explain(run).holdings.categories == {Category.PARAMETER: 800 * MIB, Category.ACTIVATION: 100 * MIB}


def test_a_limit_on_the_process_is_the_capacity():
    script = "alloc 300MiB w on cuda:0"
    found = explain(failed(script, 100, 300, limit_bytes=350 * MIB))
    assert found.capacity == 350 * MIB
    assert "garbage_collection_threshold:0.8" in remedies(found)
    assert "garbage_collection_threshold:0.8" not in remedies(explain(failed(script, 900, 300)))


@pytest.mark.parametrize(("needed_mib", "size"), [(2, MIB), (20, 10 * MIB - 512), (22, 22 * MIB)])
def test_the_message_names_a_segment_which_small_requests_share(needed_mib: int, size: int):
    from memfit.explain.from_ledger import largest_request

    assert largest_request(needed_mib * MIB) == size


# -- remedies ----------------------------------------------------------------------------------------------------------------


def test_half_the_micro_batch_halves_what_depends_on_it():
    found = remedies(explain(failed(TRAINING, 200, 820)))["half the micro-batch"]
    assert found.served is True
    assert found.peak_allocated == (100 + 200 + 100 + (20 + 400 + 200) // 2) * MIB


def test_the_largest_part_of_the_micro_batch_that_works():
    found = [remedy for remedy in explain(failed(TRAINING, 200, 820)).remedies if remedy.kind == "micro-batch"]
    shares = [remedy.what for remedy in found]
    assert shares == ["96 % of the micro-batch", "half the micro-batch"]
    assert found[0].smallest_fit <= 1000 * MIB < found[0].smallest_fit * 0.97 / 0.96 + 8 * MIB


def test_optimizer_state_elsewhere():
    found = remedies(explain(failed(TRAINING, 200, 820)))["optimizer state on the CPU"]
    assert (found.served, found.peak_allocated) == (True, 820 * MIB)


def test_the_least_gpu_that_would_do():
    script = "alloc 30GiB parameter w on cuda:0"
    run = failed(script, 8000, 30 * 1024, total_bytes=31 * GIB, free_bytes=GIB)
    assert "the smallest GPU on which it fits: A100-40GB" in remedies(explain(run))


def test_what_does_not_work_alone_is_tried_together():
    run = failed(TRAINING, 200, 820, free_bytes=0, reserved_bytes=350 * MIB)
    kinds = [remedy.kind for remedy in explain(run).remedies]
    assert "setting + micro-batch" in kinds
    assert not any(remedy.served for remedy in explain(run).remedies if remedy.kind != "gpu")


# -- other GPUs, other runs --------------------------------------------------------------------------------------------------


def test_a_larger_gpu_serves_it():
    found = explain(failed(TRAINING, 200, 820), "T4")
    assert (found.ran_out, found.gpu, found.remedies) == (False, "T4", ())


def test_a_run_that_would_run_out_elsewhere():
    run = ledger(
        "alloc 10GiB parameter w on cuda:0; step; enter forward; alloc 8GiB x on cuda:0; exit; enter backward; free x; exit"
    )
    found = explain(run, "T4")
    assert (found.ran_out, found.future_known, found.asked) == (True, True, 8 * GIB)
    assert found.holdings.categories == {Category.PARAMETER: 10 * GIB}
    assert (found.holdings.op, found.holdings.where) == ("x", "step 0, forward")
    assert explain(run, "A100-40GB").ran_out is False


def test_a_prediction_names_its_gpu():
    run = ledger("alloc 100GiB parameter w on cuda:0")
    assert explain(replace(run, info=replace(run.info, gpu="T4"))).gpu == "T4"


def test_a_run_that_ended_well_needs_a_gpu():
    with pytest.raises(ConfigError, match="--gpu"):
        explain(ledger("alloc 1MiB w on cuda:0"))


def test_files(tmp_path):
    failed(TRAINING, 200, 820).save(tmp_path / "oom.memfit")
    assert explain(tmp_path / "oom.memfit") == explain(failed(TRAINING, 200, 820))
    with pytest.raises(TraceError, match="cannot be read"):
        explain(tmp_path / "nothing")
    (tmp_path / "text").write_text("hello")
    with pytest.raises(LedgerFormatError):
        explain(tmp_path / "text")
    (tmp_path / "odd.pickle").write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(TraceError, match="snapshot"):
        explain(tmp_path / "odd.pickle")


def test_a_ledger_whose_first_byte_is_a_pickles(tmp_path):
    """A safetensors file begins with the length of its header, which can be any multiple of eight."""
    run, path = failed(TRAINING, 200, 820), tmp_path / "oom.memfit"
    for length in range(40):
        replace(run, strings=(*run.strings, "x" * 8 * length)).save(path)
        if path.read_bytes()[0] == 0x80:
            break
    assert path.read_bytes()[0] == 0x80
    assert explain(path).asked == 200 * MIB
    assert Ledger.load(path).info.failure


def test_json_has_every_figure():
    found = explain(failed(TRAINING, 200, 820)).to_json()
    assert found["holdings"]["categories"] == {
        "parameter": 100 * MIB,
        "optimizer_state": 200 * MIB,
        "input": 20 * MIB,
        "activation": 400 * MIB,
        "gradient": 100 * MIB,
    }
    assert found["left"] == 180 * MIB
    assert {remedy["what"] for remedy in found["remedies"]} >= {"expandable_segments:True", "half the micro-batch"}
