"""Attention logits of external models: against loops over pairs, torch's own, and the GPT's."""

import math

import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack

import stability
from external_loops import rows, state
from hf_models import MODELS
from hf_models import tokens as hf_tokens
from slow_statistics import twin
from stability.config.token_positions import positions
from stability.model import build
from stability.model.gpt import loss_sum
from stability.recording.external.attention import AttentionHooks
from stability.recording.external.guard import Guard
from stability.recording.external.logits import of_multihead, of_queries_and_keys, of_softmax
from stability.recording.external.module_hooks import ModuleHooks
from stability.results.statistics import INDEX
from tiny import make_config, run
from transformer_families import Attention, Model, PreNorm, TorchModel

STATISTICS = ("rms", "absmax", "mean", "var", "absmean", "numel", "nonfinite")


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def heads(queries=5, keys=5, of_keys=4):
    return random(2, 4, queries, 6), random(2, of_keys, keys, 6, seed=1)


def masks(queries, keys):
    seen = random(2, 1, queries, keys, seed=2) > -0.5
    seen[..., 0] = True
    bias = random(1, 4, queries, keys, seed=3)
    hidden = torch.zeros(2, 1, queries, keys).masked_fill(~seen, torch.finfo(torch.float32).min)
    return {
        "none": {},
        "causal": {"is_causal": True},
        "scale": {"scale": 0.7},
        "truth values": {"attn_mask": seen},
        "-inf": {"attn_mask": torch.zeros(2, 1, queries, keys).masked_fill(~seen, -math.inf)},
        "lowest": {"attn_mask": hidden},
        "bias": {"attn_mask": bias},
        "bias and lowest": {"attn_mask": bias + hidden},
        "padding": {"attn_mask": seen[:, :, :1]},
        "one row": {"attn_mask": seen[0, 0, :1]},
    }


@pytest.mark.parametrize("name", masks(5, 5))
@pytest.mark.parametrize(("queries", "keys", "of_keys"), [(5, 5, 4), (5, 8, 4), (8, 5, 2)])
def test_the_softmax_of_the_logits_is_what_torch_multiplies_the_values_by(
    name, queries, keys, of_keys
):
    """Values that are the identity give the attention matrix itself."""
    q, k = heads(queries, keys, of_keys)
    given = masks(queries, keys)[name]
    values = torch.eye(keys).expand(2, of_keys, keys, keys)
    matrix = F.scaled_dot_product_attention(q, k, values, enable_gqa=of_keys < 4, **given)
    found = of_queries_and_keys(
        q, k, given.get("attn_mask"), given.get("is_causal", False), given.get("scale")
    )
    seen = found.seen.expand(found.scores.shape)
    own = found.scores.masked_fill(~seen, -math.inf).softmax(-1)
    torch.testing.assert_close(own, matrix)
    assert (seen == (matrix > 0)).all()
    scores, entropy = found.vectors().values()
    wanted = torch.special.entr(matrix).sum(-1).flatten()
    assert float(entropy[INDEX["mean"]] * entropy[INDEX["absmax"]]) == pytest.approx(
        float(wanted.mean()), rel=1e-5
    )
    assert scores[INDEX["numel"]] == seen.sum()


def test_many_queries_are_shown_at_the_positions_that_the_gpt_shows():
    q, k = heads(200, 200)
    found = of_queries_and_keys(q, k, is_causal=True)
    shown = positions(200, 64)
    whole = q @ k.transpose(-1, -2) / math.sqrt(6)
    torch.testing.assert_close(found.scores, whole[:, :, shown])
    assert found.seen.tolist() == [[s <= t for s in range(200)] for t in shown]
    torch.testing.assert_close(of_softmax(whole).scores, whole[:, :, shown])


@pytest.mark.parametrize(("of_q", "of_k"), [(1, 4), (4, 1), (4, 2), (4, 4)])
def test_heads_are_shared_as_torch_shares_them(of_q, of_k):
    q, k = random(2, of_q, 5, 6), random(2, of_k, 5, 6, seed=1)
    values = torch.eye(5).expand(2, max(of_q, of_k), 5, 5)
    several = {} if 1 in (of_q, of_k) or of_q == of_k else {"enable_gqa": True}
    values = values[:, :of_k] if several else values
    matrix = F.scaled_dot_product_attention(q, k, values, **several)
    torch.testing.assert_close(of_queries_and_keys(q, k).scores.softmax(-1), matrix)


def test_autocast_does_not_round_logits():
    q, k = heads()
    plain = of_queries_and_keys(q, k)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(of_queries_and_keys(q, k).scores, plain.scores)


def test_each_head_has_statistics_of_its_own():
    q, k = heads()
    whole = of_queries_and_keys(q, k, is_causal=True)
    found = whole.vectors(heads=True)
    for h in range(4):
        alone = of_queries_and_keys(q[:, [h]], k[:, [h]], is_causal=True).vectors()
        for name, wanted in alone.items():
            torch.testing.assert_close(found.pop(f"{name}.h{h}"), wanted, equal_nan=True)
    assert [*found] == [*whole.vectors()] == ["scores", "attn_rows"]


def test_queries_that_see_no_key_have_no_entropy_and_nan_counts_as_not_finite():
    q, k = heads()
    mask = torch.ones(2, 1, 5, 5).bool()
    mask[:, :, 3] = False
    q[0, 0, 0, 0] = math.nan
    scores, entropy = of_queries_and_keys(q, k, mask).vectors().values()
    assert entropy[INDEX["numel"]] == 2 * 4 * 4
    assert (scores[INDEX["numel"]], scores[INDEX["nonfinite"]]) == (2 * 4 * 4 * 5, 5)
    x = torch.tensor([[[1.0, math.nan, torch.finfo(torch.float32).min, -math.inf]]])
    assert of_softmax(x).seen.tolist() == [[[True, True, False, False]]]


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("other", [{}, {"kdim": 5, "vdim": 7}, {"bias": False}])
@pytest.mark.parametrize("mask", ["none", "shared", "own", "added", "padding", "both"])
def test_logits_of_torchs_module_give_the_weights_that_it_returns(mask, other, batch_first):
    torch.manual_seed(0)
    module = nn.MultiheadAttention(8, 2, batch_first=batch_first, **other)
    x = [random(3, 5, 8), random(3, 6, other.get("kdim", 8), seed=1)]
    x.append(random(3, 6, other.get("vdim", 8), seed=2))
    args = tuple(t if batch_first else t.transpose(0, 1) for t in x)
    hidden = random(6, 5, 6, seed=3) > 0.5
    hidden[..., 0] = False
    padding = torch.arange(6) > torch.tensor([5, 3, 4])[:, None]
    kwargs = {
        "none": {},
        "shared": {"attn_mask": hidden[0]},
        "own": {"attn_mask": hidden},
        "added": {"attn_mask": random(5, 6, seed=4)},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": hidden, "key_padding_mask": padding},
    }[mask]
    weights = module(*args, **kwargs, average_attn_weights=False)[1]
    found = of_multihead(module, args, kwargs)
    seen = found.seen.expand(found.scores.shape)
    torch.testing.assert_close(found.scores.masked_fill(~seen, -math.inf).softmax(-1), weights)
    assert (seen == (weights > 0)).all()


def test_a_module_that_adds_keys_of_its_own_is_left_out():
    x = (random(3, 5, 8),) * 3
    assert of_multihead(nn.MultiheadAttention(8, 2, add_bias_kv=True), x, {}) is None
    assert of_multihead(nn.MultiheadAttention(8, 2, add_zero_attn=True), x, {}) is None


class Wrapped(nn.Module):
    """Attention around torch's module."""

    def __init__(self):
        super().__init__()
        self.inside = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.inside(x, x, x, attn_mask=mask, need_weights=False)[0]


def test_logits_of_a_module_around_torchs_are_recorded(tmp_path):
    model = gpt()
    inside = []
    for block in model.transformer.h:
        block.attn = Wrapped()
        block.attn.inside.register_forward_hook(
            lambda m, args, kwargs, y: inside.append(of_multihead(m, args, kwargs)),
            with_kwargs=True,
        )
    with stability.record(model, tmp_path / "run", "gpt2"):
        model(random(3, 5, 8)).sum().backward()
    for layer, logits in enumerate(inside):
        (row,) = rows(tmp_path / "run", site="scores", layer=layer).to_dict("records")
        assert row["numel"] == 3 * 2 * 15
        shown = logits.scores.detach()[logits.seen.expand(logits.scores.shape)]
        assert row["absmax"] == pytest.approx(float(shown.abs().max()))


def test_rows_of_heads_are_recorded_where_they_are_asked_for(tmp_path):
    model = gpt()
    with stability.record(model, tmp_path / "run", "gpt2", heads=True):
        model(random(3, 5, 8)).sum().backward()
    for site in ("scores", "attn_rows"):
        whole = rows(tmp_path / "run", site=site, layer=1)["rms"].item()
        each = [rows(tmp_path / "run", site=f"{site}.h{h}", layer=1)["rms"].item() for h in (0, 1)]
        assert each[0] != each[1]
        assert math.hypot(*each) / math.sqrt(2) == pytest.approx(whole)
    assert rows(tmp_path / "run", site="scores.h2").empty


def test_attention_of_torchs_encoder_and_decoder_is_recorded(tmp_path):
    with stability.record(model := TorchModel(), tmp_path / "run", "torch"):
        model(random(3, 5, 8)).sum().backward()
    found = rows(tmp_path / "run", site="scores")
    assert found[["layer", "sublayer"]].to_numpy().tolist() == [
        [layer, f"{side}_attn" if side == "decoder.cross" else f"{side}.attn"]
        for layer in range(2)
        for side in ("decoder", "decoder.cross", "encoder")
    ]
    assert (found["numel"] == 3 * 2 * 5 * 5).all()


def test_logits_that_overflow_come_before_what_attention_returns(tmp_path):
    model = gpt()
    with torch.no_grad():
        model.transformer.h[1].attn.q.weight.fill_(1e30)
        model.transformer.h[1].attn.k.weight.fill_(1e30)
    with stability.record(model, tmp_path / "run", "gpt2") as recording:
        model(random(3, 5, 8)).sum().backward()
    assert recording.first_bad | {"step": 0} == {
        "step": 0, "layer": 1, "sublayer": "attn", "site": "scores", "kind": "act",
    }  # fmt: skip


def gpt(fused=True, causal=True):
    torch.manual_seed(0)
    names = ("ln_1", "attn", "ln_2", "mlp")
    return Model([PreNorm(*names, fused=fused, causal=causal) for _ in range(2)], "transformer.h")


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("fused", [True, False])
def test_rows_are_those_of_a_loop_over_pairs(tmp_path, fused, causal):
    model, x = gpt(fused, causal), random(3, 5, 8)
    reads = []
    for block in model.transformer.h:
        block.attn.register_forward_pre_hook(lambda m, args: reads.append((m, args[0].detach())))
    with stability.record(model, tmp_path / "run", "gpt2"):
        model(x).square().mean().backward()
    for layer, (attention, x_BTD) in enumerate(reads):
        scores, entropies = pairs(attention, x_BTD.double(), causal)
        for site, wanted in (("scores", scores), ("attn_rows", entropies)):
            (row,) = rows(tmp_path / "run", layer=layer, site=site).to_dict("records")
            assert (row["sublayer"], row["kind"]) == ("attn", "act")
            found = twin(torch.tensor(wanted, dtype=torch.float64))
            for name in STATISTICS:
                assert row[name] == pytest.approx(found[name], rel=1e-4, abs=1e-6), (site, name)


def pairs(attention, x_BTD, causal):
    """Logits and entropies, pair by pair."""
    width, scores, entropies = 4, [], []
    for x_TD in x_BTD:
        q_TD, k_TD = (
            x_TD @ m.weight.detach().double().T + m.bias.detach().double()
            for m in (attention.q, attention.k)
        )
        for head in range(2):
            part = slice(head * width, (head + 1) * width)
            for t in range(len(x_TD)):
                seen = range(t + 1) if causal else range(len(x_TD))
                row = [float(q_TD[t, part] @ k_TD[s, part]) / math.sqrt(width) for s in seen]
                total = sum(map(math.exp, row))
                scores += row
                entropies.append(
                    -sum(math.exp(r) / total * math.log(math.exp(r) / total) for r in row)
                )
    return scores, entropies


@pytest.mark.parametrize("attention", ["fused", "math"])
@pytest.mark.parametrize("causal", [True, False])
def test_the_built_in_gpt_gets_the_rows_that_its_own_recorder_writes(tmp_path, attention, causal):
    config = make_config(
        {"train.steps": 0, "model.attention": attention, "model.causal": causal}, dtype="fp64"
    )
    ran = run(config, tmp_path / "own")
    model = build.model_of(config, ran.info["data"]["vocab"])
    x, y = map(
        torch.from_numpy, ran.built.source.batch(0, config.train.batch_size, 8, config.seed, 0)
    )
    with stability.record(model, tmp_path / "run", "auto"):
        (loss_sum(model(x), y) / (y >= 0).sum()).backward()
    names = ["scores", "attn_rows"]
    own = ran.layers[ran.layers["site"].isin(names)].astype({"site": str, "sublayer": str})
    own = own.sort_values(["layer", "sublayer", "site"]).reset_index(drop=True)
    found = rows(tmp_path / "run")
    found = found[found["site"].isin(names)].reset_index(drop=True)
    assert len(own) == 4
    columns = ["layer", "sublayer", "site", *STATISTICS]
    pd.testing.assert_frame_equal(found[columns], own[columns], check_dtype=False, rtol=1e-10)


def trained(model, record_to=None, every=1, steps=3):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recording = record_to and stability.record(model, record_to, "gpt2", every=every)
    for step in range(steps):
        model(random(3, 5, 8, seed=step)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    if recording:
        recording.close()
    return [p.detach().clone() for p in model.parameters()]


@pytest.mark.parametrize("fused", [True, False])
def test_training_is_bitwise_the_same(tmp_path, fused):
    plain, recorded = trained(gpt(fused)), trained(gpt(fused), tmp_path / "run")
    assert all(map(torch.equal, plain, recorded))
    assert not _get_current_function_mode_stack()


class Spying(Attention):
    """Attention that looks at the modes it runs under."""

    depths: list

    def forward(self, x):
        self.depths.append(len(_get_current_function_mode_stack()))
        return super().forward(x)


def test_nothing_watches_steps_that_are_not_recorded_nor_passes_without_gradient(tmp_path):
    model = gpt()
    model.transformer.h[0].attn = spying = Spying()
    spying.depths = []
    trained(model, tmp_path / "run", every=2, steps=3)
    assert spying.depths == [1, 0, 1]
    with torch.no_grad(), stability.record(model, tmp_path / "other", "gpt2", overwrite=True):
        model(random(3, 5, 8))
    assert spying.depths[-1] == 0


class Raising(Attention):
    error: type = RuntimeError

    def forward(self, x):
        raise self.error


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_no_mode_is_left_behind_when_attention_raises(tmp_path, error):
    model = gpt()
    model.transformer.h[1].attn = Raising()
    model.transformer.h[1].attn.error = error
    with pytest.raises(error), stability.record(model, tmp_path / "run", "gpt2"):
        model(random(3, 5, 8))
    assert not _get_current_function_mode_stack()


def test_an_interrupted_pass_does_not_disturb_the_next(tmp_path):
    model = gpt()
    sound = model.transformer.h[1].attn
    with stability.record(model, tmp_path / "run", "gpt2"):
        forward, sound.forward = sound.forward, Raising().forward
        Raising.error, before = KeyboardInterrupt, Raising.error
        with pytest.raises(KeyboardInterrupt):
            model(random(3, 5, 8))
        Raising.error, sound.forward = before, forward
        model(random(3, 5, 8)).sum().backward()
        assert not _get_current_function_mode_stack()
    assert len(rows(tmp_path / "run", site="scores")) == 2


class Other(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class Opening(Attention):
    """Attention that leaves a mode of its own open."""

    def forward(self, x):
        y = super().forward(x)
        self.mode = Other()
        self.mode.__enter__()
        return y


def test_modes_of_the_model_stay(tmp_path):
    model = gpt()
    model.transformer.h[1].attn = opening = Opening()
    with stability.record(model, tmp_path / "run", "gpt2"):
        model(random(3, 5, 8)).sum().backward()
    assert _get_current_function_mode_stack() == [opening.mode]
    opening.mode.__exit__(None, None, None)


def test_reentrant_checkpoints_are_recorded(tmp_path):
    class Checkpointed(Model):
        def forward(self, x):
            for block in self.transformer.h:
                x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=True)
            return x

    found = []
    for make in (Model, Checkpointed):
        torch.manual_seed(0)
        model = make([PreNorm("ln_1", "attn", "ln_2", "mlp") for _ in range(2)], "transformer.h")
        folder = tmp_path / make.__name__
        with stability.record(model, folder, "gpt2"):
            model(random(3, 5, 8).requires_grad_()).square().mean().backward()
        found.append(rows(folder, site="scores")[[*STATISTICS, "layer"]])
    assert len(found[0]) == 2
    pd.testing.assert_frame_equal(*found)


def test_micro_batches_are_merged(tmp_path):
    model = gpt()
    whole = random(4, 5, 8)
    for name, parts in (("one", [whole]), ("two", whole.split([1, 3]))):
        with stability.record(model, tmp_path / name, "gpt2"):
            for part in parts:
                model(part).sum().backward()
    found = [rows(tmp_path / n, site="scores")[list(STATISTICS)] for n in ("one", "two")]
    pd.testing.assert_frame_equal(*found)


def test_attention_without_a_softmax_is_said_once(tmp_path):
    class Linear(Attention):
        def forward(self, x):
            return self.o(self.q(x) * self.k(x).sum(1, keepdim=True))

    model = gpt()
    for block in model.transformer.h:
        block.attn = Linear()
    with (
        pytest.warns(RuntimeWarning, match="attention logits of Linear are not seen") as warned,
        stability.record(model, tmp_path / "run", "gpt2"),
    ):
        model(random(3, 5, 8)).sum().backward()
    assert len(warned) == 1
    assert rows(tmp_path / "run", site="scores").empty
    assert state(tmp_path / "run")["status"] == "completed"


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's compiler
@pytest.mark.parametrize("fused", [True, False])
def test_compiled_attention_is_left_alone_and_this_is_said(tmp_path, fused):
    torch._dynamo.reset()
    x = random(3, 5, 8)
    plain = torch.compile(gpt(fused), backend="aot_eager")(x)
    torch._dynamo.reset()
    model = gpt(fused)
    with (
        pytest.warns(RuntimeWarning, match="attention logits of Attention are not seen: compiled"),
        stability.record(model, tmp_path / "run", "gpt2"),
    ):
        found = torch.compile(model, backend="aot_eager")(x)
        found.sum().backward()
    assert torch.equal(plain, found)
    assert not rows(tmp_path / "run", site="branch_out", sublayer="attn", kind="act").empty
    assert rows(tmp_path / "run", site="scores").empty


def test_nothing_watches_code_that_the_compiler_gave_up_on():
    """It runs as it is, but functions that it calls are compiled: the watch's own would be too."""
    torch._dynamo.reset()
    module = Attention()
    hooks = AttentionHooks([module], ModuleHooks(), lambda: True, False, Guard(lambda: None))
    begin = torch._dynamo.disable(hooks._before, recursive=False)
    depths = []

    @torch.compile(backend="eager")
    def compiled(x):
        torch._dynamo.graph_break()
        begin(module, ())
        return x + 1

    compiled(random(3))
    depths.append(len(_get_current_function_mode_stack()))
    begin(module, ())
    depths.append(len(_get_current_function_mode_stack()))
    hooks.reset()
    assert depths == [0, 1]


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch's compiler
def test_a_compiled_function_inside_attention_does_not_see_the_watch(tmp_path):
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x.softmax(-1) * 2, backend="eager")

    class Part(Attention):
        def forward(self, x):
            return super().forward(compiled(x) / 2)

    model = gpt()
    model.transformer.h[0].attn = Part()
    with stability.record(model, tmp_path / "run", "gpt2"):
        model(random(3, 5, 8)).sum().backward()
    assert len(rows(tmp_path / "run", site="scores")) == 2


@pytest.mark.parametrize("kinds", [["grad"], ["act"]])
def test_logits_are_activations_without_gradient(tmp_path, kinds):
    with stability.record(gpt(), tmp_path / "run", "gpt2", kinds=kinds) as recording:
        recording._hooks.model(random(3, 5, 8)).sum().backward()
    assert len(rows(tmp_path / "run", site="scores")) == (2 if kinds == ["act"] else 0)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "t5"])
def test_entropies_of_transformers_are_those_of_the_attention_that_they_return(
    name, implementation, tmp_path
):
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    model = MODELS[name](transformers).eval()
    x = hf_tokens()
    x["attention_mask"] = (torch.arange(6) < torch.tensor([6, 4, 5])[:, None]).long()
    model.set_attn_implementation("eager")
    with torch.no_grad():
        returned = model(**x, output_attentions=True)
    model.set_attn_implementation(implementation)
    with stability.record(model, tmp_path / "run", name):
        model(**x).loss.backward()
    wanted = {"attn": "attentions"}
    if name == "t5":
        wanted = {"encoder.attn": "encoder_attentions", "decoder.attn": "decoder_attentions"}
        wanted["decoder.cross_attn"] = "cross_attentions"
    for sublayer, field in wanted.items():
        for layer, matrix in enumerate(getattr(returned, field)):
            place = {"layer": layer, "sublayer": sublayer}
            (row,) = rows(tmp_path / "run", site="attn_rows", **place).to_dict("records")
            entropy = torch.special.entr(matrix).sum(-1)
            assert row["numel"] == entropy.numel()
            assert row["mean"] == pytest.approx(float(entropy.mean()), rel=1e-4)
            (row,) = rows(tmp_path / "run", site="scores", **place).to_dict("records")
            assert row["numel"] == (matrix > 0).sum()
