"""`stability.hf.Record`: each number of a Trainer's training against plain hooks."""

import math

import pytest
import torch

import stability
from external_loops import PlainHooks, assert_recorded, rows, state, steps

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")

import stability.hf  # noqa: E402 - needs transformers

BLOCKS = ["transformer.h.0", "transformer.h.1"]


def gpt2(**changes):
    torch.manual_seed(0)
    none = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    size = {"vocab_size": 29, "n_positions": 8, "n_embd": 16, "n_layer": 2, "n_head": 2}
    config = transformers.GPT2Config(**{**none, **size, **changes}, bos_token_id=0, eos_token_id=0)
    return transformers.GPT2LMHeadModel(config)


def tokens(number=16):
    ids_NT = torch.randint(29, (number, 8), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": ids, "labels": ids} for ids in ids_NT]


def trainer(folder, model, callbacks=(), **options):
    chosen = {
        "max_steps": 3, "per_device_train_batch_size": 2, "logging_steps": 1, "learning_rate": 1e-2,
        "save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True,
        **options,
    }  # fmt: skip
    args = transformers.TrainingArguments(str(folder), **chosen)
    return transformers.Trainer(
        model, args, train_dataset=tokens(), eval_dataset=tokens(2), callbacks=list(callbacks)
    )


def weights(model):
    return {name: p.detach().clone() for name, p in model.named_parameters()}


OPTIONS = {
    "plain": {},
    "accumulated": {"gradient_accumulation_steps": 2},
    "clipped": {"max_grad_norm": 0.1},
    "bf16": {"bf16": True},
    "evaluated": {"eval_strategy": "steps", "eval_steps": 1},
    "checkpointed": {"activation_checkpointing": True},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_each_number_is_that_of_plain_hooks_and_the_training_stays_as_it_is(tmp_path, options):
    model = gpt2()
    trainer(tmp_path / "hf", model, [stability.hf.Record(tmp_path / "run")], **options).train()
    other = gpt2()
    plain = PlainHooks(other, BLOCKS)
    trainer(tmp_path / "hf", other, **options).train()
    plain.remove()
    assert len(plain.steps) == 3
    assert_recorded(tmp_path / "run", plain)
    assert all(torch.equal(p, weights(other)[name]) for name, p in weights(model).items())
    found = state(tmp_path / "run")
    assert found["status"] == "completed" and found["steps_done"] == 3 and not found["notes"]
    assert found["finfo"]["dtype"] == ("amp_bf16" if "bf16" in options else "fp32")


def test_steps_have_what_the_trainer_logs(tmp_path):
    model = gpt2()
    record = stability.hf.Record(tmp_path / "run", every=2, kinds=["act"])
    options = {"eval_strategy": "steps", "eval_steps": 2, "max_steps": 4, "max_grad_norm": 0.1}
    ran = trainer(tmp_path / "hf", model, [record], **options)
    ran.train()
    logged = [entry for entry in ran.state.log_history if "loss" in entry]
    found = steps(tmp_path / "run")
    assert found.loss.tolist() == [entry["loss"] for entry in logged]
    assert found.grad_norm.tolist() == [entry["grad_norm"] for entry in logged]
    assert found.lr.tolist() == [1e-2, 0.75e-2, 0.5e-2, 0.25e-2]
    evaluated = [entry["eval_loss"] for entry in ran.state.log_history if "eval_loss" in entry]
    assert len(evaluated) == 2
    assert found.val_loss.isna().tolist() == [True, False, True, False]
    assert found.val_loss.dropna().tolist() == evaluated


def test_gradients_are_those_before_clipping_and_steps_say_what_clipping_did(tmp_path):
    record = stability.hf.Record(tmp_path / "run")
    trainer(tmp_path / "hf", gpt2(), [record], max_grad_norm=0.1, logging_steps=100).train()
    found = steps(tmp_path / "run")
    for step, row in found.iterrows():
        grads = rows(tmp_path / "run", step=step, kind="weight_grad")
        norm = math.sqrt((grads.rms**2 * grads.numel).sum())
        assert row.grad_norm == pytest.approx(norm) and norm > 0.1
        assert row.clip_factor == pytest.approx(0.1 / norm, rel=1e-4)


class Failing(transformers.TrainerCallback):
    """Raises at the end of a step."""

    def __init__(self, step, error=None):
        self.step, self.error = step, error or ValueError("mine")

    def on_step_end(self, args, state, control, **_):
        if state.global_step == self.step:
            raise self.error


def hooks_of(model):
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("mine"), "failed"), (KeyboardInterrupt(), "interrupted")]
)
def test_an_exception_ends_the_recording_with_its_rows(tmp_path, error, status):
    model = gpt2()
    record = stability.hf.Record(tmp_path / "run")
    with pytest.raises(type(error)):
        trainer(tmp_path / "hf", model, [Failing(2, error), record]).train()
    found = state(tmp_path / "run")
    assert found["status"] == status and type(error).__name__ in found["error"]
    assert steps(tmp_path / "run").step.tolist() == [0, 1]
    assert hooks_of(model) == 0 and record.recording is None


def test_after_a_training_no_hook_is_left(tmp_path):
    model = gpt2()
    trainer(tmp_path / "hf", model, [stability.hf.Record(tmp_path / "run")]).train()
    assert hooks_of(model) == 0


def test_a_training_that_resumes_from_a_checkpoint_continues_the_recording(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2, "max_steps": 5}
    for name, stops in (("once", []), ("twice", [Failing(3)])):
        record = stability.hf.Record(tmp_path / name)
        first = trainer(tmp_path / f"{name}-hf", gpt2(), [record, *stops], **options)
        if stops:
            with pytest.raises(ValueError, match="mine"):
                first.train()
            assert steps(tmp_path / name).step.tolist() == [0, 1, 2]
            record = stability.hf.Record(tmp_path / name)
            again = trainer(tmp_path / f"{name}-hf", gpt2(), [record], **options)
            again.train(resume_from_checkpoint=True)
        else:
            first.train()
    once, twice = (rows(tmp_path / name).drop(columns="run") for name in ("once", "twice"))
    assert sorted(set(twice.step)) == [0, 1, 2, 3, 4]
    assert twice.equals(once)
    assert steps(tmp_path / "twice").loss.tolist() == steps(tmp_path / "once").loss.tolist()
    found = state(tmp_path / "twice")
    assert found["status"] == "completed" and found["error"] is None and found["steps_done"] == 5


def test_a_second_training_in_a_folder_is_refused_before_its_first_step(tmp_path):
    trainer(tmp_path / "hf", gpt2(), [stability.hf.Record(tmp_path / "run")]).train()
    model = gpt2()
    before = weights(model)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        trainer(tmp_path / "hf", model, [stability.hf.Record(tmp_path / "run")]).train()
    assert all(torch.equal(p, before[name]) for name, p in weights(model).items())
    record = stability.hf.Record(tmp_path / "run", overwrite=True)
    trainer(tmp_path / "hf", model, [record], max_steps=1).train()
    assert steps(tmp_path / "run").step.tolist() == [0]


def test_a_training_that_begins_again_with_a_smaller_batch_is_recorded_from_its_beginning(tmp_path):
    class Large(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            if state.train_batch_size > 2:
                raise RuntimeError("CUDA out of memory.")

    record = stability.hf.Record(tmp_path / "run")
    options = {"auto_find_batch_size": True, "per_device_train_batch_size": 4}
    ran = trainer(tmp_path / "hf", gpt2(), [Large(), record], **options)
    ran.train()
    assert ran.state.train_batch_size < 4
    assert steps(tmp_path / "run").step.tolist() == [0, 1, 2]
    assert state(tmp_path / "run")["status"] == "completed"


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")  # of peft
def test_of_a_lora_model_the_adapters_are_the_parameters(tmp_path):
    peft = pytest.importorskip("peft")

    def lora():
        base = gpt2()
        config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
        return peft.get_peft_model(base, config)

    trainer(tmp_path / "hf", lora(), [stability.hf.Record(tmp_path / "run")]).train()
    other = lora()
    plain = PlainHooks(other, [f"base_model.model.{name}" for name in BLOCKS])
    trainer(tmp_path / "hf", other).train()
    plain.remove()
    assert_recorded(tmp_path / "run", plain)
    for kind in ("weight", "weight_grad", "update"):
        found = rows(tmp_path / "run", kind=kind)
        assert len(found) == 3 * 2 * 2 and found.site.str.contains("lora_").all()


def test_layers_after_the_one_that_the_loss_reads_have_no_gradient(tmp_path):
    class FirstLayer(transformers.BertModel):
        def forward(self, input_ids, labels):
            found = super().forward(input_ids, output_hidden_states=True)
            return {"loss": found.hidden_states[1].square().mean()}

    torch.manual_seed(0)
    size = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 32}
    config = transformers.BertConfig(**size, num_hidden_layers=3, num_attention_heads=2)
    model = FirstLayer(config)
    record = stability.hf.Record(tmp_path / "run", r"layer\.(\d+)")
    trainer(tmp_path / "hf", model, [record]).train()
    assert set(rows(tmp_path / "run", kind="act").layer) == {0, 1, 2}
    assert set(rows(tmp_path / "run", kind="grad").layer) == {0}
    grads = rows(tmp_path / "run", kind="weight_grad", sublayer="block")
    assert set(grads.layer) == {0}
    assert state(tmp_path / "run")["status"] == "completed"


def test_the_first_bad_tensor_is_that_of_the_module_that_ran_first(tmp_path):
    """A Llama block registers its norm after its attention, and runs it before."""

    class Poison(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, model, **_):
            if state.global_step == 1:
                with torch.no_grad():
                    model.model.layers[1].input_layernorm.weight[0] = math.nan

    torch.manual_seed(0)
    size = {"vocab_size": 29, "hidden_size": 16, "intermediate_size": 32}
    config = transformers.LlamaConfig(
        **size, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2
    )
    model = transformers.LlamaForCausalLM(config)
    sites = r"layers\.(\d+)(?:\.(input_layernorm|self_attn|mlp))?"
    record = stability.hf.Record(tmp_path / "run", sites, kinds=["act"])
    trainer(tmp_path / "hf", model, [Poison(), record]).train()
    first = state(tmp_path / "run")["first_bad"]
    assert (first["step"], first["layer"], first["sublayer"]) == (1, 1, "input_layernorm")


def test_a_trainer_without_a_recording_raises_its_own_error(tmp_path):
    with pytest.raises(ValueError, match="mine"):
        trainer(tmp_path / "hf", gpt2(), [Failing(1)]).train()


def test_an_argument_that_is_not_legal_is_refused_at_once(tmp_path):
    with pytest.raises(ValueError, match="every=0"):
        stability.hf.Record(tmp_path / "run", every=0)
    with pytest.raises(ValueError, match="settings"):
        stability.hf.Record(tmp_path / "run", settings={"lr": None})
    with pytest.raises(TypeError, match="no argument evry"):
        stability.hf.Record(tmp_path / "run", evry=2)
    with pytest.raises(TypeError, match="add_scalar"):
        stability.hf.Record(tmp_path / "run", also=3)
