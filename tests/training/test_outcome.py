"""How a training ended, in words and in what a resumed run starts with."""

from stability.training.outcome import Outcome

FIRST = {"step": 3, "layer": 1, "sublayer": "mlp", "site": "branch_out", "kind": "act"}
OTHER = {"step": 9, "layer": 2, "sublayer": "head", "site": "loss", "kind": "act"}


def ended():
    return Outcome("diverged", "the loss is not finite", 3)


def test_a_step_that_diverged_is_named_with_its_first_bad_tensor():
    outcome = ended()
    outcome.diverged_at(FIRST, validating=False)
    assert outcome.first_bad == FIRST
    assert outcome.text == ("diverged at step 3: first non-finite act at layer 1, mlp, branch_out")
    outcome.diverged_at(OTHER, validating=False)
    assert outcome.first_bad == OTHER


def test_a_validation_adds_to_what_was_said_and_keeps_what_came_before():
    outcome = ended()
    outcome.diverged_at(FIRST, validating=True)
    assert outcome.text == "the loss is not finite, nor is act at layer 1, mlp, branch_out"
    outcome.diverged_at(OTHER, validating=True)
    assert outcome.first_bad == FIRST


def test_a_resumed_run_goes_on_from_the_seconds_and_the_first_bad_tensor_before():
    before = Outcome("interrupted", "", 5, first_bad=FIRST, seconds=7.0, record_seconds=2.0)
    after = Outcome("running", "", 0, final_loss=1.0)
    after.resume(before.carried())
    assert (after.first_bad, after.seconds, after.record_seconds) == (FIRST, 7.0, 2.0)
    assert (after.status, after.steps_done, after.final_loss) == ("running", 0, 1.0)
