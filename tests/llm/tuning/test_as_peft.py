"""Losses, merged logits and files equal those of peft on PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.llm.models.small import directory
from tests.llm.tuning.test_tuner import opened, rows

from treadle.llm.models import build
from treadle.llm.tuning import Adapter, Lora, Schedule, Tuner, merged, read_adapter, write_adapter

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
