"""Sources are what they say they are, and what is no source is refused."""

import math
import sys
from pathlib import Path

import numpy as np
import pytest

from stability.config import instantiate
from stability.config.knobs import ConfigError
from stability.parts.data import Markov, PyDocs, Text, Tokens, source, vocabulary
from tiny import make_config


def test_the_chains_entropy_rate_is_what_it_shows_in_the_long_run():
    chain = Markov(16)
    unigram, bigram = chain.entropies
    assert chain.entropy_rate == pytest.approx(bigram, abs=0.005)
    assert chain.entropy_rate < unigram < math.log(15)
    assert chain.info()["entropy_rate"] == chain.entropy_rate


def test_the_chain_is_the_same_on_every_machine():
    chain = Markov(64)
    assert chain.sha256 == "74e7628966d1aaff2cb497243f3c6f86ab578df38e8abde7b39d529215505a29"
    assert chain.entropy_rate == pytest.approx(2.671010698428, abs=1e-9)


def test_token_files_pad_with_a_symbol_of_their_vocabulary(tmp_path):
    path = write(tmp_path / "few.bin", np.arange(100, dtype="<u2").tobytes())
    assert Tokens(path, None, 100).pad == 99
    assert Tokens(path, None, 50257).pad == Tokens(path, None, 60000).pad == 50256


def test_the_chain_never_visits_the_symbol_that_padding_uses():
    chain = Markov(16)
    assert set(np.unique(chain.train)) == set(range(15))
    assert (chain.vocab, chain.pad) == (16, 15)


def test_the_embedded_text_is_english_and_needs_no_file():
    docs = PyDocs()
    text = bytes(docs.train[:20_000]).decode()
    assert " the " in text
    assert 300_000 < len(docs.train) + len(docs.val) < 1_000_000
    assert len(docs.val) == (len(docs.train) + len(docs.val)) // 10


def write(path, content: bytes) -> str:
    path.write_bytes(content)
    return str(path)


def test_text_is_its_bytes_the_last_tenth_for_validation(tmp_path):
    text = "Größe, naïve, 1000 words. " * 20
    found = Text(write(tmp_path / "a.txt", text.encode()), None)
    assert bytes(np.concatenate([found.train, found.val])) == text.encode()
    assert len(found.val) == len(text.encode()) // 10
    both = Text(write(tmp_path / "a.txt", b"one two"), write(tmp_path / "b.txt", b"three"))
    assert (bytes(both.train), bytes(both.val)) == (b"one two", b"three")


def llmc(tokens: np.ndarray, magic: int = 20240520, version: int = 1) -> bytes:
    header = np.zeros(256, dtype="<i4")
    header[:3] = magic, version, len(tokens)
    return header.tobytes() + tokens.astype("<u2").tobytes()


@pytest.mark.parametrize("format", ["nanogpt", "llm.c"])
def test_token_files_of_both_formats_are_read_and_memory_mapped(tmp_path, format):
    tokens = np.random.default_rng(0).integers(0, 50257, 1000)
    content = llmc(tokens) if format == "llm.c" else tokens.astype("<u2").tobytes()
    path = write(tmp_path / "train.bin", content)
    found = Tokens(path, None, 50257)
    assert np.array_equal(np.concatenate([found.train, found.val]), tokens)
    assert isinstance(found.train, np.memmap)
    assert len(found.val) == 100
    split = Tokens(path, write(tmp_path / "val.bin", tokens[:50].astype("<u2").tobytes()), 50257)
    assert (len(split.train), len(split.val)) == (1000, 50)


def test_a_file_with_a_header_may_hold_a_single_token(tmp_path):
    one = write(tmp_path / "one.bin", llmc(np.array([3])))
    assert Tokens(one, one, 4).train.tolist() == [3]


def test_the_same_tokens_hash_the_same_in_every_format(tmp_path):
    tokens = 1 + np.arange(200) % 50
    paths = [
        write(tmp_path / "a.bin", llmc(tokens)),
        write(tmp_path / "b.bin", tokens.astype("<u2").tobytes()),
        write(tmp_path / "c.txt", tokens.astype("u1").tobytes()),
    ]
    hashes = {Tokens(path, None, 64).sha256 for path in paths[:2]} | {Text(paths[2], None).sha256}
    assert len(hashes) == 1


DAMAGED = {
    "empty": (b"", "is empty"),
    "odd": (b"abc", "an odd number cannot be uint16"),
    "cut": (llmc(np.arange(100))[:-10], "truncated"),
    "headless": (llmc(np.arange(100))[:600], "truncated"),
    "hollow": (llmc(np.arange(0)), "header says 0 tokens"),
    "negative": (
        np.array([20240520, 1, -5, *range(300)], "<i4").tobytes(),
        "header says -5 tokens",
    ),
    "newer": (llmc(np.arange(100), version=2), "another version"),
    "uint32": (np.arange(100, dtype="<u4").tobytes(), "every second one is 0: is it uint32"),
    "int64": (np.arange(100, dtype="<i8").tobytes(), "every second one is 0: is it uint32"),
    "big-endian": (np.arange(100, dtype=">u4").tobytes(), "every second one is 0: is it uint32"),
    "large vocabulary": (
        np.arange(0, 128_000, 999, dtype="<u4").tobytes(),
        "every second one is at most 1: is it uint32",
    ),
    "npy": (b"\x93NUMPY\x01\x00" + bytes(200), "is an .npy file"),
    "npz": (b"PK\x03\x04" + bytes(200), "is a zip archive"),
    "gzip": (b"\x1f\x8b" + bytes(200), "is a gzip file"),
    "parquet": (b"PAR1" + bytes(200), "is a parquet file"),
    "llm.c, uint32": (np.array([20240801, 7, 9], "<i4").tobytes(), "llm.c's file of uint32"),
    "foreign": (np.array([5, 60_000, 7], "<u2").tobytes(), "holds token 60000"),
}


@pytest.mark.parametrize(("content", "cause"), DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_token_file_is_refused_with_its_cause(tmp_path, content, cause):
    path = write(tmp_path / "train.bin", content)
    with pytest.raises(ConfigError, match=cause) as refused:
        Tokens(path, None, 50257)
    assert refused.value.key == "data.path"
    assert refused.value.value == path


def test_a_damaged_validation_file_is_refused_under_its_own_key(tmp_path):
    good = write(tmp_path / "train.bin", np.arange(100, dtype="<u2").tobytes())
    with pytest.raises(ConfigError) as refused:
        Tokens(good, str(tmp_path / "absent.bin"), 50257)
    assert refused.value.key == "data.val_path"


def test_what_is_no_text_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="must be UTF-8 text"):
        Text(write(tmp_path / "a.txt", b"good until \xff here"), None)
    for encoding in ("utf-16-le", "utf-16-be", "utf-32-le"):
        with pytest.raises(ConfigError, match=r"no byte 0: is it UTF-16\?"):
            Text(write(tmp_path / "a.txt", "plain words".encode(encoding)), None)
    with pytest.raises(ConfigError, match=r"must name a file$"):
        Text(str(tmp_path), None)
    with pytest.raises(ConfigError, match="that exists"):
        Text(str(tmp_path / "absent"), None)
    with pytest.raises(ConfigError, match="must name a file"):
        Text(None, None)


def test_what_the_model_cannot_take_is_refused(tmp_path):
    path = write(tmp_path / "a.txt", b"forty letters, nothing more than forty..")
    short = {"data.path": path, "model.context": 8}
    with pytest.raises(ConfigError, match="must be < 4, the number of validation tokens"):
        source(make_config(short, data="text"))
    with pytest.raises(ConfigError, match="must be auto or >= 256"):
        source(make_config({"model.vocab": 100}))
    for vocab in (2, 2049):
        with pytest.raises(ConfigError, match=f"data.vocab={vocab}: must be 3 to 2,048"):
            source(make_config({"data.vocab": vocab}, data="markov"))


def test_the_validation_tokens_must_be_more_than_the_context(tmp_path):
    config = {"data.path": write(tmp_path / "a.txt", b"forty" * 8)}
    assert len(source(make_config(config | {"model.context": 3}, data="text")).val) == 4
    with pytest.raises(ConfigError, match="must be < 4, the number of validation tokens"):
        source(make_config(config | {"model.context": 4}, data="text"))
    config |= {"data.val_path": write(tmp_path / "b.txt", b"long" * 99), "model.context": 40}
    with pytest.raises(ConfigError, match="must be < 40, the number of training tokens"):
        source(make_config(config, data="text"))


def test_the_model_may_have_as_many_symbols_as_the_data_and_a_chain_as_few_as_three():
    assert source(make_config({"model.vocab": 256})).vocab == 256
    with pytest.raises(ConfigError, match="must be auto or >= 256"):
        source(make_config({"model.vocab": 255}))
    chain = source(make_config({"data.vocab": 3}, data="markov"))
    assert set(np.unique(chain.train)) == {0, 1}
    assert len(chain.train) + len(chain.val) == 500_000


def test_a_token_must_be_below_the_vocabulary(tmp_path):
    path = write(tmp_path / "few.bin", np.arange(100, dtype="<u2").tobytes())
    with pytest.raises(ConfigError, match=r"holds token 99; data\.vocab=99 allows up to 98"):
        Tokens(path, None, 99)


def test_an_empty_file_is_refused_as_text_too(tmp_path):
    with pytest.raises(ConfigError, match="is empty"):
        Text(write(tmp_path / "a.txt", b""), None)


def test_a_file_that_may_not_be_opened_is_refused_with_the_systems_words(tmp_path, monkeypatch):
    def refuse(*args):
        raise PermissionError(13, "Permission denied")

    path = write(tmp_path / "a.txt", b"one two three")
    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(ConfigError, match=r"cannot be read \(Permission denied\)"):
        Text(path, None)


def test_the_home_folder_may_be_abbreviated(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "a.txt", b"one two three")
    assert len(Text("~/a.txt", None).train) == 12


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("pass", "Mine has no attribute 'train'"),
        ("train = val = np.zeros(999)", "1-D arrays of whole numbers"),
        ("train = val = np.zeros((9, 9), int)", "1-D arrays of whole numbers"),
        ("train = val = np.zeros(999, int); vocab, pad = 9, 9", "pads with 9, but has 9 symbols"),
        ("train = val = np.zeros(999, int); vocab, pad = 9, -1", "pads with -1, but has 9 symbols"),
        (
            "train, val = np.zeros(999, int), np.zeros(999); vocab = 9",
            "1-D arrays of whole numbers",
        ),
    ],
)
def test_a_source_that_is_not_whole_is_refused(body, said, tmp_path, monkeypatch):
    monkeypatch.setattr(instantiate, "_allowed", {"stability"})
    monkeypatch.syspath_prepend(tmp_path)
    lines = ["import numpy as np", "from stability.parts.data import Source", "class Mine(Source):"]
    (tmp_path / "lacking.py").write_text("\n".join([*lines, f"    {body}\n"]))
    instantiate.trust(tmp_path)
    monkeypatch.delitem(sys.modules, "lacking", raising=False)
    with pytest.raises(ConfigError, match=r"data\.build") as refused:
        source(make_config({"data.build": {"_target_": "lacking.Mine"}}))
    assert said in refused.value.reason


def test_a_file_that_changed_is_read_again(tmp_path):
    path = tmp_path / "a.txt"
    config = make_config({"data.path": write(path, b"one " * 100)}, data="text")
    first = source(config).sha256
    assert source(config).sha256 == first
    write(path, b"two. " * 100)
    assert source(config).sha256 != first


def test_the_vocabulary_is_the_datas_or_the_models():
    config = make_config(data="markov")
    assert vocabulary(config, source(config)) == 64
    config = make_config({"model.vocab": 100}, data="markov")
    assert vocabulary(config, source(config)) == 100


@pytest.mark.parametrize(
    "tokens", [[0, 0, 0, 0], [5], [1, 300, 2, 400, 3, 500], [17, 300] * 50, [3, 200] * 50]
)
def test_rare_or_regular_tokens_are_no_wider_numbers(tmp_path, tokens):
    path = write(tmp_path / "a.bin", np.array(tokens, dtype="<u2").tobytes())
    made = Tokens(path, None, 50257)
    assert [*made.train, *made.val] == tokens
