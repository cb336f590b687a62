"""Converted models train: by hand, with Trainer, with adapters, checkpointed and compiled."""

import copy
import math

import pytest
import torch
from hugging_face_models import FAMILIES, by_definition, converted, left_padded, some_tokens
from transformers import DataCollatorWithFlattening, Trainer, TrainingArguments

LENGTH = 19


def gradients(model, ids, **arguments):
    labels = ids.masked_fill(ids == 0, -100)
    model(ids, labels=labels, use_cache=False, **arguments).loss.backward()
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def assert_same_gradients(got, expected):
    assert got.keys() == expected.keys()
    for name in expected:
        torch.testing.assert_close(got[name], expected[name], rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("family", ["llama", "gemma3", "gpt-oss"])
def test_gradients_match_the_definition(family):
    model = converted(family).double()
    defined = by_definition(copy.deepcopy(model))
    ids, mask = left_padded([some_tokens(LENGTH), some_tokens(11, seed=1)])
    got = gradients(model, ids, attention_mask=mask)
    assert_same_gradients(got, gradients(defined, ids, attention_mask=mask))


@pytest.mark.parametrize(
    ("scheme", "options"), [("logn-rope", {}), ("scale-invariant-p-rope", {"learn_tau": True})]
)
def test_parameters_of_schemes_get_gradients(scheme, options):
    model = converted(scheme=scheme, **options)
    learned = {n: g for n, g in gradients(model, some_tokens(2, LENGTH)).items() if "scheme" in n}
    assert len(learned) == 2
    assert all((grad != 0).all() for grad in learned.values())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing(use_reentrant):
    model = converted("gemma3").double()
    expected = gradients(copy.deepcopy(model), some_tokens(2, LENGTH))
    model.gradient_checkpointing_enable({"use_reentrant": use_reentrant})
    model.enable_input_require_grads()
    assert_same_gradients(gradients(model.train(), some_tokens(2, LENGTH)), expected)


def trainer(model, folder, examples, **named):
    collator = named.pop("data_collator", None)
    arguments = TrainingArguments(
        output_dir=str(folder),
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        logging_steps=1,
        save_strategy="no",
        **named,
    )
    return Trainer(model=model, args=arguments, train_dataset=examples, data_collator=collator)


def examples(count):
    rows = [some_tokens(LENGTH, seed=seed % 2) for seed in range(count)]
    return [{"input_ids": row, "labels": row} for row in rows]


def test_trainer(tmp_path):
    model = converted(scheme="logn-p-rope")
    before = copy.deepcopy(model.state_dict())
    run = trainer(model, tmp_path, examples(8), max_steps=4)
    run.train()
    losses = [entry["loss"] for entry in run.state.log_history if "loss" in entry]
    assert losses[-1] < losses[0]
    for name in ("position_scheme.query_scale.scale", "q_proj.weight"):
        changed = [key for key in before if key.endswith(name)]
        assert changed
        assert all(not torch.equal(model.state_dict()[key], before[key]) for key in changed)
    run.save_model(tmp_path / "saved")
    loaded = type(model).from_pretrained(tmp_path / "saved")
    with torch.no_grad():
        ids = some_tokens(1, LENGTH)
        assert torch.equal(loaded(ids).logits, model.eval()(ids).logits)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_trains_with_trainer_and_with_adapters(family, tmp_path):
    peft = pytest.importorskip("peft")
    model = converted(family)
    before = copy.deepcopy(model.state_dict())
    run = trainer(model, tmp_path, examples(2), max_steps=1)
    assert 0 < run.train().training_loss < 20
    assert all(not torch.equal(model.state_dict()[name], before[name]) for name in before)

    config = peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=2,
        target_modules=r".*\.(q_proj|v_proj|query_key_value)",
        init_lora_weights=False,
    )
    wrapped = peft.get_peft_model(converted(family), config)
    before = copy.deepcopy(wrapped.state_dict())
    run = trainer(wrapped, tmp_path, examples(2), max_steps=1)
    assert 0 < run.train().training_loss < 20
    after = wrapped.state_dict()
    changed = {name for name in before if not torch.equal(after[name], before[name])}
    assert changed and all("lora" in name for name in changed)


def test_trainer_with_packed_sequences(tmp_path):
    """The collator passes position_ids that restart, no mask, and flash attention's arguments."""
    model = converted()
    collator = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    rows = [some_tokens(n, seed=n).tolist() for n in (5, 11, 7)]
    batch = collator([{"input_ids": row} for row in rows])
    with torch.no_grad():
        packed = model(**{k: v for k, v in batch.items() if k != "labels"}).logits
        apart = torch.cat([model(torch.tensor([row])).logits for row in rows], dim=1)
    torch.testing.assert_close(packed, apart, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="cu_seq_lens_q"):
        model(batch["input_ids"], cu_seq_lens_q=batch["cu_seq_lens_q"])
    rows = [{"input_ids": row} for row in rows]
    run = trainer(model, tmp_path, rows, max_steps=2, data_collator=collator)
    assert run.train().training_loss > 0


def test_adapters(tmp_path):
    peft = pytest.importorskip("peft")
    model = converted("qwen3")
    config = peft.LoraConfig(
        task_type="CAUSAL_LM", r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False
    )
    model.save_pretrained(tmp_path / "base")
    wrapped = peft.get_peft_model(model, config)
    run = trainer(wrapped, tmp_path, examples(4), max_steps=2)
    run.train()
    assert all("lora" in name for name, p in wrapped.named_parameters() if p.requires_grad)
    wrapped.save_pretrained(tmp_path / "adapter")

    ids = some_tokens(1, LENGTH)
    base = type(model).from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        expected = wrapped.eval()(input_ids=ids).logits
        assert torch.equal(loaded(input_ids=ids).logits, expected)
        merged = loaded.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        again = type(model).from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(again(ids).logits, expected, rtol=1e-4, atol=1e-4)
    assert again.generate(ids, max_new_tokens=3).shape == (1, LENGTH + 3)


def test_adapters_do_not_freeze_a_learned_tau_silently(tmp_path):
    peft = pytest.importorskip("peft")
    ids = some_tokens(2, LENGTH)
    options = {"task_type": "CAUSAL_LM", "r": 2, "target_modules": ["q_proj"]}
    frozen = peft.get_peft_model(converted(learn_tau=True), peft.LoraConfig(**options))
    with pytest.warns(
        UserWarning, match=r"log_tau .* frozen.*modules_to_save=\['position_scheme'\]"
    ):
        frozen.train()(input_ids=ids, labels=ids)

    config = peft.LoraConfig(**options, modules_to_save=["position_scheme"])
    model = converted(learn_tau=True)
    model.save_pretrained(tmp_path / "base")
    learning = peft.get_peft_model(model, config)
    optimiser = torch.optim.SGD([p for p in learning.parameters() if p.requires_grad], lr=1.0)
    learning.train()(input_ids=ids, labels=ids).loss.backward()
    optimiser.step()
    learning.save_pretrained(tmp_path / "adapter")
    base = type(model).from_pretrained(tmp_path / "base")
    loaded = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    with torch.no_grad():
        expected = learning.eval()(input_ids=ids).logits
        assert torch.equal(loaded.eval()(input_ids=ids).logits, expected)
        merged = loaded.merge_and_unload()
        merged.save_pretrained(tmp_path / "merged")
        again = type(model).from_pretrained(tmp_path / "merged")
        torch.testing.assert_close(again(ids).logits, expected, rtol=1e-4, atol=1e-4)
    learned = again.model.layers[0].self_attn.position_scheme.distance.log_tau
    assert (learned - math.log(10)).abs().max() > 1e-4


def test_autocast():
    model = converted()
    ids = some_tokens(2, LENGTH)
    with torch.no_grad():
        wide = model(ids).logits
        with torch.autocast("cpu", torch.bfloat16):
            narrow = model(ids).logits
    assert (narrow - wide).abs().mean() < 0.1 * wide.std()
