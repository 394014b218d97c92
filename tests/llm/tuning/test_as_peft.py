"""Losses, merged logits and files equal those of peft on PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import directory
from tests.llm.tuning.test_tuner import opened, random_adapter, rows

from treadle.llm.models import build
from treadle.llm.models.stacked import Stacked
from treadle.llm.tuning import (
    Adapter,
    Lora,
    Schedule,
    Tuner,
    fresh,
    merged,
    read_adapter,
    write_adapter,
)

pytestmark = [
    pytest.mark.llm,
    # peft asks transformers by a name that is on its way out.
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]

SIZES = {
    **{"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64},
    **{"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
}
TEXTS = [np.random.default_rng(i).integers(2, 97, 20).tolist() for i in range(4)]


def made(family: str, **changes: Any) -> Any:
    import torch
    import transformers

    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**SIZES, **changes)
    model = getattr(transformers, f"{family}ForCausalLM")(config).float()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(8)
    return model


@pytest.mark.parametrize(
    ("family", "lora"),
    [
        ("Llama", {"r": 4, "lora_alpha": 8, "target_modules": "all-linear"}),
        (
            "Qwen2",
            {"r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ["q_proj", "v_proj"]},
        ),
        ("Phi3", {"r": 4, "target_modules": ["qkv_proj", "gate_up_proj", "o_proj"]}),
        ("Qwen3", {"r": 6, "rank_pattern": {"k_proj": 3}, "alpha_pattern": {"up_proj": 20}}),
    ],
)
def test_twenty_steps(tmp_path: Any, family: str, lora: dict[str, Any]) -> None:
    import peft
    import torch

    changes = {"head_dim": 8} if family == "Qwen3" else {}
    base = made(family, **changes)
    base.save_pretrained(tmp_path / "base")
    lora.setdefault("target_modules", ["q_proj", "k_proj", "up_proj", "down_proj"])
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="CAUSAL_LM", **lora))
    model.save_pretrained(tmp_path / "first")

    given = opened(directory(tmp_path / "base"))
    ours = build(given)
    adapter = read_adapter(tmp_path / "first", ours.stack.products())
    schedule = Schedule(5e-3, 3, 20, "linear")
    tuner = Tuner(ours, adapter, schedule, weight_decay=0.01, clip=1.0)

    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1.0, weight_decay=0.01)
    wanted, found = [], []
    for step in range(20):
        pair = [TEXTS[(2 * step + i) % 4][: 20 - 5 * i] for i in range(2)]
        found.append(tuner.step([rows(pair, 48)]))
        total = sum(len(t) - 1 for t in pair)
        optimizer.param_groups[0]["lr"] = schedule.at(step)
        optimizer.zero_grad()
        loss = torch.zeros(())
        for text in pair:
            logits = model(torch.tensor([text])).logits[0, :-1]
            one = torch.nn.functional.cross_entropy(logits, torch.tensor(text[1:]), reduction="sum")
            loss = loss + one / total
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        wanted.append(float(loss.detach()))
    assert found[-1] < found[0] - 0.3
    np.testing.assert_allclose(found, wanted, atol=1e-4)

    # What we write, peft reads, and merges to the same.
    result = tuner.adapter()
    write_adapter(tmp_path / "ours", result, str(tmp_path / "base"))
    theirs = peft.PeftModel.from_pretrained(made(family, **changes), tmp_path / "ours")
    whole = theirs.merge_and_unload()
    tokens = np.array([TEXTS[0]], np.int32)
    with torch.no_grad():
        logits = whole(torch.tensor(tokens)).logits.numpy()
    again = build(merged(given, result))
    cache = again.cache(1, 20)
    mine = again.step(tokens, cache, [0], [20], all=True).numpy()
    np.testing.assert_allclose(mine, logits, atol=1e-4 * np.abs(logits).max())


EXPERTS: dict[str, dict[str, Any]] = {
    "Mixtral": {"num_local_experts": 4},
    "Olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
    "Qwen3Moe": {
        **{"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
        "head_dim": 8,
    },
}
PARTS = ("w1", "w2", "w3", "gate_proj", "up_proj", "down_proj")


def logits_of(model: Any, tokens: list[int], **more: Any) -> Any:
    cache = model.cache(1, len(tokens))
    return model.step([tokens], cache, [0], [len(tokens)], all=True, **more).numpy()[0]


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_as_parameters(tmp_path: Any, family: str) -> None:
    """What peft trains of experts today: parameters that hold all of them."""
    import peft
    import torch

    base = made(family, **EXPERTS[family])
    base.save_pretrained(tmp_path / "base")
    config = peft.LoraConfig(
        **{"r": 3, "lora_alpha": 5, "target_modules": ["q_proj"], "task_type": "CAUSAL_LM"},
        target_parameters=["mlp.experts.gate_up_proj", "mlp.experts.down_proj"],
    )
    theirs = peft.get_peft_model(base, config)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2)
    theirs.save_pretrained(tmp_path / "adapter")
    with torch.no_grad():
        wanted = theirs(torch.tensor(TEXTS[:1])).logits[0].numpy()
    given = opened(directory(tmp_path / "base"))
    model = build(given)
    plain = logits_of(model, TEXTS[0])
    adapter = read_adapter(tmp_path / "adapter", model.stack.products())
    assert all(adapter.lora.reaches(module) for module in adapter.pairs)
    model.adapters = Stacked([adapter.scaled()])
    close = {"atol": 1e-4 * np.abs(wanted).max(), "rtol": 0}
    np.testing.assert_allclose(logits_of(model, TEXTS[0], adapters=[1]), wanted, **close)
    np.testing.assert_allclose(logits_of(build(merged(given, adapter)), TEXTS[0]), wanted, **close)
    assert np.abs(wanted - plain).max() > 1e3 * close["atol"]


@pytest.mark.parametrize("family", EXPERTS)
def test_experts_learn(tmp_path: Any, family: str) -> None:
    """Beside PyTorch, where the matrices of experts have what A and B of each make added."""
    import torch

    base = made(family, **EXPERTS[family])
    base.save_pretrained(tmp_path / "base")
    given = opened(directory(tmp_path / "base"))
    ours = build(given)
    first = fresh(Lora(3, 6.0, targets=("q_proj", *PARTS)), ours.stack.products())
    schedule = Schedule(2e-2, 2, 10, "linear")
    tuner = Tuner(ours, first, schedule, weight_decay=0.01, clip=1.0)
    pairs = {n: [torch.tensor(x, requires_grad=True) for x in p] for n, p in first.pairs.items()}
    changes = {module: (a, b) for module, (a, b) in pairs.items()}
    count = next(v for k, v in EXPERTS[family].items() if "experts" in k)

    def changed() -> dict[str, Any]:
        def more(module: str) -> Any:
            a, b = changes[module]
            return b @ a * first.lora.scale_of(module)

        found = {}
        for name, parameter in base.named_parameters():
            module = name.removesuffix(".weight")
            if module in changes:
                found[name] = parameter.detach() + more(module)
            elif ".experts." in name:
                layer = name.split(".mlp.")[0]
                of = [m for m in changes if m.startswith(f"{layer}.") and ".experts." in m]

                def each(*endings: str, of: list[str] = of) -> Any:
                    def one(number: int, ending: tuple[str, str]) -> Any:
                        wanted = tuple(f".experts.{number}.{e}" for e in ending)
                        return more(next(m for m in of if m.endswith(wanted)))

                    return torch.stack(
                        [
                            torch.cat(
                                [one(i, e) for e in zip(endings[::2], endings[1::2], strict=True)]
                            )
                            for i in range(count)
                        ]
                    )

                if name.endswith("gate_up_proj"):
                    add = each("w1", "gate_proj", "w3", "up_proj")
                else:
                    add = each("w2", "down_proj")
                found[name] = parameter.detach() + add
        return found

    trained = [x for pair in pairs.values() for x in pair]
    optimizer = torch.optim.AdamW(trained, lr=1.0, weight_decay=0.01)
    wanted, found = [], []
    for step in range(10):
        text = TEXTS[step % 4]
        found.append(tuner.step([rows([text], 32)]))
        optimizer.param_groups[0]["lr"] = schedule.at(step)
        optimizer.zero_grad()
        out = torch.func.functional_call(base, changed(), (torch.tensor([text]),))
        loss = torch.nn.functional.cross_entropy(out.logits[0, :-1], torch.tensor(text[1:]))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        wanted.append(float(loss.detach()))
    assert found[-2] < found[0] - 0.3
    np.testing.assert_allclose(found, wanted, atol=2e-4)


# It names ranks of gates and ups by a pattern that no module has: they are parameters.
@pytest.mark.filterwarnings("ignore:.*rank_pattern keys did not match:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:.*alpha_pattern keys did not match:RuntimeWarning")
def test_experts_that_peft_reads(tmp_path: Any) -> None:
    """Of Mixtral peft reads adapters whose experts have a module each."""
    import peft
    import torch

    made("Mixtral", **EXPERTS["Mixtral"]).save_pretrained(tmp_path / "base")
    model = build(directory(tmp_path / "base"))
    adapter = random_adapter(model.stack.products(), Lora(2, 4.0, targets=("k_proj", *PARTS)))
    write_adapter(tmp_path / "ours", adapter, str(tmp_path / "base"))
    theirs = peft.PeftModel.from_pretrained(
        made("Mixtral", **EXPERTS["Mixtral"]), tmp_path / "ours"
    )
    with torch.no_grad():
        wanted = theirs(torch.tensor(TEXTS[:1])).logits[0].numpy()
    model.adapters = Stacked([adapter.scaled()])
    found = logits_of(model, TEXTS[0], adapters=[1])
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4 * np.abs(wanted).max())


def test_regular_expressions(tmp_path: Any) -> None:
    import peft

    base = made("Llama")
    base.save_pretrained(tmp_path / "base")
    expression = r".*layers\.1\..*(q|o)_proj"
    config = peft.LoraConfig(r=2, target_modules=expression, task_type="CAUSAL_LM")
    theirs = peft.get_peft_model(base, config)
    theirs.save_pretrained(tmp_path / "adapter")
    ours = build(directory(tmp_path / "base"))
    adapter = read_adapter(tmp_path / "adapter", ours.stack.products())
    assert isinstance(adapter, Adapter)
    reached = {m for m in adapter.pairs if adapter.lora.reaches(m)}
    assert (
        reached
        == set(adapter.pairs)
        == {f"model.layers.1.self_attn.{which}_proj" for which in "qo"}
    )
    assert Lora(targets=expression).reaches("model.layers.1.self_attn.q_proj")
