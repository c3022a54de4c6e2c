"""Small models of transformers, and a batch for those that read tokens."""

import torch


def gpt2(transformers):
    config = transformers.GPT2Config(
        n_layer=2, n_embd=16, n_head=2, vocab_size=50, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "intermediate_size": 32}
SMALL |= {"num_attention_heads": 4}


def llama(transformers):
    config = transformers.LlamaConfig(**SMALL, num_key_value_heads=2, vocab_size=50)
    return transformers.LlamaForCausalLM(config)


def bert(transformers):
    return transformers.BertForMaskedLM(transformers.BertConfig(**SMALL, vocab_size=50))


def t5(transformers):
    config = transformers.T5Config(
        vocab_size=50,
        d_model=16,
        d_kv=4,
        d_ff=32,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    return transformers.T5ForConditionalGeneration(config)


def vit(transformers):
    return transformers.ViTForImageClassification(
        transformers.ViTConfig(**SMALL, image_size=8, patch_size=4)
    )


def tokens():
    ids = torch.randint(50, (3, 6), generator=torch.Generator().manual_seed(0))
    return {"input_ids": ids, "labels": ids}


MODELS = {"gpt2": gpt2, "llama": llama, "bert": bert, "t5": t5, "vit": vit}
